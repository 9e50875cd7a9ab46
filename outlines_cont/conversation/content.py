"""`Content`: what a conversation holds, as an immutable value that its forks and marks share: a state of one row, how many of its tokens
were fed (the rest is the pending request), and the constraint on what follows. The state appends, joins and cuts tokens.

`ConversationConstraint`: a token FSM in the state to which the tokens from some index on lead (`TokenNotAllowed` where they fail), up to
an end of text, after which every token is allowed. Of that of a loaded file only the index is known: `ConstraintRequired` until it is
set again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from fsm import Expression, TokenFSM
from fsm.errors import stacklevel_of_user
from fsm.expression import lift
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
from outlines_cont.policies.constraint import Constraint
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import Tokens, checked_given, prompt_ids, prompt_row


@dataclass(frozen=True, slots=True, eq=False)
class ConversationConstraint:
    """A constraint on the tokens from `start` on, with the state of its token FSM after those that were read."""

    start: int = 0
    token_fsm: TokenFSM | None = None  # None if there is none, or it is not known, in a loaded conversation
    state: int | None = None  # None if every token is allowed: without a constraint, and after an end of text

    @property
    def mask(self) -> TokenSet:
        """The token ids that may be sampled next, with ends of text where the text may end; `ConstraintRequired` if not known."""
        return TokenSet.all if self.state is None else TokenSet.of_bitmask(self._known.bitmask(self.state))

    @property
    def is_accepting(self) -> bool:
        """Whether the text is in the language, or may be any; `ConstraintRequired` if not known."""
        return self.state is None or self._known.is_accepting(self.state)

    @property
    def is_lost(self) -> bool:
        """Whether it is that of a loaded conversation, and was not set again."""
        return self.token_fsm is None and self.state is not None

    def after(self, token_ids: Sequence[int], eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint after more tokens; `fsm.TokenNotAllowed` if one breaks it."""
        fsm, state = self.token_fsm, self.state
        for token_id in token_ids:
            if fsm is None or state is None:
                break
            is_end = token_id in eos_token_ids and fsm.is_accepting(state)
            state = None if is_end else fsm.next_state(state, token_id)
        return replace(self, state=state)

    def anew(self, start: int, token_ids: Sequence[int], eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint from `start` on after all `token_ids` of a conversation. Cost: those from `start` on."""
        state = self.state if self.token_fsm is None else self.token_fsm.initial_state
        return replace(self, start=start, state=state).after(token_ids[start:], eos_token_ids)

    @property
    def _known(self) -> TokenFSM:
        if self.token_fsm is None:
            raise ConstraintRequired(
                f"expected the constraint from token {self.start} on with which this conversation was saved: a file does not have it. "
                "Call `constrain(expression)` once more, which reads the text from there, or `constrain(None)` to lift it.",
                self.start,
            )
        return self.token_fsm


_FREE = ConversationConstraint()


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The immutable content of a conversation."""

    state: SequenceState  # of one row
    num_fed: int = 0  # how many of its tokens were fed; the others are pending
    constraint: ConversationConstraint = _FREE  # on what follows
    # index of the first token whose keys and values are not exactly those of a fresh run; None if all are
    approximate_from: int | None = None

    @classmethod
    def of(cls, row: StateRow, model: LanguageModel, constrained_from: int | None = None) -> Content:
        """Return a content that begins with a row; `constrained_from` is where a constraint began that is not known."""
        constraint = _FREE if constrained_from is None else ConversationConstraint(constrained_from, state=0)
        return cls(SequenceState(model, ((row,),), row.stream.seed), len(row.token_ids) - row.pending, constraint)

    @property
    def row(self) -> StateRow:
        """The row of the state."""
        return self.state.rows[0][0]

    @property
    def exact_state(self) -> SequenceState:
        """The state without keys and values that are approximate."""
        row, first = self.row, self.approximate_from
        if first is None:
            return self.state
        return _with_row(
            self.state, replace(row, kv=row.kv[:first] if row.kv is not None and first else None, logits=None)
        )

    def with_row(self, row: StateRow) -> Content:
        """Return the content with another row of the same tokens."""
        return replace(self, state=_with_row(self.state, row))

    def longer(self, row: StateRow) -> Content:
        """Return the content with a row of more tokens, which are pending; `fsm.TokenNotAllowed` if the constraint refuses one."""
        added = row.token_ids[len(self.row.token_ids) :]
        constraint = self.constraint.after(added, self.state.model.eos_token_ids)
        return replace(self.with_row(row), constraint=constraint)

    def prompted(self, prompt: str | Tokens | list[int] | SequenceState) -> Content:
        """Return the content with text, ids, or the tokens of a state after it; see `Conversation.prompt`."""
        state, row, model = self.state, self.row, self.state.model
        if isinstance(prompt, SequenceState):
            taken = replace(only_row(prompt, model), stream=row.stream)
            if not row.token_ids:
                return replace(self.longer(taken), num_fed=len(taken.token_ids) - taken.pending)
        elif prompt == []:
            return self
        elif not row.token_ids:
            prompt = _with_row(state, _first_row(prompt, model, row.stream))
        return self.longer(state.append(prompt).rows[0][0])

    def constrained(self, expression: Expression | str | None) -> Content:
        """Return the content with another constraint; see `Conversation.constrain`."""
        if expression is None:
            return replace(self, constraint=_FREE)
        token_ids, model, old = self.row.token_ids, self.state.model, self.constraint
        token_fsm = Constraint.of_model(model, lift(expression), force=False).token_fsm
        start = old.start if old.is_lost else len(token_ids)
        new = ConversationConstraint(token_fsm=token_fsm).anew(start, token_ids, model.eos_token_ids)
        return replace(self, constraint=new)

    def without(self, start: int, stop: int, kv: RowKV | None = None) -> Content:
        """Return the content without some tokens; `kv` are approximate keys and values; None recomputes those of later tokens.

        A constraint is lifted, with a `ConstraintWarning`, where nothing is left from a position before its beginning on.
        """
        row, first, constraint = _without(self.state, start, stop), self.approximate_from, self.constraint
        if start < constraint.start and stop == len(self.row.token_ids):
            _warn_of_lifting(constraint, start)
            constraint = _FREE
        begin = min(max(constraint.start - (stop - start), start), constraint.start)
        constraint = constraint.anew(begin, row.token_ids, self.state.model.eos_token_ids)
        if kv is not None:
            row, first = replace(row, kv=kv), start if first is None else min(first, start)
        is_approximate = first is not None and first < row.cached
        num_fed = self.num_fed - max(min(stop, self.num_fed) - start, 0)
        return Content(_with_row(self.state, row), num_fed, constraint, first if is_approximate else None)


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


def _with_row(state: SequenceState, row: StateRow) -> SequenceState:
    return replace(state, rows=((row,),))


def _first_row(prompt: str | Tokens | list[int], model: LanguageModel, stream: RandomStream) -> StateRow:
    """Return the row of the first prompt of a conversation; start tokens are put before a text."""
    given = tuple(prompt) if isinstance(prompt, list) else checked_given(prompt, model)
    token_ids, num_start = prompt_ids(given, model)
    text = given.text if isinstance(given, Tokens) else given
    if text and not token_ids:
        raise EmptyPrompt(f"expected a text that encodes to one token or more, got {text[:40]!r}")
    return prompt_row(token_ids, model, stream, num_start)


def _without(state: SequenceState, start: int, stop: int) -> StateRow:
    """Return the row of a state of one row without some tokens; those after them lose their keys and values."""
    row, head, tail = state.rows[0][0], state.tokens[:start], state.tokens[stop:]
    num_left = row.num_start_tokens - stop
    if num_left > 0:
        # A sum would leave out start tokens of its right side.
        inside = replace(tail.rows[0][0], num_start_tokens=0, starts_inside=True)
        joined = head.append(_with_row(tail, inside)).rows[0][0]
        return replace(joined, num_start_tokens=start + num_left, starts_inside=row.starts_inside)
    return (head.append(tail) if stop < len(row.token_ids) else head).rows[0][0]


def _warn_of_lifting(constraint: ConversationConstraint, start: int) -> None:
    warnings.warn(
        f"the constraint from token {constraint.start} on was lifted, as the conversation was rewound to token {start}, "
        "before its beginning. Call `constrain` for the text that follows, or before the rewind `constrain(None)`, to lift it "
        "without a warning.",
        ConstraintWarning,
        stacklevel=stacklevel_of_user(),
    )
