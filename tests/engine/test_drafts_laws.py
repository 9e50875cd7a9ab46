"""Drafts with hypothesis: an index of runs beside a plain search, and texts with random proposals beside texts without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import continuous, generate, policies, samplers
from outlines_cont.drafts.lookup import SIZES, NgramIndex
from tests.fakes import random_model

_STEPS = st.lists(
    st.one_of(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 8)), min_size=1, max_size=8
)


@given(_STEPS)
def test_an_index_finds_what_a_search_finds(steps: list[list[int] | int]) -> None:
    """Steps append tokens, or cut some off."""
    row: list[int] = []
    index = NgramIndex()
    for step in steps:
        if isinstance(step, int):
            row = row[: len(row) - step] if step <= len(row) else []
            index.cut(len(row))
        else:
            row = row + step
        index.follow(row)
        for size in SIZES:
            places = [
                i for i in range(size, len(row)) if row[i - size : i] == row[len(row) - size :] and len(row) >= size
            ]
            assert (places[-1] if places else None) == index.find(row, size)
            if places:
                assert index.is_only(places[-1], size) == (len(places) == 1)


class Random:
    """Proposes right tokens and wrong ones, as it was told."""

    def __init__(self, texts: Sequence[Sequence[int]], script: list[tuple[int, int]]) -> None:
        self.texts, self.script, self.calls = [[*text] for text in texts], script, 0

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        right, wrong = self.script[self.calls % len(self.script)]
        self.calls += 1
        rest = next((text[len(token_ids) :] for text in self.texts if text[: len(token_ids)] == token_ids), [])
        return [*rest[:right], *([wrong] * (wrong > 2)), *rest[right + 1 :]]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 300)), min_size=1, max_size=5),
    st.integers(0, 50),
    st.sampled_from(["text", "pattern", "forced", "json"]),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_proposed_the_text_is_the_same(
    script: list[tuple[int, int]], seed: int, kind: str, heal: bool, bans: bool
) -> None:
    model = random_model()
    sampler = samplers.multinomial(2, temperature=2.0, frequency_penalty=0.2 * (seed % 2))
    generator = {
        "text": lambda: generate.text(model, sampler=sampler),
        "pattern": lambda: generate.regex(model, "[a-e]{1,3}( [a-e]{1,3}){2,6}", sampler=sampler, force=False),
        "forced": lambda: generate.regex(model, "[ab]( red green (blue|black) [ab]){1,3}", sampler=sampler),
        "json": lambda: generate.json(model, {"enum": [{"name": "red", "age": 12}, [1, 2, 12, 20]]}, sampler=sampler),
    }[kind]()
    options: dict[str, Any] = {"max_tokens": 14, "rng": seed, "heal": heal}
    first = continuous(generator)(["the name", "a"], **options)
    texts = [row.token_ids for group in first.rows for row in group]
    if bans:
        options["policies"] = [policies.ban([chr(97 + seed % 5)], max_retries=20)]
    wanted = continuous(generator)(["the name", "a"], **options)
    found = continuous(generator)(["the name", "a"], draft=Random(texts, script), **options)
    for group, others in zip(wanted.rows, found.rows, strict=True):
        for row, other in zip(group, others, strict=True):
            assert (row.token_ids, row.kinds, row.finish_reason) == (other.token_ids, other.kinds, other.finish_reason)
            assert (row.stream, row.piece, type(row.error)) == (other.stream, other.piece, type(other.error))
            assert all(abs(a - b) < 1e-9 for a, b in zip(row.logprobs, other.logprobs, strict=True))
