"""Healing follows its law, by enumeration, and is what giving tokens back by hand is."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import fsm
from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.models import HuggingFaceModel, from_transformers
from outlines_cont.models.tokenizer.token_bytes import TokenStarts
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.examples import examples
from tests.fakes import BOS, EOS, VOCAB_SIZE, FakeTokenizer, ScriptedNetwork, random_model, scripted_config
from tests.healing import Spell, fitting, num_open

TEXTS = st.text(alphabet='ab the":, 2', min_size=1, max_size=12)


class FewTokens(FakeTokenizer):
    """A tokenizer of a few tokens of three letters; the other ids stand for nothing."""

    def __init__(self, longer: frozenset[bytes]) -> None:
        super().__init__()
        tokens: list[bytes | None] = [None, None, None, b"a", b"b", b"c", *sorted(longer)]
        self.token_bytes = (*tokens, *[None] * (VOCAB_SIZE - len(tokens)))
        self._ids = {data: token_id for token_id, data in enumerate(self.token_bytes) if data}
        self._longest = max(map(len, self._ids))


def script(ids: list[int]) -> dict[int, float]:
    """Logits that depend on all that was read."""
    numbers = random.Random(hash(tuple(ids)))
    return {token_id: numbers.uniform(-2, 2) for token_id in range(12)}  # all that `FewTokens` has


@cache
def few_tokens(longer: frozenset[bytes]) -> HuggingFaceModel:
    network = ScriptedNetwork(scripted_config())
    network.script = script
    return from_transformers(network, FewTokens(longer))


def paths(model: HuggingFaceModel, ids: tuple[int, ...], left: bytes) -> dict[tuple[int, ...], float]:
    """All that can be written until a token has text of its own, or the text has ended, with its probability by the law."""
    token_bytes = model.tokenizer.token_bytes
    spelled = [i for i, data in enumerate(token_bytes) if data]
    allowed = fitting(token_bytes, left) if left else [*spelled, EOS]
    logits = script(list(ids))
    total = sum(math.exp(logits[i]) for i in allowed)
    found: dict[tuple[int, ...], float] = {}
    for token_id in allowed:
        share = math.exp(logits[token_id]) / total
        data = token_bytes[token_id] or b""
        if token_id == EOS:
            found[()] = share
        elif left.startswith(data):
            rest = paths(model, (*ids, token_id), left[len(data) :])
            found.update({(token_id, *path): share * p for path, p in rest.items()})
        else:
            found[(token_id,)] = share
    return found


LONGER = st.frozensets(st.text("abc", min_size=2, max_size=4).map(str.encode), min_size=1, max_size=5)


@settings(max_examples=examples(25), deadline=None)
@given(LONGER, st.text("abc", min_size=1, max_size=5))
def test_every_token_has_the_probability_of_the_law(longer: frozenset[bytes], prompt: str) -> None:
    model = few_tokens(longer)
    ids = (BOS, *model.tokenizer.encode(prompt))
    kept = ids[: len(ids) - num_open(model.tokenizer.token_bytes, ids)]
    removed = model.tokenizer.text_bytes(ids[len(kept) :])
    law = paths(model, kept, removed)
    assert pytest.approx(sum(law.values())) == 1
    state = continuous(generate.text(model, sampler=samplers.multinomial(8)))(prompt, heal=True, max_tokens=1, rng=3)
    for row in state.rows[0]:
        assert kept == row.token_ids[: len(kept)]
        assert model.tokenizer.decode(row.token_ids).startswith(prompt)
        if row.finish_reason == "length":  # else its end, which is no token, counts as well
            assert math.log(law[row.token_ids[len(kept) :]]) == pytest.approx(sum(row.sampling_logprobs), abs=1e-4)


def test_what_is_drawn_is_as_frequent_as_the_law_says() -> None:
    model = few_tokens(frozenset({b"ab", b"abc", b"bca", b"cab"}))
    prompt = "ccab"
    ids = (BOS, *model.tokenizer.encode(prompt))
    kept = ids[: len(ids) - num_open(model.tokenizer.token_bytes, ids)]
    law = paths(model, kept, model.tokenizer.text_bytes(ids[len(kept) :]))
    assert len(law) > 10
    count = 800
    state = continuous(generate.text(model, sampler=samplers.multinomial(count)))(prompt, heal=True, max_tokens=1, rng=7)
    found = Counter(row.token_ids[len(kept) :] for row in state.rows[0])
    assert found.keys() <= law.keys()
    for path, share in law.items():
        assert abs(found[path] - count * share) < 4 * math.sqrt(count * share * (1 - share)) + 1


@settings(max_examples=examples(15), deadline=None)
@given(LONGER, st.text("abc", min_size=1, max_size=5))
def test_greedy_takes_the_most_probable_token_that_fits(longer: frozenset[bytes], prompt: str) -> None:
    model = few_tokens(longer)
    token_bytes = model.tokenizer.token_bytes
    ids = (BOS, *model.tokenizer.encode(prompt))
    kept = ids[: len(ids) - num_open(token_bytes, ids)]
    left, wanted = model.tokenizer.text_bytes(ids[len(kept) :]), list(kept)
    while left:
        logits = script(wanted)
        wanted.append(max(fitting(token_bytes, left), key=logits.__getitem__))
        left = left[len(token_bytes[wanted[-1]] or b"") :]
    state = continuous(generate.text(model))(prompt, heal=True, max_tokens=2)
    assert tuple(wanted) == state.rows[0][0].token_ids[: len(wanted)]


@settings(max_examples=examples(40))
@given(st.frozensets(st.binary(min_size=1, max_size=4), max_size=30), st.lists(st.integers(0, 40), max_size=8))
def test_tokens_are_looked_up_as_a_scan_finds_them(texts: frozenset[bytes], picks: list[int]) -> None:
    every_byte = [bytes([byte]) for byte in range(256)]
    token_bytes: list[bytes | None] = [None, *texts, *texts, *every_byte]
    starts = TokenStarts(token_bytes)
    ids = [pick % len(token_bytes) for pick in picks]
    assert num_open(token_bytes, ids) == starts.num_open(ids)
    data = b"".join(token_bytes[i] or b"" for i in ids)
    if data:
        assert fitting(token_bytes, data) == starts.spelling(data).tolist()


@given(st.frozensets(st.text("ab", min_size=1, max_size=3).map(str.encode)), st.text("ab", min_size=1, max_size=6).map(str.encode))
def test_a_token_that_nothing_can_follow_is_not_allowed(texts: frozenset[bytes], text: bytes) -> None:
    token_bytes = sorted(texts)

    def is_spelled(rest: bytes) -> bool:
        return any(t.startswith(rest) or (rest.startswith(t) and is_spelled(rest[len(t) :])) for t in texts)

    wanted = [i for i, t in enumerate(token_bytes) if t.startswith(text) or (text.startswith(t) and is_spelled(text[len(t) :]))]
    assert wanted == TokenStarts(token_bytes).spelling(text).tolist()


# -- as by hand --------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "greedy": samplers.greedy(),
    "multinomial": samplers.multinomial(2),
    "beam_search": samplers.beam_search(3),
    "best_of": samplers.best_of(3),
}


def given_back(state: SequenceState) -> tuple[SequenceState, bytes]:
    """Give the tokens back by hand that healing gives back, in a state of one row."""
    row, tokenizer = state.rows[0][0], state.tokenizer
    kept = len(row.token_ids) - num_open(tokenizer.token_bytes, row.token_ids)
    return state.tokens[:kept], tokenizer.text_bytes(row.token_ids[kept:])


@settings(max_examples=examples(12), deadline=None)
@given(TEXTS, st.sampled_from(["greedy", "multinomial"]), st.booleans())
def test_healed_text_is_as_by_hand(prompt: str, sampler: str, is_fed: bool) -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=SAMPLERS[sampler]))
    start = state_of(model, prompt)
    if is_fed:
        assert start.logits is not None
    cut, removed = given_back(start)
    if sampler == "multinomial":
        start, cut = start.fork(2), cut.fork(2)
    policies = [Spell(removed, model.tokenizer.token_bytes)]
    by_hand = write(cut, rng=5, max_tokens=4 + len(removed), policies=policies)
    healed = write(start, rng=5, max_tokens=4, heal=True)
    for row, other in zip(healed.rows[0], by_hand.rows[0], strict=True):
        length = len(row.token_ids)
        assert other.token_ids[:length] == row.token_ids
        assert pytest.approx(other.logprobs[:length], abs=1e-6) == row.logprobs
        assert pytest.approx(other.sampling_logprobs[:length], abs=1e-6) == row.sampling_logprobs
        text = model.tokenizer.text_bytes(row.token_ids)
        assert text.startswith(prompt.encode())
        if row.finish_reason == "length":  # the last of four tokens has text of its own, as has the first of them
            assert sum(kind in b"g" for kind in row.kinds) == 4


def state_of(model: HuggingFaceModel, prompt: str) -> SequenceState:
    """A state of a prompt that was not fed."""
    token_ids = model.tokenizer.encode(prompt, add_special_tokens=True)
    return SequenceState(model, ((StateRow.of_prompt(token_ids, RandomStream(0, 0)),),), 0)


LANGUAGES = [r"[a-z]{1,3}", r"( the)?[0-9]{2}", r'": "[a-z]{0,3}"', "abc(abc)?|he|2000"]


@settings(max_examples=examples(12), deadline=None)
@given(TEXTS, st.sampled_from(LANGUAGES), st.sampled_from(sorted(SAMPLERS)), st.booleans())
def test_a_healed_constraint_is_as_by_hand(prompt: str, pattern: str, sampler: str, force: bool) -> None:
    model = random_model()
    start = state_of(model, prompt)
    cut, removed = given_back(start)
    language = fsm.regex(pattern)
    if removed:
        language = removed.decode() + language
    if sampler == "multinomial":
        start, cut = start.fork(2), cut.fork(2)
    by_hand = continuous(generate.fsm(model, language, sampler=SAMPLERS[sampler], force=force))(cut, rng=2)
    healed = continuous(generate.regex(model, pattern, sampler=SAMPLERS[sampler], force=force))(start, rng=2, heal=True)
    for row, other in zip(healed.rows[0], by_hand.rows[0], strict=True):
        assert other.token_ids == row.token_ids
        assert other.finish_reason == row.finish_reason
        assert pytest.approx(other.logprobs, abs=1e-6) == row.logprobs
        assert pytest.approx(other.sampling_logprobs, abs=1e-6) == row.sampling_logprobs
        assert pytest.approx(other.weight, abs=1e-5) == row.weight
        assert row.piece is not None
        assert len(removed) == row.piece.healed
    assert [value[len(removed) :] for value in by_hand.values[0]] == healed.values[0]


def test_the_logits_after_healing_are_those_of_the_tokens() -> None:
    model = random_model()
    state = continuous(generate.text(model, sampler=samplers.multinomial(4)))("is it th", heal=True, max_tokens=3, rng=1)
    fresh = state.detach_cache()
    assert torch.allclose(fresh.logits, state.logits, atol=1e-6)
