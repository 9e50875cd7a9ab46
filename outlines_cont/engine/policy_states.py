"""`PolicyStates`: the policies of one row with their states (one `PolicyState` each), and backtracking: refused tokens are excluded at
their position, or, if that has no token or no retries left, the token drawn before it. Without such a token or retries the policy that
refused raises or accepts. Rewinds that exclude nothing and make no progress are an error after 10,000, unless `max_retries` limits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.immutable import shallow_copy, with_attributes
from outlines_cont.policies.branch import Branch, Exit, TokenSet
from outlines_cont.policies.compose import PolicyState, compose, row_ahead
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.state.row import NO_EXCLUSIONS, Exclusion, Exclusions

# The most rewinds that exclude nothing, while the row does not become longer than it ever was.
_MAX_REWINDS = 10_000


class RewindableRow(RowView, Protocol):
    """A row that its policies may rewind; see `Row`."""

    @property
    def excerpt(self) -> str:
        """The end of the row, for errors."""

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""


SavedPolicies = tuple[dict[str, Any], list[tuple[PolicyState, list[Any], int, int]]]
"""The policies of a row as they were: their attributes, and of each state its stack, with its length, and its retries."""


class PolicyStates:
    """The policies of one row, their states, and what they have excluded.

    Attributes:
        states: the policies, each with its state after every token of the piece.
        decider: the one whose branch was taken last.
        exclusions: the tokens that may not be drawn again, by position.
        rejections: how often the piece was rewound because a policy refused it, without excluding a token.
    """

    def __init__(
        self,
        retries: int = 0,
        exclusions: Exclusions = NO_EXCLUSIONS,
        rejections: int = 0,
        policy_retries: Sequence[int] = (),
    ) -> None:
        """Begin without policies; earlier runs of the piece had `retries` rewinds, `policy_retries` of each policy if that is known, and
        excluded `exclusions`.
        """
        self.states: list[PolicyState] = []
        self.decider: PolicyState | None = None
        self.exclusions = exclusions
        self.rejections = rejections
        self._retries, self._policy_retries = retries, policy_retries
        self._num_rewinds, self._longest = 0, 0  # since the row was longer than ever before, and that length

    def start(self, policies: Sequence[Policy[Any]], row: RowView) -> None:
        """Set the policies of a row, and advance their states over the tokens that its piece has already."""
        written = row.token_ids[row.piece_start :]
        begun = row_ahead([*row.token_ids[: row.piece_start]], row) if written else row
        self.states = [PolicyState(policy, begun) for policy in policies]
        for token_id in written:
            self.append(token_id)
        if len(self._policy_retries) == len(self.states):
            self._retries -= sum(self._policy_retries)
            for state, retries in zip(self.states, self._policy_retries, strict=True):
                state.retries = retries

    def fork(self) -> Self:
        """Return the same for a fork of the row."""
        other = shallow_copy(self)
        other.states = [state.fork() for state in self.states]
        return other

    def checkpoint(self) -> SavedPolicies:
        """Return the policies as they are now, for `restored`; lists of states may grow meanwhile."""
        return self.__dict__.copy(), [(state, state.stack, len(state.stack), state.retries) for state in self.states]

    @classmethod
    def restored(cls, saved: SavedPolicies) -> PolicyStates:
        """Return policies as they were saved, however often."""
        policies = with_attributes(cls, saved[0])
        policies.states = [state.at(stack[:length], retries) for state, stack, length, retries in saved[1]]
        return policies

    @property
    def retries(self) -> int:
        """How often the piece was rewound because a policy refused its tokens."""
        return self._retries + sum(state.retries for state in self.states)

    @property
    def retries_of_each(self) -> tuple[int, ...]:
        """The same for each policy, as far as it is known; empty without any."""
        found = tuple(state.retries for state in self.states)
        return found if any(found) else ()

    @property
    def held_bytes(self) -> int:
        """How many trailing bytes of the piece may yet be rewound."""
        return max((state.policy.held_bytes(state.stack[-1]) for state in self.states), default=0)

    def wishes(self, row: RowView) -> list[str]:
        """Return the text that each policy requires next, for errors; none for policies without a requirement."""
        return [wish for state in self.states if (wish := state.policy.wish(state.stack[-1], row))]

    def has_hint(self, row: RowView) -> bool:
        """Return whether a policy hints at the next token."""
        return any(state.policy.hint(state.stack[-1], row) is not None for state in self.states)

    # -- branches ------------------------------------------------------------------------------------------------------

    def branches(self, row: RowView) -> list[Branch]:
        """Return the branch to take; none if a policy, the `decider`, stops the row."""
        states = self.states
        if len(states) == 1:
            self.decider = states[0]
            return states[0].branches(row)
        branches, self.decider = compose(states, row)
        return branches

    def branches_of(self, row: RowView) -> Callable[[], None]:
        """Return a function that computes the branches of every policy for the row as it is now, also when it has changed."""
        ahead, tops = row_ahead([*row.token_ids], row), [(state.policy, state.stack[-1]) for state in self.states]

        def compute() -> None:
            for policy, top in tops:
                policy.branches(top, ahead)

        return compute

    def at_end(self, row: RewindableRow, *, is_stopped: bool = False) -> Branch | None:
        """Return the branch of a policy that rewinds because the text must not end here; None if it may end.

        Where it ends before a stop text (`is_stopped`), policies that judge whole texts alone are not asked.
        """
        for state in self.states:
            if is_stopped and state.policy.judges_whole_texts:
                continue
            branch = state.policy.at_end(state.stack[-1], row)
            if branch is not None:
                if not branch.is_rewind:
                    raise UnsupportedBranch(
                        f"expected None or a branch that rewinds from `at_end` at {row.excerpt}, got {branch!r} of {state.policy!r}. "
                        "Let it backtrack, or exclude tokens."
                    )
                self.decider = state
                return branch
        return None

    def append(self, token_id: int) -> None:
        """Advance every policy by a token."""
        for state in self.states:
            state.append(token_id)

    def rewind(self, count: int, row: RowView) -> None:
        """Drop the states of the last `count` tokens; `row` is the row as it was before."""
        for state in self.states:
            state.rewind(count, row if state is self.decider else None)
        self.exclusions = self.exclusions.until(len(row.token_ids) - count + 1)

    # -- backtracking --------------------------------------------------------------------------------------------------

    def backtrack(self, branch: Branch, row: RewindableRow, vocab_size: int) -> bool:
        """Rewind the row and exclude tokens as a branch requires; return False if the rest of the branch is not to be executed.

        That is where the decider has no retries left, and gives up or raises, or where its position has none left.
        """
        if branch.is_retry and self.decider is not None:
            if self.decider.is_spent:
                self._give_up(self.decider, row, f"its {self.decider.retries} retries are spent")
                return False
            self.decider.retries += 1
            self.rejections += not branch.exclude and not branch.avoid
        if branch.is_rewind and self.states:
            self._check_progress(branch, row)
            if branch.is_retry:  # other rewinds may respell text already shown, as for a stop text within a token
                self._check_open(branch, row)
        if branch.backtrack:
            row.rewind(branch.backtrack)
        return not branch.is_retry or self._exclude(branch, row, vocab_size)

    def _check_progress(self, branch: Branch, row: RewindableRow) -> None:
        """Raise if policies rewind forever. One that excludes tokens always ends."""
        length = len(row.token_ids)
        if length > self._longest:
            self._num_rewinds, self._longest = 0, length
        if not branch.exclude and not branch.avoid:
            self._num_rewinds += 1
        decider = self.decider.policy if self.decider is not None else None
        has_budget = branch.is_retry and decider is not None and decider.max_retries is not None
        if self._num_rewinds > _MAX_REWINDS and not has_budget:
            raise UnsupportedBranch(
                f"expected policies that end after some steps, but they have rewound the row {_MAX_REWINDS:,} times, and the text "
                f"was never longer than {self._longest:,} tokens, now at {row.excerpt}; {decider!r} has decided last. Let it exclude "
                "the tokens that it refuses (`Branch.exclude`), or limit its retries (`max_retries`)."
            )

    def _check_open(self, branch: Branch, row: RewindableRow) -> None:
        """Raise if a policy rewinds into text that a stream has shown."""
        first = len(row.token_ids) - branch.backtrack
        if row.piece_start <= first < row.first_open:
            decider = self.decider.policy if self.decider is not None else None
            raise UnsupportedBranch(
                f"expected a policy that rewinds no text that a stream has shown, got {decider!r}, which takes back "
                f"{branch.backtrack} tokens at {row.excerpt}, the first {row.first_open - first} of them shown. Let its `held_bytes` "
                "return how many bytes it may still take back; it is called after `advance` and before `branches`. Or pass `retract=True`."
            )

    def _exclude(self, branch: Branch, row: RewindableRow, vocab_size: int) -> bool:
        """Exclude the tokens that a branch refuses at the end of the row; return False if the row was rewound further instead."""
        excluded, avoided = (_ids(tokens, vocab_size) for tokens in (branch.exclude, branch.avoid))
        policy = next((i for i, state in enumerate(self.states) if state is self.decider), 0)
        self.exclusions = self.exclusions.adding(len(row.token_ids), excluded, avoided, policy)
        most = self.states[policy].policy.max_retries_per_place if self.states else None
        if most is not None and self.exclusions.entries[-1].retries > most:
            self.retry_earlier(row, f"{most} retries are spent at one position")
            return False
        return True

    def left(self, mask: TokenSet, index: int) -> TokenSet:
        """Return the tokens of a mask that are not excluded as token `index`; the mask itself if none are."""
        exclusion = self.exclusions.at(index)
        if exclusion is None:
            return mask
        allowed = mask & ~TokenSet.of(exclusion.excluded)
        return (allowed & ~TokenSet.of(exclusion.avoided)) or allowed

    def exclude_exit(self, index: int, found: Exit) -> None:
        """Exclude the tokens of an exit as token `index`, because the text must not end there; it is no retry of a policy."""
        self.exclusions = self.exclusions.with_ids(index, frozenset(found.token_ids.tolist()))

    def retry_earlier(self, row: RewindableRow, reason: str) -> None:
        """Rewind to the last drawn token before the last exclusion, and exclude it; further if that position has no retries left.

        If there is no such token, the policy that has refused gives up, or raises.
        """
        exclusion: Exclusion = self.exclusions.entries[-1]
        if not self.states:
            raise DeadEnd(f"no token is allowed after {row.excerpt}: all of them were excluded. Exclude fewer.")
        state = self.states[exclusion.policy % len(self.states)]  # a piece may be resumed with fewer policies
        most = state.policy.max_retries_per_place
        while True:
            earlier = (i for i in range(exclusion.index - 1, row.first_open - 1, -1) if row.was_drawn(i))
            index = next(earlier, None)
            if index is None or state.is_spent:
                self._give_up(state, row, reason if index is None else f"its {state.retries} retries are spent")
                return
            token_id = row.token_ids[index]
            self.decider = None
            row.rewind(len(row.token_ids) - index)
            state.retries += 1
            self.exclusions = self.exclusions.adding(index, frozenset((token_id,)), frozenset(), exclusion.policy)
            exclusion = self.exclusions.entries[-1]
            if most is None or exclusion.retries <= most:
                return
            reason = f"{most} retries are spent at one position"

    def _give_up(self, state: PolicyState, row: RewindableRow, reason: str) -> None:
        """Let a policy end the row with an error, or accept what it has refused."""
        state.give_up(row, reason)
        self.exclusions = self.exclusions.until(len(row.token_ids))


def _ids(tokens: TokenSet | None, vocab_size: int) -> frozenset[int]:
    if tokens is None:
        return frozenset()
    token_ids = tokens.few_ids(vocab_size, vocab_size)
    assert token_ids is not None  # a set has no more words than there are tokens
    return frozenset(token_ids.tolist())
