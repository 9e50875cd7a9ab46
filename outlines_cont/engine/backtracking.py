"""Backtracking of a row: tokens that a policy refuses are excluded at their position, or, if that has no token or no retries left, the
token drawn before it. Without such a token or retries the policy that refused raises or accepts. Rewinds that exclude nothing and make no
progress are an error after 10,000, unless `max_retries` limits them.
"""

from __future__ import annotations

from typing import Any, Protocol

from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.immutable import changed
from outlines_cont.policies.branch import Branch, Exit, TokenSet
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.policies.policy_states import PolicyStates

# The most rewinds that exclude nothing, while the row does not become longer than it ever was.
_MAX_REWINDS = 10_000


class RewindableRow(RowView, Protocol):
    """A row whose tokens its policies may take back; implemented by `Row`."""

    policies: PolicyStates
    decider: int | None

    @property
    def length(self) -> int:
        """The number of tokens."""

    @property
    def deciding_policy(self) -> Policy[Any] | None:
        """The policy whose branch was taken last."""

    @property
    def excerpt(self) -> str:
        """The end of the row, for errors."""

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""


def backtrack(row: RewindableRow, branch: Branch, vocab_size: int) -> bool:
    """Rewind the row and exclude tokens as a branch requires; return False if the rest of the branch is not to be executed.

    That is if the policy that has decided has no retries left, and gives up or raises, or where its position has none left.
    """
    decider = row.decider
    if branch.is_retry and decider is not None:
        if row.policies.is_spent(decider):
            _give_up(row, decider, f"its {row.policies.retries_of(decider)} retries are spent")
            return False
        row.policies = row.policies.retried(decider, is_rejection=not branch.exclude and not branch.avoid)
    if branch.is_rewind and row.policies.policies:
        _check_progress(row, branch)
        if branch.is_retry:  # other rewinds may respell text already shown, as for a stop text within a token
            _check_open(row, branch)
    if branch.backtrack:
        row.rewind(branch.backtrack)
    return not branch.is_retry or _exclude(row, branch, vocab_size)


def retry_earlier(row: RewindableRow, reason: str) -> None:
    """Rewind to the last drawn token before the last exclusion, and exclude it; further if that position has no retries left.

    If there is no such token, the policy that has refused gives up, or raises.
    """
    exclusion, policies = row.policies.exclusions.entries[-1], row.policies.policies
    if not policies:
        raise DeadEnd(f"no token is allowed after {row.excerpt}: all of them were excluded. Exclude fewer.")
    refused = exclusion.policy % len(policies)  # a piece may be resumed with fewer policies
    most = policies[refused].max_retries_per_place
    while True:
        earlier = (i for i in range(exclusion.index - 1, row.first_open - 1, -1) if row.was_drawn(i))
        index = next(earlier, None)
        if index is None or row.policies.is_spent(refused):
            spent = f"its {row.policies.retries_of(refused)} retries are spent"
            _give_up(row, refused, reason if index is None else spent)
            return
        token_id = row.token_ids[index]
        row.decider = None
        row.rewind(row.length - index)
        row.policies = row.policies.retried(refused)
        _add_exclusion(row, frozenset((token_id,)), frozenset(), exclusion.policy)
        exclusion = row.policies.exclusions.entries[-1]
        if most is None or exclusion.retries <= most:
            return
        reason = f"{most} retries are spent at one position"


def exclude_exit(row: RewindableRow, found: Exit) -> None:
    """Exclude the tokens of an exit as the next token, because the text must not end there; it is no retry of a policy."""
    exclusions = row.policies.exclusions.with_ids(row.length, frozenset(found.token_ids.tolist()))
    row.policies = changed(row.policies, exclusions=exclusions)


def _exclude(row: RewindableRow, branch: Branch, vocab_size: int) -> bool:
    """Exclude the tokens that a branch refuses at the end of the row; return False if the row was rewound further instead."""
    excluded, avoided = (_ids(tokens, vocab_size) for tokens in (branch.exclude, branch.avoid))
    policy, policies = row.decider or 0, row.policies.policies
    _add_exclusion(row, excluded, avoided, policy)
    most = policies[policy].max_retries_per_place if policies else None
    if most is not None and row.policies.exclusions.entries[-1].retries > most:
        retry_earlier(row, f"{most} retries are spent at one position")
        return False
    return True


def _add_exclusion(row: RewindableRow, excluded: frozenset[int], avoided: frozenset[int], policy: int) -> None:
    exclusions = row.policies.exclusions.adding(row.length, excluded, avoided, policy)
    row.policies = changed(row.policies, exclusions=exclusions)


def _give_up(row: RewindableRow, policy: int, reason: str) -> None:
    """Let a policy end the row with an error, or accept what it has refused."""
    row.policies = row.policies.given_up(policy, row, reason)


def _check_progress(row: RewindableRow, branch: Branch) -> None:
    """Raise if policies rewind forever. One that excludes tokens always ends."""
    policies, length = row.policies, row.length
    if length > policies.longest:
        policies = changed(policies, num_rewinds=0, longest=length)
    if not branch.exclude and not branch.avoid:
        policies = changed(policies, num_rewinds=policies.num_rewinds + 1)
    row.policies = policies
    decider = row.deciding_policy
    has_budget = branch.is_retry and decider is not None and decider.max_retries is not None
    if policies.num_rewinds > _MAX_REWINDS and not has_budget:
        raise UnsupportedBranch(
            f"expected policies that end after some steps, but they have rewound the row {_MAX_REWINDS:,} times, and the text "
            f"was never longer than {policies.longest:,} tokens, now at {row.excerpt}; {decider!r} has decided last. Let it exclude "
            "the tokens that it refuses (`Branch.exclude`), or limit its retries (`max_retries`)."
        )


def _check_open(row: RewindableRow, branch: Branch) -> None:
    """Raise if a policy rewinds into text that a stream has shown."""
    first = row.length - branch.backtrack
    if row.piece_start <= first < row.first_open:
        raise UnsupportedBranch(
            f"expected a policy that rewinds no text that a stream has shown, got {row.deciding_policy!r}, which takes back "
            f"{branch.backtrack} tokens at {row.excerpt}, the first {row.first_open - first} of them shown. Let its `held_bytes` "
            "return how many bytes it may still take back; it is called after `advance` and before `branches`. Or pass `retract=True`."
        )


def _ids(tokens: TokenSet | None, vocab_size: int) -> frozenset[int]:
    if tokens is None:
        return frozenset()
    token_ids = tokens.few_ids(vocab_size, vocab_size)
    assert token_ids is not None  # a set has no more words than there are tokens
    return frozenset(token_ids.tolist())
