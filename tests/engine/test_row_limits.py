"""`RowLimits.sampled`: masks as rows sample under them, which are remembered, beside sets of ids."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import TokenSet
from outlines_cont.engine.piece import RowLimits
from tests.fakes import random_model

MODEL = random_model("llama")
IDS = st.frozensets(st.integers(0, 40) | st.sampled_from(sorted(MODEL.eos_token_ids)), max_size=8)


def _sampled(mask: Set[int], ends: Set[int], stops: Set[int], *, is_short: bool) -> Set[int]:
    allowed = mask | stops if mask & ends else mask
    return (allowed - ends - stops or allowed) if is_short else allowed


@given(st.lists(IDS, min_size=1, max_size=6), IDS, st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12))
def test_a_mask_is_sampled_as_at_the_first_time(masks: list[frozenset[int]], stops: frozenset[int], asked: list[tuple[int, bool]]) -> None:
    first, ends = RowLimits.of(MODEL, sorted(stops)), frozenset(MODEL.eos_token_ids)
    rows = [first, replace(first, min_length=3)]  # rows of a piece share what is remembered
    sets = [TokenSet.of(mask) for mask in masks]
    for turn, (number, is_short) in enumerate(asked):
        at = number % len(masks)
        found = rows[turn % 2].sampled(sets[at], MODEL.vocab_size, is_short=is_short)
        expected = _sampled(masks[at], ends, stops, is_short=is_short)
        assert found.mask == TokenSet.of(expected)
        assert found.has_text == bool(expected - ends - stops)
        assert found.has_end == bool(expected)
    assert first.end_ids == ends | stops


def test_masks_are_remembered_between_the_calls_of_a_model() -> None:
    mask = TokenSet.of([1, 2])
    first, second = (RowLimits.of(MODEL, ()).up_to(length) for length in (3, 9))
    found = first.sampled(mask, MODEL.vocab_size, is_short=False)
    assert second.known[id(mask)] is found
    stopping = RowLimits.of(MODEL, [2])
    assert id(mask) not in stopping.known
    assert stopping.end_ids == first.end_ids | {2}
