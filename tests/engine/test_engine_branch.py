"""`TokenSet` against Python's sets, and `Branch`'s checks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.compose import PolicyState, compose
from outlines_cont.policies.policy import Policy, RowView

_SIZE = 150
_IDS = st.sets(st.integers(0, _SIZE - 1))


@st.composite
def _token_sets(draw: st.DrawFn) -> tuple[TokenSet, set[int]]:
    ids = draw(_IDS)
    if draw(st.booleans()):
        return ~TokenSet.of(ids), set(range(_SIZE)) - ids
    return TokenSet.of(ids), ids


def _listed(tokens: TokenSet) -> set[int]:
    return {token_id for token_id in range(_SIZE) if token_id in tokens}


@given(_token_sets(), _token_sets())
def test_the_algebra_is_that_of_sets(left: tuple[TokenSet, set[int]], right: tuple[TokenSet, set[int]]) -> None:
    (a, x), (b, y) = left, right
    assert x == _listed(a)
    assert x & y == _listed(a & b)
    assert x | y == _listed(a | b)
    assert set(range(_SIZE)) - x == _listed(~a)
    assert len(x) == a.count(_SIZE)
    assert bool(a.rest or x) == bool(a)
    assert (x == y and a.rest == b.rest) == (a == b)
    bits = np.unpackbits(a.bitmask(_SIZE).view(np.uint8), bitorder="little")[:_SIZE]
    assert sorted(x) == np.flatnonzero(bits).tolist()


def test_all_and_none_are_what_they_say() -> None:
    assert 10**9 in TokenSet.all
    assert -1 not in TokenSet.all
    assert 0 not in TokenSet.none
    assert (TokenSet.all & TokenSet.none) == TokenSet.none
    assert not TokenSet.none
    assert repr(TokenSet.of([40, 3])) == "TokenSet.of([3, 40])"
    assert repr(~TokenSet.of([3])) == "~TokenSet.of([3])"
    assert repr(TokenSet.all) == "TokenSet.all"


def test_a_set_does_not_change_with_the_bitmask_it_came_from_being_locked() -> None:
    tokens = TokenSet.of_bitmask(np.array([5], dtype=np.int32))
    with pytest.raises(ValueError, match="read-only"):
        tokens.words[0] = 1


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or larger, got -3"):
        TokenSet.of([1, -3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backtrack": -1}, "`backtrack` is a number of tokens, 0 or more, got -1"),
        (
            {"ff_tokens": [[1], [2]]},
            "at most one sequence in `ff_tokens` without a `sample_mask`, got 2. Give the mask",
        ),
        ({"sample_mask": TokenSet.all, "ff_tokens": [[]]}, "is empty"),
    ],
)
def test_a_branch_that_means_nothing_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Branch(**arguments)  # type: ignore[arg-type]


class _Says(Policy[int]):
    """Returns the same branches at every token."""

    def __init__(self, *branches: Branch) -> None:
        self._branches = [*branches]

    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return self._branches


@given(st.lists(_IDS, min_size=2, max_size=4), st.lists(_IDS, max_size=3), st.integers(0, 3))
def test_each_branch_of_a_fork_is_drawn_under_the_masks_of_the_others(
    forks: list[set[int]], masks: list[set[int]], place: int
) -> None:
    row: Any = SimpleNamespace(token_ids=[1])
    forking = _Says(*(Branch(sample_mask=TokenSet.of(ids)) for ids in forks))
    policies = [_Says(Branch(sample_mask=TokenSet.of(ids))) for ids in masks]
    policies.insert(place, forking)
    states = [PolicyState(policy, row) for policy in policies]

    branches, decider = compose(states, row)

    shared = set(range(_SIZE)).intersection(*masks)
    assert [_listed(branch.sample_mask or TokenSet.none) for branch in branches] == [ids & shared for ids in forks]
    assert decider.policy is forking
