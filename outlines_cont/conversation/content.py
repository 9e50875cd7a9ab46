"""`Content`: the immutable content of a conversation, which its forks and marks share: a state of one row, how many of its last tokens are
pending, and the constraint on what follows. Text, ids and states are appended, and tokens removed, by the operations of the state.

`ConversationConstraint`: a DFA simulation of a token FSM on the tokens from some index on (`TokenNotAllowed` where it fails), up to an end
of text, after which every token is allowed. Only new tokens are read; after a change of earlier ones, all again. Of that of a loaded file
only the first index is known: sampling raises `ConstraintRequired` until it is set again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from fsm import TokenFSM
from fsm.errors import stacklevel_of_user
from outlines_cont.errors import (
    ConstraintRequired,
    ConstraintWarning,
    EmptyPrompt,
    ModelMismatch,
    OptionError,
    PromptTypeError,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import Tokens, checked_given, prompt_ids, prompt_row


@dataclass(frozen=True, slots=True, eq=False)
class ConversationConstraint:
    """A constraint on the tokens from `start` on, with the state of its token FSM. Immutable, so that forks and marks share it."""

    start: int  # index of its first token
    token_fsm: TokenFSM | None = None  # None if it is not known, in a loaded conversation
    read: tuple[int, ...] = ()  # the tokens that were read so far
    state: int | None = 0  # of the token FSM after them; None after an end of text, after which every token is allowed

    @property
    def mask(self) -> TokenSet:
        """The token ids that may be sampled next, with ends of text where the text may end; `ConstraintRequired` if not known."""
        fsm = self._known
        return TokenSet.all if self.state is None else TokenSet.of_bitmask(fsm.bitmask(self.state))

    @property
    def is_accepting(self) -> bool:
        """Whether the text is in the language, or an end of text was read; `ConstraintRequired` if not known."""
        fsm = self._known
        return self.state is None or fsm.is_accepting(self.state)

    def after(self, token_ids: Sequence[int], eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint after `token_ids`, all tokens of the conversation; those from `start` on are constrained.

        Raises `fsm.TokenNotAllowed` if a token breaks it.

        Cost: the new tokens, or all of them if earlier ones have changed.
        """
        fsm = self.token_fsm
        if fsm is None:
            return self
        piece = tuple(token_ids[self.start :])
        known = self.read if piece[: len(self.read)] == self.read else ()
        state = self.state if known else fsm.initial_state
        for token_id in piece[len(known) :]:
            if state is not None:
                is_end = token_id in eos_token_ids and fsm.is_accepting(state)
                state = None if is_end else fsm.next_state(state, token_id)
        return replace(self, read=piece, state=state)

    @property
    def _known(self) -> TokenFSM:
        if self.token_fsm is None:
            raise ConstraintRequired(
                f"expected the constraint from token {self.start} on with which this conversation was saved: a file does not have it. "
                "Call `constrain(expression)` once more, which reads the text from there, or `constrain(None)` to lift it.",
                self.start,
            )
        return self.token_fsm


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The immutable content of a conversation, which forks and marks share."""

    state: SequenceState  # of one row
    num_pending: int = 0  # how many of its last tokens were not fed
    constraint: ConversationConstraint | None = None  # on what follows; None for none
    # index of the first token whose keys and values are not exactly those of a fresh run; None if all are
    approximate_from: int | None = None

    @classmethod
    def of(cls, row: StateRow, model: LanguageModel, constraint: ConversationConstraint | None = None) -> Content:
        """Return a content that begins with a row."""
        return cls(SequenceState(model, ((row,),), row.stream.seed), row.pending, constraint)

    @property
    def row(self) -> StateRow:
        """The row of the state."""
        return self.state.rows[0][0]

    @property
    def exact_state(self) -> SequenceState:
        """The state without keys and values that are approximate, as a value of its own."""
        row, first = self.row, self.approximate_from
        if first is not None:
            row = replace(row, kv=row.kv[:first] if row.kv is not None and first else None, logits=None)
        return replace(self.state, rows=((row,),), seed=row.stream.seed)

    def with_row(self, row: StateRow) -> Content:
        """Return the content with another row of the same tokens."""
        state = SequenceState(self.state.model, ((row,),), self.state.seed)
        return Content(state, self.num_pending, self.constraint, self.approximate_from)

    def prompted(self, prompt: str | Tokens | list[int] | SequenceState) -> Content:
        """Return the content with text, ids, or the tokens of a state after it; see `Conversation.prompt`."""
        state, row, model = self.state, self.row, self.state.model
        if isinstance(prompt, SequenceState):
            other = only_row(prompt, model)
            if not row.token_ids:
                return Content.of(replace(other, stream=row.stream), model, self.constraint)._checked()
        elif not row.token_ids:
            prompt = Content.of(_first_row(prompt, model, row.stream), model).state
        return self.longer(state if prompt == [] else state.append(prompt))

    def longer(self, state: SequenceState) -> Content:
        """Return the content with a state of more tokens, which are pending; `fsm.TokenNotAllowed` if the constraint refuses one."""
        added = len(state.rows[0][0].token_ids) - len(self.row.token_ids)
        return Content(state, self.num_pending + added, self.constraint, self.approximate_from)._checked()

    def without(self, start: int, stop: int, kv: RowKV | None = None) -> Content:
        """Return the content without some tokens; `kv` are approximate keys and values; None recomputes those of later tokens.

        A constraint is lifted, with a `ConstraintWarning`, where nothing is left from a position before its beginning on.
        """
        length, first, constraint = len(self.row.token_ids), self.approximate_from, self.constraint
        state = self.state.tokens[:start]
        if stop < length:
            state = state.append(self.state.tokens[stop:])
        if kv is not None:
            state = replace(state, rows=((replace(state.rows[0][0], kv=kv),),))
            first = start if first is None else min(first, start)
        if constraint is not None and start < constraint.start:
            begin = max(constraint.start - (stop - start), start)
            constraint = replace(constraint, start=begin) if stop < length else None
        num_dropped = max(stop - max(start, length - self.num_pending), 0)
        if constraint is None and self.constraint is not None:
            warnings.warn(
                f"the constraint from token {self.constraint.start} on was lifted, as the conversation was rewound to token {start}, "
                "before its beginning. Call `constrain` for the text that follows, or before the rewind `constrain(None)`, to lift it "
                "without a warning.",
                ConstraintWarning,
                stacklevel=stacklevel_of_user(),
            )
        return Content(state, self.num_pending - num_dropped, constraint, first)._checked()

    def _checked(self) -> Content:
        """Return the content after its constraint has read the tokens; approximate are only keys and values that it has."""
        row, constraint, first = self.row, self.constraint, self.approximate_from
        if constraint is None and first is None:
            return self
        if constraint is not None:
            constraint = constraint.after(row.token_ids, self.state.model.eos_token_ids)
        is_approximate = first is not None and first < row.cached
        return Content(self.state, self.num_pending, constraint, first if is_approximate else None)


def checked_ids(prompt: int | Iterable[int], vocab_size: int) -> list[int]:
    """Return ids that were given as one, a sequence, or an array; `PromptTypeError` for something else, `OptionError` out of range."""
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError
        items: Any = [prompt] if hasattr(prompt, "__index__") and not getattr(prompt, "shape", ()) else prompt
        token_ids = [index(item) for item in items]
    except TypeError:
        raise PromptTypeError(
            f"expected a text, token ids or a SequenceState as a prompt, got {type(prompt).__name__}"
        ) from None
    odd = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if odd is not None:
        raise OptionError(f"expected token ids from 0 to {vocab_size - 1} as a prompt, got {odd}", "prompt")
    return token_ids


def _first_row(prompt: str | Tokens | list[int], model: LanguageModel, stream: RandomStream) -> StateRow:
    """Return the row of the first prompt of a conversation; start tokens are put before a text."""
    if isinstance(prompt, list):
        return prompt_row(prompt, model, stream)
    token_ids, num_start = prompt_ids(checked_given(prompt, model), model)
    text = prompt if isinstance(prompt, str) else prompt.text
    if text and not token_ids:
        raise EmptyPrompt(f"expected a text that encodes to one token or more, got {text[:40]!r}")
    return prompt_row(token_ids, model, stream, num_start)


def only_row(state: SequenceState, model: LanguageModel) -> StateRow:
    """Return the row of a state of `model`; `OptionError` for another number of rows, or a row that has failed."""
    if state.model is not model:
        raise ModelMismatch(
            f"expected a state of the executor's model {model!r}, got one of {state.model!r}. "
            "Prompt its text instead: `conversation.prompt(str(state))`."
        )
    if len(state) != 1:
        raise OptionError(
            f"expected a state of one row, got one of {len(state)}. `state.take([(b, s)])` picks one.", "state"
        )
    row = state.rows[0][0]
    if row.error is not None:
        raise OptionError(f"expected a state that has not failed, got one with {row.error!r}", "state")
    return row
