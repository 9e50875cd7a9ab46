"""`compose`: the branches that several policies return for one row, merged by fixed priority: rewind (the furthest back first), stop,
append the forced tokens of the first policy that forces some (cut where another's mask refuses them), wait, else sample under the
intersection of the masks. One policy may fork; two at once are an `UnsupportedBranch`. `Track`: one policy with a stack of its states,
one per token, so that a rewind drops the last; it also takes over the states behind guessed tokens.

A policy may return several branches to fork the row; then each of these is merged with the branches of the other policies. Two policies
that fork at once, that set different temperatures, or of which one forces what the other's mask refuses, are an `UnsupportedBranch`. Forced
tokens are cut before the first that the mask of another policy refuses, or at which another policy would rewind, fork or stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from outlines_cont.errors import UnsupportedBranch, shortened
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView


class Track:
    """One policy on one row, with a stack of its states: the initial one, and one after each token of the generated span."""

    __slots__ = ("_ahead", "policy", "retries", "states")

    def __init__(self, policy: Policy[Any], row: RowView) -> None:
        self.policy = policy
        self.states: list[Any] = [policy.initial(row)]
        self.retries = 0  # how often it has refused something; going back does not change that
        self._ahead: list[tuple[int, Any]] = []  # guessed tokens and the states behind them, the next one last

    def fork(self) -> Track:
        """Return the same for a fork of the row."""
        return self.at(self.states, self.retries)

    def at(self, states: list[Any], retries: int) -> Track:
        """Return the same policy with other states, which are copied, and another number of retries."""
        other = Track.__new__(Track)
        other.policy, other.states, other.retries, other._ahead = self.policy, [*states], retries, []
        return other

    def branches(self, row: RowView) -> list[Branch]:
        """Return the branches of the policy: several to fork, none to stop."""
        branches = self.policy.branches(self.states[-1], row)
        if not isinstance(branches, list | tuple) or not all(isinstance(branch, Branch) for branch in branches):
            raise TypeError(
                f"expected a list of `Branch` from `branches` of {type(self.policy).__name__}, got {shortened(repr(branches))}. Return "
                "`[Branch(...)]` to go on, `[]` to end the piece."
            )
        return branches if isinstance(branches, list) else [*branches]

    def append(self, token_id: int) -> None:
        """Push the state after one more token: the one of a right guess, else a new one."""
        guessed, state = self._ahead.pop() if self._ahead else (-1, None)
        if guessed != token_id:
            self._ahead = []
            state = self.policy.advance(self.states[-1], token_id)
        self.states.append(state)

    def expect(self, token_ids: Sequence[int], ahead: Track) -> None:
        """Take speculated states from a copy of this track: those after `token_ids`, to be used if these tokens come next."""
        self._ahead = [*zip(token_ids, ahead.states[1:], strict=False)][::-1]

    def rewind(self, count: int, row: RowView | None) -> None:
        """Drop the states of the last `count` tokens; where this policy has requested it, `row` is the row as it was before."""
        before, self._ahead = self.states[-1], []
        self.states = self.states[: len(self.states) - count]  # a new list, see `Checkpoint`
        if row is not None:
            self.states[-1] = self.policy.rewound(before, self.states[-1], row)

    @property
    def is_spent(self) -> bool:
        """Whether the policy may refuse nothing more."""
        return self.policy.max_retries is not None and self.retries >= self.policy.max_retries

    def give_up(self, row: RowView, reason: str) -> None:
        """Have the policy raise its error, or accept what is written so far."""
        state = self.policy.give_up(self.states[-1], row, reason)
        self.states, self._ahead = [*self.states[:-1], state], []


def compose(tracks: list[Track], row: RowView) -> tuple[list[Branch], Track]:
    """Return the branches that the row takes, several to fork and none to stop, and the track of the policy that decided it.

    Raises:
        UnsupportedBranch: two policies fork at once, or what they return excludes each other; see the top of this module.

    Cost: one call of `branches` per policy; with forced tokens one more of every other policy for each of these.
    """
    if len(tracks) == 1:
        return tracks[0].branches(row), tracks[0]
    wanted = [(track.branches(row), track) for track in tracks]
    going_back = [(branches[0], track) for branches, track in wanted if len(branches) == 1 and goes_back(branches[0])]
    if going_back:
        branch, track = max(going_back, key=lambda pair: pair[0].backtrack)
        return [branch], track
    for branches, track in wanted:
        if not branches:
            return [], track
    forking = [(branches, track) for branches, track in wanted if len(branches) > 1]
    single = [(branches[0], track) for branches, track in wanted if len(branches) == 1]
    if not forking:
        branch, decider = _composed(single, tracks, row)
        return [branch], decider
    if len(forking) > 1:
        raise UnsupportedBranch("two policies of one row want to fork it at once. Give the row one that forks.")
    branches, leader = forking[0]
    return [_composed([(branch, leader), *single], tracks, row)[0] for branch in branches], leader


def _composed(wanted: list[tuple[Branch, Track]], tracks: list[Track], row: RowView) -> tuple[Branch, Track]:
    """Return the one branch that follows from one branch of each policy, and the track that decided it."""
    for branch, track in wanted:
        if goes_back(branch):  # one of several branches of a policy that forks
            return branch, track
    for branch, track in wanted:
        if branch.sample_mask is None and branch.ff_tokens:
            return _agreed(branch, track, tracks, row), track
    for branch, track in wanted:
        if branch.sample_mask is None:
            return branch, track
    return _intersected(wanted), wanted[0][1]


def goes_back(branch: Branch) -> bool:
    """Return whether a branch rewinds, or refuses tokens at the present end."""
    return bool(branch.backtrack) or branch.is_retry


def _intersected(wanted: list[tuple[Branch, Track]]) -> Branch:
    mask = TokenSet.all
    sequences: list[list[int]] = []
    temperatures = {branch.temperature for branch, _ in wanted} - {None}
    if len(temperatures) > 1:
        raise UnsupportedBranch("two policies of one row want different temperatures for the same sample")
    for branch, _ in wanted:
        if branch.sample_mask is not None:
            mask = mask & branch.sample_mask
        if branch.ff_tokens:
            if sequences:
                raise UnsupportedBranch("two policies of one row want to append sequences after the same sample")
            sequences = branch.ff_tokens
    return Branch(sample_mask=mask, ff_tokens=sequences, temperature=next(iter(temperatures), None))


def _agreed(branch: Branch, leader: Track, tracks: list[Track], row: RowView) -> Branch:
    """Return the forced tokens up to the first that the mask of another policy refuses, or where one rewinds, forks or stops.

    That another policy would wait, or force other tokens, is not looked at.

    Raises:
        UnsupportedBranch: the mask of another policy refuses the first of them.
    """
    states = [(track.policy, track.states[-1]) for track in tracks if track is not leader]
    written, token_ids = list(row.token_ids), list[int]()
    ahead = row_ahead(written, row)
    for token_id in branch.ff_tokens[0]:
        for policy, state in states:
            wanted = policy.branches(state, ahead)
            if len(wanted) != 1 or goes_back(wanted[0]):
                return Branch(ff_tokens=[token_ids]) if token_ids else Branch()
            allowed = wanted[0].sample_mask
            if allowed is not None and token_id not in allowed:
                if token_ids:
                    return Branch(ff_tokens=[token_ids])
                raise UnsupportedBranch(
                    f"{leader.policy!r} forces token {token_id}, which {policy!r} does not allow. "
                    "No text satisfies both; drop one of them."
                )
        states = [(policy, policy.advance(state, token_id)) for policy, state in states]
        token_ids.append(token_id)
        written.append(token_id)
    return Branch(ff_tokens=[token_ids])


def row_ahead(token_ids: list[int], row: RowView) -> RowView:
    """Return a view of a row with other tokens.

    Args:
        token_ids: all ids, those of the row and those that are not written yet; the caller appends to them.
        row: the row itself, from which all that is known of written tokens is read.
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
