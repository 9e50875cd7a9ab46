"""`TokenSet` beside vocabularies of any size: every view of it against the ids that it holds, and the bounds of what a branch may ask."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import TokenSet
from outlines_cont.control import Branch
from outlines_cont.policies.branch import LazyTokenSet, check_mask
from tests.examples import examples

_IDS = st.sets(st.integers(0, 130), max_size=9)
_SIZES = st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 131, 200])


@st.composite
def _sets(draw: st.DrawFn) -> tuple[TokenSet, Callable[[int], bool]]:
    """A set made by a few operations, and whether an id is in it."""
    ids = draw(_IDS)
    kind = draw(st.sampled_from(["of", "but", "bits", "late", "all", "none"]))
    if kind in ("all", "none"):
        return (TokenSet.all, lambda i: True) if kind == "all" else (TokenSet.none, lambda i: False)
    if kind == "but":
        return ~TokenSet.of(ids), lambda i: i not in ids
    made = TokenSet.of(ids)
    if kind == "late":
        return LazyTokenSet(lambda: made.words), lambda i: i in ids
    if kind == "bits":
        padded = np.concatenate([made.words, np.zeros(draw(st.integers(0, 3)), dtype=np.int32)])
        return TokenSet.of_bitmask(padded), lambda i: i in ids
    return made, lambda i: i in ids


@settings(max_examples=examples(150), deadline=None)
@given(_sets(), _sets(), _SIZES)
def test_every_view_of_a_set_has_the_same_ids(
    left: tuple[TokenSet, Callable[[int], bool]], right: tuple[TokenSet, Callable[[int], bool]], vocab_size: int
) -> None:
    (a, in_a), (b, in_b) = left, right
    for found, holds in (
        (a, in_a),
        (~a, lambda i: not in_a(i)),
        (a & b, lambda i: in_a(i) and in_b(i)),
        (a | b, lambda i: in_a(i) or in_b(i)),
    ):
        ids = [i for i in range(vocab_size) if holds(i)]
        assert ids == [i for i in range(vocab_size) if i in found]
        assert holds(10**6) == (10**6 in found) == found.rest
        assert not any(i in found for i in (-1, -32, -33))
        assert len(ids) == found.count(vocab_size)
        bits = np.unpackbits(found.bitmask(vocab_size).view(np.uint8), bitorder="little")
        assert len(bits) == -(-vocab_size // 32) * 32
        assert ids == np.flatnonzero(bits[:vocab_size]).tolist()
        num_words = int(np.count_nonzero(found.bitmask(vocab_size)))
        few = found.few_ids(vocab_size, num_words)
        assert few is not None
        assert ids == few.tolist()
        assert num_words == 0 or found.few_ids(vocab_size, num_words - 1) is None
        assert bool(found) == (found.rest or any(map(holds, range(200))))
        beyond = next((i for i in range(vocab_size, 200) if holds(i)), None)
        filled = all(map(holds, range(vocab_size, -(-vocab_size // 32) * 32)))
        if found.rest or not filled:  # filled to the end of a word, they may mean nothing
            assert (None if found.rest else beyond) == found.first_beyond(vocab_size)
    assert (a == b) == (all(in_a(i) == in_b(i) for i in range(200)) and a.rest == b.rest)
    assert (a == b) != (a != b)


@pytest.mark.parametrize("mask", [TokenSet.all, TokenSet.none])
def test_what_all_and_none_hold_does_not_depend_on_the_size_of_a_vocabulary(mask: TokenSet) -> None:
    for size in (1, 31, 32, 33, 1000):
        assert mask.count(size) == (size if mask is TokenSet.all else 0)
    assert (0 in mask) == (2**24 in mask) == (mask is TokenSet.all)
    assert mask & TokenSet.all == TokenSet.all & mask == mask | TokenSet.none == mask
    check_mask(mask, 7, "sample_mask")


def test_the_largest_id_of_a_set_is_one_below_its_limit() -> None:
    assert 2**24 - 1 in TokenSet.of([2**24 - 1])
    with pytest.raises(ValueError, match=f"below {2**24}, got {2**24}"):
        TokenSet.of([3, 2**24])
    assert 0 in TokenSet.of([0])


def test_a_set_that_is_made_late_is_made_once_and_when_it_is_looked_at() -> None:
    made = []
    late = LazyTokenSet(lambda: made.append(1) or np.array([6], dtype=np.int32))  # type: ignore[func-returns-value]
    check_mask(late, 2, "sample_mask")
    assert (late.is_made, made) == (False, [])
    assert (late & TokenSet.all) is late
    assert not late.is_made
    assert late == TokenSet.of([1, 2])
    assert (late.is_made, late.rest, made) == (True, False, [1])
    with pytest.raises(ValueError, match="from 0 to 1 in `sample_mask`.*got 2"):
        check_mask(late, 2, "sample_mask")
    check_mask(late, 3, "sample_mask")


@pytest.mark.parametrize("size", [1, 32, 33, 352])
def test_what_fills_up_the_last_word_of_a_bitmask_is_no_id(size: int) -> None:
    full, inside = TokenSet.of_bitmask(np.full(-(-size // 32), -1, dtype=np.int32)), TokenSet.of(range(size))
    for mask in (full, full & inside, TokenSet.all & full):
        assert mask.first_beyond(size) is None


def test_the_bounds_of_a_branch_are_within() -> None:
    for temperature in (0, 0.5, math.nextafter(1e30, 0)):
        assert Branch(sample_mask=TokenSet.all, temperature=temperature).temperature == temperature
    for value in (-1e-9, 1e30, math.inf, math.nan):
        with pytest.raises(ValueError, match="`temperature`"):
            Branch(sample_mask=TokenSet.all, temperature=value)
    assert Branch(backtrack=0, ff_tokens=[[1]]).backtrack == 0
    for operand in (3, "a", None):
        with pytest.raises(TypeError):
            TokenSet.all & operand  # type: ignore[operator]
        with pytest.raises(TypeError):
            TokenSet.all | operand  # type: ignore[operator]
        assert TokenSet.all != operand
