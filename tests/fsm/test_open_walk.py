"""Masks of patterns beside counts, made out of one walk for all counts, against the plain walk of the term as it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, Expression, TokenFSM, Vocabulary, json_schema, regex
from fsm.tokens import mask_strategies
from fsm.tokens.walk import walk_wide

Tokens = tuple[list[bytes | None], list[int]]

BODIES = st.sampled_from(
    [
        r"(?:\S+\s+)",
        r"(?:\s*\S+)",
        r"(?:[^ ]+ )",
        r"(?:\w+\W*)",
        "(?:ab?)",
        "(?:a|aa)",
        r"(?:[a-c]+,)",
        r"(?:\w{1,3} )",
        "[ab]",
        "(?:é|a) ",
    ]
)
ENDS = st.sampled_from([r"\S+", "", r"\w*", "b?", "[a-c]+", r"(?:\.|!)", r"\w+(?: x){0,2}", "é"])
STARTS = st.sampled_from(["", "", "a?", r"\S+", "(?:x|yy) ?", ".*", r"(?!.*  )"])
PIECES = ["a", "b", "ab", " ", "  ", "é", "\xa0", ",", ".", "x", "!", "aa", "bc", "y"]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    lo = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    hi = lo + draw(st.integers(0, 5))
    body, counts = draw(BODIES), draw(st.sampled_from([f"{{{lo},{hi}}}", f"{{{lo},{hi}}}", f"{{{lo},}}"]))
    found = f"{draw(STARTS)}{body}{counts}{draw(ENDS)}"
    return draw(st.sampled_from([f"^{found}$", f"^{found}$", found, f"^(?:{found}|x{{2,4}} {body}{{0,2}})$"]))


@st.composite
def strings(draw: st.DrawFn) -> dict[str, object]:
    lo, extra = draw(st.sampled_from([0, 0, 1, 4, 9])), draw(st.integers(0, 12))
    bounds = [{}, {"maxLength": lo + extra}, {"minLength": lo, "maxLength": lo + extra}, {"minLength": lo}]
    schema = {"type": "string", "pattern": draw(patterns()), **draw(st.sampled_from(bounds))}
    return draw(st.sampled_from([schema, schema, {"type": "array", "items": schema, "maxItems": 2}]))


@cache
def vocabulary(seed: int) -> Vocabulary:
    rng = random.Random(seed)
    texts = {bytes((byte,)) for byte in range(256)}
    for _ in range(150):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 7)))
        text = rng.choice(["", "", "", '"', '["', '", "']) + text + rng.choice(["", "", "", '"', '", ', '"]'])
        data = text.encode()
        texts.add(data[: rng.randint(1, len(data))])
    return Vocabulary([None, *sorted(texts)], [0])


def plain(fsm: TokenFSM, state: int) -> list[int]:
    found = np.flatnonzero(walk_wide(fsm.automaton, fsm.vocabulary.trie, state)).tolist()
    return sorted({*found, *((0,) if fsm.is_accepting(state) else ())})


def assert_masks_are_those_of_the_plain_walk(make: Callable[[], Expression], seed: int, is_wide: bool) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if is_wide:  # let no narrow walk come before
            patch.setattr(mask_strategies, "FEW_BYTES", 0)
            patch.setattr(mask_strategies, "_is_narrow", lambda maker, state: False)
        try:
            fsm = TokenFSM(make(), vocabulary(seed % 5))
        except EmptyLanguage:
            return
        state = fsm.initial_state
        for _ in range(8):
            allowed = fsm.allowed_token_ids(state).tolist()
            assert plain(fsm, state) == allowed
            going_on = [token_id for token_id in allowed if token_id]
            if not going_on:
                return
            ascii_only = [t for t in going_on if max(fsm.vocabulary.tokens[t] or b"") < 128]
            state = fsm.next_state(state, rng.choice(ascii_only or going_on))


SEEDS = st.integers(0, 1 << 30)


@given(strings(), SEEDS, st.booleans())
@settings(max_examples=15, deadline=None)
def test_masks_of_strings_are_those_of_the_plain_walk(schema: dict[str, object], seed: int, is_wide: bool) -> None:
    assert_masks_are_those_of_the_plain_walk(lambda: json_schema(schema), seed, is_wide)


@given(patterns(), SEEDS, st.sampled_from(["", ".{0,9}", ".{3,}", r"[ -~\n]{4,20}", "[a-z ]{2,6}"]))
@settings(max_examples=15, deadline=None)
def test_masks_of_patterns_are_those_of_the_plain_walk(pattern: str, seed: int, beside: str) -> None:
    assert_masks_are_those_of_the_plain_walk(
        lambda: regex(pattern) & regex(beside) if beside else regex(pattern), seed, is_wide=True
    )
