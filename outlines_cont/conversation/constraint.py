"""`ConversationConstraint`: the constraint on a conversation from some token on: a DFA simulation of its token FSM (`TokenNotAllowed` where
it fails), up to an end of text, after which every token is allowed. Only new tokens are read; after a change of earlier ones, all again. Of
that of a loaded file only the first token is known: sampling raises `ConstraintRequired` until it is set again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlines_cont.errors import ConstraintRequired
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.constraint import Constraint


@dataclass(frozen=True, slots=True, eq=False)
class ConversationConstraint:
    """A constraint on the tokens from `start` on, with the state of its token FSM. Immutable, so that forks and marks share it."""

    start: int  # index of its first token
    constraint: Constraint | None = None  # None if it is not known, in a loaded conversation
    read: tuple[int, ...] = ()  # the tokens that were read so far
    state: int | None = 0  # of the token FSM after them; None after an end of text, after which every token is allowed

    @property
    def mask(self) -> TokenSet:
        """The token ids that may be sampled next, with ends of text where the text may end; `ConstraintRequired` if not known."""
        fsm = self._known.token_fsm
        return TokenSet.all if self.state is None else TokenSet.of_bitmask(fsm.bitmask(self.state))

    @property
    def is_accepting(self) -> bool:
        """Whether the text is in the language, or an end of text was read; `ConstraintRequired` if not known."""
        fsm = self._known.token_fsm
        return self.state is None or fsm.is_accepting(self.state)

    def after(self, token_ids: Sequence[int], start: int, eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint after `token_ids`, all tokens of the conversation; those from `start` on are constrained.

        Raises `fsm.TokenNotAllowed` if a token breaks it.

        Cost: the new tokens, or all of them if earlier ones have changed.
        """
        if self.constraint is None:
            return replace(self, start=start)
        piece, fsm = tuple(token_ids[start:]), self.constraint.token_fsm
        known = self.read if piece[: len(self.read)] == self.read else ()
        state = self.state if known else fsm.initial_state
        for token_id in piece[len(known) :]:
            if state is not None:
                is_end = token_id in eos_token_ids and fsm.is_accepting(state)
                state = None if is_end else fsm.next_state(state, token_id)
        return replace(self, start=start, read=piece, state=state)

    @property
    def _known(self) -> Constraint:
        if self.constraint is None:
            raise ConstraintRequired(
                f"expected the constraint from token {self.start} on with which this conversation was saved: a file does not have it. "
                "Call `constrain(expression)` once more, which reads the text from there, or `constrain(None)` to lift it.",
                self.start,
            )
        return self.constraint
