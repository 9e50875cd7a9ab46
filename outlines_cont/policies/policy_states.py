"""`PolicyStates`: the policies of one row with their states, one after each token of the piece, and the tokens that they have excluded,
as a value: the states are a linked list, so that to go back is to take an older one. It also takes over the states after guessed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from outlines_cont.immutable import changed, shallow_copy
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.compose import Steering, branches_of, compose, row_ahead
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.state.row import NO_EXCLUSIONS, Exclusions, WrittenPiece

States = tuple[Any, ...]
"""The state of each policy after a token."""
_Stack = tuple[States, Any]
"""The states after a token, and those before it; None before the first."""


class PolicyStates:
    """The policies of one row, their states, and what they have excluded. Immutable.

    Attributes:
        policies: the policies.
        exclusions: the tokens that may not be drawn again, by position.
        rejections: how often the piece was rewound because a policy refused it, without excluding a token.
        num_rewinds: how often it was rewound since the row was longer than ever before.
        longest: that length.
    """

    def __init__(self, written: WrittenPiece | None = None) -> None:
        """Have no policies; `written` has the retries and exclusions of earlier runs of the piece."""
        self.policies: tuple[Policy[Any], ...] = ()
        self.exclusions: Exclusions = NO_EXCLUSIONS if written is None else written.exclusions
        self.rejections = 0 if written is None else written.rejections
        self.num_rewinds = self.longest = 0
        self._earlier = 0 if written is None else written.retries  # retries that belong to none of the policies
        self._retries: tuple[int, ...] = () if written is None else written.policy_retries  # of each policy
        self._stack: _Stack = (), None
        self._guesses: Any = None  # (token id, states after it, guesses after it), or None

    def begun(self, policies: Sequence[Policy[Any]], row: RowView) -> Self:
        """Return these with policies, whose states are advanced over the tokens that the piece of a row has already."""
        written = row.token_ids[row.piece_start :]
        begin = row_ahead([*row.token_ids[: row.piece_start]], row) if written else row
        other = changed(
            self, policies=tuple(policies), _stack=(tuple([policy.initial(begin) for policy in policies]), None)
        )
        if len(self._retries) == len(policies):
            other._earlier -= sum(self._retries)
        else:
            other._retries = (0,) * len(policies)
        for token_id in written:
            other = other.advanced(token_id)
        return other

    @property
    def states(self) -> States:
        """The state of each policy after the last token."""
        return self._stack[0]

    @property
    def steering(self) -> list[Steering]:
        """Each policy with its state."""
        return [*zip(self.policies, self._stack[0], strict=True)]

    # -- what they say -------------------------------------------------------------------------------------------------

    def branches(self, row: RowView) -> tuple[list[Branch], int]:
        """Return the branch to take, none if a policy stops the row, and the index of the policy that has decided."""
        if len(self.policies) == 1:
            return branches_of(self.policies[0], self._stack[0][0], row), 0
        return compose(self.steering, row)

    def at_end(self, row: RowView, *, is_stopped: bool = False) -> tuple[Branch, int] | None:
        """Return the branch of a policy that rewinds because the text must not end here, with its index; None if it may end.

        Where it ends before a stop text (`is_stopped`), policies that judge whole texts alone are not asked.
        """
        for index, (policy, state) in enumerate(self.steering):
            if is_stopped and policy.judges_whole_texts:
                continue
            branch = policy.at_end(state, row)
            if branch is not None:
                return branch, index
        return None

    def stop(self, index: int) -> str | int | None:
        """Return the stop text with which a policy has ended the piece, if it did."""
        return self.policies[index].stop(self.states[index])

    @property
    def held_bytes(self) -> int:
        """How many trailing bytes of the piece may yet be rewound."""
        held = 0
        for policy, state in zip(self.policies, self._stack[0], strict=True):
            held = max(held, policy.held_bytes(state))
        return held

    def wishes(self, row: RowView) -> list[str]:
        """Return the text that each policy requires next, for errors; none for policies without a requirement."""
        return [wish for policy, state in self.steering if (wish := policy.wish(state, row))]

    def hints(self, row: RowView) -> list[int]:
        """Return the next token at which each policy hints, if it does."""
        found = [policy.hint(state, row) for policy, state in self.steering]
        return [token_id for token_id in found if token_id is not None]

    # -- tokens --------------------------------------------------------------------------------------------------------

    def advanced(self, token_id: int) -> Self:
        """Return these after one more token: the states of the guess if it was this token, else new ones."""
        if not self.policies:
            return self
        guess = self._guesses
        if guess is not None and guess[0] == token_id:
            states, guesses = guess[1], guess[2]
        else:
            guesses, policies, before = None, self.policies, self._stack[0]
            if len(policies) == 1:  # as in most rows, for every token
                states = (policies[0].advance(before[0], token_id),)
            else:
                pairs = zip(policies, before, strict=True)
                states = tuple([policy.advance(state, token_id) for policy, state in pairs])
        other = shallow_copy(self)
        other._stack, other._guesses = (states, self._stack), guesses
        return other

    def expecting(self, token_ids: Sequence[int], ahead: PolicyStates | None = None) -> Self:
        """Return these with the states after guessed `token_ids`, the last ones of `ahead`, to be used if these tokens follow."""
        guesses: Any = None
        stack = None if ahead is None else ahead._stack
        for token_id in reversed(token_ids):
            assert stack is not None
            guesses, stack = (token_id, stack[0], guesses), stack[1]
        return changed(self, _guesses=guesses)

    def rewound(self, count: int, row: RowView, decider: int | None) -> Self:
        """Return these without the last `count` tokens; `row` is the row as it was before, `decider` the policy that has requested it."""
        stack = self._stack
        for _ in range(count if self.policies else 0):
            stack = stack[1]
        other = changed(self, _stack=stack, _guesses=None)
        other.exclusions = self.exclusions.until(len(row.token_ids) - count + 1)
        if decider is not None:
            policy = self.policies[decider]
            other = other._with_state(decider, policy.rewound(self.states[decider], stack[0][decider], row))
        return other

    def _with_state(self, index: int, state: Any) -> Self:
        """Return the states with another one of a policy after the last token."""
        states = (*self.states[:index], state, *self.states[index + 1 :])
        return changed(self, _stack=(states, self._stack[1]), _guesses=None)

    # -- retries and exclusions ----------------------------------------------------------------------------------------

    @property
    def retries(self) -> int:
        """How often the piece was rewound because a policy refused its tokens."""
        return self._earlier + sum(self._retries)

    @property
    def retries_of_each(self) -> tuple[int, ...]:
        """The same for each policy, as far as it is known; empty without any."""
        return self._retries if any(self._retries) else ()

    def retries_of(self, index: int) -> int:
        """Return how often a policy has refused tokens; a rewind does not change that."""
        return self._retries[index]

    def is_spent(self, index: int) -> bool:
        """Return whether a policy has no retries left."""
        most = self.policies[index].max_retries
        return most is not None and self._retries[index] >= most

    def retried(self, index: int, *, is_rejection: bool = False) -> Self:
        """Return these after a policy has refused tokens once more; `is_rejection`: without excluding one."""
        retries = (*self._retries[:index], self._retries[index] + 1, *self._retries[index + 1 :])
        return changed(self, _retries=retries, rejections=self.rejections + is_rejection)

    def given_up(self, index: int, row: RowView, reason: str) -> Self:
        """Return the states in which a policy accepts the text that it has refused; the policy may raise its error instead."""
        state = self.policies[index].give_up(self.states[index], row, reason)
        return changed(self._with_state(index, state), exclusions=self.exclusions.until(len(row.token_ids)))

    def left(self, mask: TokenSet, index: int) -> TokenSet:
        """Return the tokens of a mask that are not excluded as token `index`; the mask itself if none are."""
        exclusion = self.exclusions.at(index)
        if exclusion is None:
            return mask
        allowed = mask & ~TokenSet.of(exclusion.excluded)
        return (allowed & ~TokenSet.of(exclusion.avoided)) or allowed
