"""`compose`: the branches that several policies return for one row, merged by fixed priority: rewind (the furthest back first), stop,
append the forced tokens of the first policy that forces some, wait, else sample under the intersection of the masks. Several branches of
one policy, which would fork the row, are refused. `row_ahead`: a row with further tokens.

Forced tokens are cut before the first that the mask of another policy refuses, or at which another policy would rewind or stop.
Contradictions: two temperatures, two sequences after the same sample, a first forced token that another policy refuses, two policies that
end the row if a token leaves their languages (what that would mean is the end of the intersection, which one policy has).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from outlines_cont.errors import UnsupportedBranch, shortened
from outlines_cont.policies.branch import FREE, Branch, TokenSet
from outlines_cont.policies.policy import Policy, RowView

_is_branch = Branch.__instancecheck__

_FORKS = (
    "expected one branch or none from a policy, got {1} of {0!r}, which would fork the row. Fork the state before the call, "
    "`state.fork(n)`, or the script before `gen`, `await fork(n)`; a `Controller` may return several branches."
)


Steering = tuple[Policy[Any], Any]
"""A policy with its state after the last token of a row."""


def branches_of(policy: Policy[Any], state: Any, row: RowView) -> list[Branch]:
    """Return the branch of a policy, or none to stop.

    Raises:
        TypeError: it is no list of branches.
        UnsupportedBranch: there are several.
    """
    branches = policy.branches(state, row)
    if type(branches) is list and len(branches) == 1 and type(branches[0]) is Branch:
        return branches
    if not isinstance(branches, list | tuple) or not all(map(_is_branch, branches)):
        raise TypeError(
            f"expected a list of `Branch` from `branches` of {type(policy).__name__}, got {shortened(repr(branches))}. Return "
            "`[Branch(...)]` to continue, `[]` to end the piece."
        )
    if len(branches) > 1:
        raise UnsupportedBranch(_FORKS.format(policy, len(branches)))
    return branches if isinstance(branches, list) else [*branches]


def compose(steering: Sequence[Steering], row: RowView) -> tuple[list[Branch], int]:
    """Return the branch that the row takes, or none to stop, and the index of the policy that decided it.

    Raises:
        UnsupportedBranch: two policies contradict each other; see the top of this module.

    Cost: one call of `branches` per policy; with forced tokens one more of every other policy for each of these.
    """
    if len(steering) == 1:
        return branches_of(*steering[0], row), 0
    returned = [branches_of(policy, state, row) for policy, state in steering]
    pairs = [(branches[0], index) for index, branches in enumerate(returned) if branches]
    rewinds = [pair for pair in pairs if pair[0].is_rewind]
    if rewinds:
        branch, index = max(rewinds, key=lambda pair: pair[0].backtrack)
        return [branch], index
    for index, branches in enumerate(returned):
        if not branches:
            return [], index
    for branch, index in pairs:
        if branch.sample_mask is None and branch.ff_tokens:
            return [_forced(branch, index, steering, row)], index
    for branch, index in pairs:
        if branch.sample_mask is None:
            return [branch], index
    return [_intersected([branch for branch, _ in pairs])], pairs[0][1]


def _intersected(branches: list[Branch]) -> Branch:
    deciding = [branch for branch in branches if branch is not FREE[0]]
    if len(deciding) < 2:
        return deciding[0] if deciding else FREE[0]
    mask = TokenSet.all
    for branch in branches:
        if branch.sample_mask is not None:
            mask = mask & branch.sample_mask
    temperatures = {branch.temperature for branch in branches} - {None}
    if len(temperatures) > 1:
        raise UnsupportedBranch("two policies of one row set different temperatures for the same sample")
    sequences = [branch.ff_tokens for branch in branches if branch.ff_tokens]
    if len(sequences) > 1:
        raise UnsupportedBranch("two policies of one row append sequences after the same sample")
    exits = [branch.exits for branch in branches if branch.exits is not None]
    if len(exits) > 1:
        raise UnsupportedBranch(
            "expected one policy at most that ends a row if a token leaves its language (`end='free'`), got several. Pass one generator "
            "of the intersection, `generate.fsm(model, first & second)`, or make all but one of them with `end='eos'`."
        )
    return Branch(
        sample_mask=mask,
        ff_tokens=sequences[0] if sequences else [],
        temperature=next(iter(temperatures), None),
        exits=exits[0] if exits else None,
    )


def _forced(branch: Branch, leader: int, steering: Sequence[Steering], row: RowView) -> Branch:
    """Return the forced tokens of policy `leader` as far as the others allow them; `UnsupportedBranch` if that is not one.

    That another policy would wait, or force other tokens, is not considered.
    """
    others = [pair for index, pair in enumerate(steering) if index != leader]
    written, token_ids = list(row.token_ids), list[int]()
    ahead = row_ahead(written, row)
    for token_id in branch.ff_tokens[0]:
        for policy, state in others:
            branches = policy.branches(state, ahead)
            if len(branches) != 1 or branches[0].is_rewind:
                return Branch(ff_tokens=[token_ids]) if token_ids else Branch()
            allowed = branches[0].sample_mask
            if allowed is not None and token_id not in allowed:
                if token_ids:
                    return Branch(ff_tokens=[token_ids])
                raise UnsupportedBranch(
                    f"{steering[leader][0]!r} forces token {token_id}, which {policy!r} does not allow. "
                    "No text satisfies both; drop one of them."
                )
        others = [(policy, policy.advance(state, token_id)) for policy, state in others]
        token_ids.append(token_id)
        written.append(token_id)
    return Branch(ff_tokens=[token_ids])


def row_ahead(token_ids: list[int], row: RowView) -> RowView:
    """Return a view of a row with other tokens.

    Args:
        token_ids: all ids, those of the row and those that are not appended yet; the caller may append to the list.
        row: the row itself, which has everything else.
    """
    return cast(RowView, _RowAhead(token_ids, row))


class _RowAhead:
    __slots__ = ("_row", "token_ids")

    def __init__(self, token_ids: list[int], row: RowView) -> None:
        self.token_ids, self._row = token_ids, row

    def was_drawn(self, index: int) -> bool:
        return index < len(self._row.token_ids) and self._row.was_drawn(index)

    def was_given(self, index: int) -> bool:
        return index < len(self._row.token_ids) and self._row.was_given(index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)
