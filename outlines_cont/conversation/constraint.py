"""`ConversationConstraint`: the constraint on a conversation from some token on: a DFA simulation of its token FSM, up to an end of
text, after which every token is allowed. Only new tokens are read; after a change of earlier ones, all are read again.
`UnknownConstraint` is that of a loaded file: only its first token is known, and sampling raises `ConstraintRequired` until it is set
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from outlines_cont.errors import ConstraintRequired
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.constraint import Constraint


@dataclass(frozen=True, slots=True, eq=False)
class ConversationConstraint:
    """A constraint on the tokens from `start` on, with the state of its token FSM. Immutable, so that forks and marks share it.

    Attributes:
        read: the tokens that were read so far.
        state: of the token FSM after them; None after an end of text, after which every token is allowed.
    """

    constraint: Constraint
    start: int
    read: tuple[int, ...]
    state: int | None

    @classmethod
    def at(cls, constraint: Constraint, start: int) -> ConversationConstraint:
        """Return the constraint on what follows the first `start` tokens."""
        return cls(constraint, start, (), constraint.token_fsm.initial_state)

    @property
    def is_over(self) -> bool:
        """Whether an end of text was read."""
        return self.state is None

    @property
    def mask(self) -> TokenSet:
        """The token ids that may be sampled next, with ends of text where the text may end; all after an end of text."""
        if self.state is None:
            return TokenSet.all
        return TokenSet.of_bitmask(self.constraint.token_fsm.bitmask(self.state))

    @property
    def is_accepting(self) -> bool:
        """Whether the text since `start` is in the language, or an end of text was read."""
        return self.state is None or self.constraint.token_fsm.is_accepting(self.state)

    def after(self, token_ids: Sequence[int], start: int, eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint after `token_ids`, all tokens of the conversation; those from `start` on are constrained.

        Raises `fsm.TokenNotAllowed` if a token breaks it.

        Cost: the new tokens, or all of them if earlier ones have changed.
        """
        piece = tuple(token_ids[start:])
        known = self.read if piece[: len(self.read)] == self.read else ()
        state = self.state if known else self.constraint.token_fsm.initial_state
        fsm = self.constraint.token_fsm
        for token_id in piece[len(known) :]:
            if state is not None:
                is_end = token_id in eos_token_ids and fsm.is_accepting(state)
                state = None if is_end else fsm.next_state(state, token_id)
        return replace(self, start=start, read=piece, state=state)


@dataclass(frozen=True, slots=True)
class UnknownConstraint:
    """A constraint of which only `start`, the index of its first token, is known: no token can be sampled, any can be prompted.

    `is_over` is False, because only constraints that have not ended are saved.
    """

    start: int
    is_over = False

    @property
    def mask(self) -> NoReturn:
        """Raise `ConstraintRequired`."""
        raise self._error()

    @property
    def is_accepting(self) -> NoReturn:
        """Raise `ConstraintRequired`."""
        raise self._error()

    def after(self, token_ids: Sequence[int], start: int, eos_token_ids: frozenset[int]) -> UnknownConstraint:
        """Return the same with another beginning; the tokens are read when the constraint is set again."""
        return UnknownConstraint(start)

    def _error(self) -> ConstraintRequired:
        return ConstraintRequired(
            f"expected the constraint from token {self.start} on with which this conversation was saved: a file does not have it. "
            "Call `constrain(expression)` once more, which reads the text from there, or `constrain(None)` to lift it.",
            self.start,
        )
