"""`Conversation`: one sequence that is prompted, sampled, forked, rewound and edited (`drop`) by hand, on the engine of its model.
Forks and marks share the KV cache; recent logits are kept up to a byte limit, so that going back often costs no forward. A saved file
keeps of its constraint only where it began.

It has no generated spans with values, which generators make.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, Self, overload
from weakref import WeakKeyDictionary

import torch

from fsm import Expression
from fsm.expression import lift
from outlines_cont.checks import check, check_int
from outlines_cont.conversation.constraint import ConversationConstraint, UnknownConstraint
from outlines_cont.conversation.draw import Drawn, checked_sampler, draw_tokens
from outlines_cont.conversation.pool import ConversationPool
from outlines_cont.conversation.rotary import Rotary
from outlines_cont.engine.drawing.kept_logits import KeptLogits
from outlines_cont.errors import (
    ClosedError,
    ContextLengthError,
    EmptyPrompt,
    InferenceRequired,
    ModelMismatch,
    OptionError,
    PromptRequired,
    PromptTypeError,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.prefix_tree import num_common
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet, check_mask
from outlines_cont.policies.constraint import Constraint
from outlines_cont.sampling.random_stream import RandomStream, open_seeds
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.file import load_state, save_state
from outlines_cont.state.prompt_row import prompt_row
from outlines_cont.state.row import GENERATED, StateRow, is_lacking
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.text import extended, joined, kept_tokens, tail_tokens
from outlines_cont.state.tokens import Tokens, checked_given, num_start_tokens, prompt_ids, start_ids


class Mark:
    """A position in a conversation, after `length` tokens, made by `conversation.mark()`; forks that are made later can use it, too."""

    __slots__ = ("__weakref__", "length")

    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return f"<Mark after {self.length} tokens>"


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """The immutable state of a conversation, which forks and marks share.

    Attributes:
        num_pending: how many of the last tokens of `row` were not fed.
        constraint: what may follow; None for anything.
        approximate_from: index of the first token whose keys and values are not exactly those of a fresh run; None where all are.
    """

    row: StateRow
    num_pending: int
    constraint: ConversationConstraint | UnknownConstraint | None = None
    approximate_from: int | None = None


class Conversation:
    """One sequence of a `BatchedExecutor`, made by `executor.create()`.

    The order of calls is prompt (any number of times), `executor.infer()`, then sample, fork, rewind, mark, drop, save in
    any order and any number of times. Logits stay until the conversation itself is prompted, whatever other conversations do. After
    `rewind`, `rewind_to` and `drop` sampling works at once: what is no longer known is computed when needed.

    Sampling does not append: `sample` returns an id, and `prompt(id)` appends it; `step` does both.
    """

    def __init__(self, pool: ConversationPool, number: int, place: _Place) -> None:
        """See `BatchedExecutor.create`."""
        self._pool = pool
        self._number = number
        self._place: _Place | None = place
        self._num_forks = 0
        self._kept = KeptLogits(sys.maxsize, pool.kept_logits_bytes)
        self._marks: WeakKeyDictionary[Mark, _Place] = WeakKeyDictionary()
        pool.conversations[number] = self

    @classmethod
    def create(cls, pool: ConversationPool, prompt: Any = None, seed: int | None = None) -> Conversation:
        """Return a new conversation; see `BatchedExecutor.create`."""
        with pool.lock:
            pool.check_open()
            number = next(pool.numbers)
            stream = RandomStream(pool.seed, number) if seed is None else RandomStream(open_seeds(seed, 1)[0][0])
            conversation = cls(pool, number, _Place(StateRow.of_prompt([], stream), 0))
            if prompt is not None:
                conversation.prompt(prompt)
            return conversation

    @classmethod
    def load(cls, pool: ConversationPool, path: str | os.PathLike[str]) -> Conversation:
        """Return a conversation that was saved; see `BatchedExecutor.load`."""
        with pool.lock:
            pool.check_open()
            rows, seed, start = load_state(path, pool.model)
            row = only_row(SequenceState(pool.model, rows, seed))
            constraint = None if start is None else UnknownConstraint(start)
            return cls(pool, next(pool.numbers), _Place(row, row.pending, constraint))

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """All ids, those that are not fed yet included."""
        return list(self._open().row.token_ids)

    @property
    def text(self) -> str:
        """The text of all ids without special tokens, which `str(conversation.state)` shows; a character that is not complete is U+FFFD."""
        return self._pool.model.tokenizer.decode(self._open().row.token_ids)

    @property
    def num_pending(self) -> int:
        """How many tokens the next `infer` has to feed before one can be sampled."""
        return self._open().num_pending

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        return self._open().row.stream.seed

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._place is None

    @property
    def is_approximate(self) -> bool:
        """Whether `drop(mode="shift")` has left keys and values that a fresh run would not have."""
        return self._open().approximate_from is not None

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is in the language of the constraint; True without one. Raises `ConstraintRequired` as `allowed` does."""
        constraint = self._open().constraint
        return constraint is None or constraint.is_accepting

    @property
    def allowed(self) -> TokenSet:
        """The token ids that the constraint allows next; all without one.

        Raises:
            ConstraintRequired: the conversation was loaded, and its constraint was not named again; see `constrain`.
        """
        constraint = self._open().constraint
        return TokenSet.all if constraint is None else constraint.mask

    @property
    def state(self) -> SequenceState:
        """The conversation as a value of one row for any generator; keys and values are shared, and it never changes.

        Approximate keys and values are left out of it, and computed exactly when the state is continued. The constraint is left out, too:
        a conversation that `executor.create(state)` makes has none until `constrain` is called.
        """
        with self._pool.lock:
            place = self._open()
            row = place.row
            if place.approximate_from is not None:
                row = replace(row, kv=kept_tokens(row, place.approximate_from).kv, logits=None)
            return SequenceState(self._pool.model, ((row,),), row.stream.seed)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._open().row.token_ids)

    def __repr__(self) -> str:
        if self._place is None:
            return "<Conversation, closed>"
        return f"<Conversation of {len(self)} tokens, {self.num_pending} pending>"

    # -- growing -------------------------------------------------------------------------------------------------------

    def prompt(self, prompt: str | Tokens | int | Iterable[int] | SequenceState) -> None:
        """Append text, token ids, or the tokens of a state; nothing is fed before the next `executor.infer()`.

        Args:
            prompt: text (special tokens are put in front of the first one only; in it they are characters, but in
                `Tokens.of(text, special=True)`), ids (one, or any sequence), or a state of one row. An empty conversation takes over
                the keys, values and logits of a state; tokens that are cached there are not pending. An empty text or list appends nothing.

        Raises:
            ClosedError: the conversation is closed.
            PromptTypeError: something else.
            OptionError: an id is out of range, or a state has other than one row, or one that failed.
            ModelMismatch: the state belongs to another model.
            ContextLengthError: the context of the model is too short.
            fsm.TokenNotAllowed: a token breaks the constraint.
            An error leaves everything as it was.
        """
        with self._pool.lock:
            row = self._open().row
            if isinstance(prompt, str | Tokens):
                self._grow(self._with_text(row, prompt))
            elif isinstance(prompt, SequenceState):
                self._take_state(row, prompt)
            else:
                token_ids = self._checked_ids(prompt)
                longer = row.append(token_ids, reset=False)
                is_first = not row.token_ids
                start = num_start_tokens(token_ids, start_ids(self._pool.model)) if is_first else row.num_start_tokens
                self._grow(replace(longer, num_start_tokens=start))

    def constrain(self, expression: Expression | str | None) -> None:
        """Constrain the text after this position to a language, until an end of text is sampled; None lifts the constraint.

        `sample` and `step` obey, `prompt` refuses what breaks it. Forks keep the constraint and its state, a rewind rewinds it;
        one to before its beginning makes it begin there. In a conversation that was saved under a constraint,
        the first call names that one again, and it begins where it began.

        Args:
            expression: such as `fsm.regex("[0-9]+")` or `fsm.json_schema(...)`; a `str` is a literal.

        Raises:
            OptionError: it is neither an expression nor a text.
            fsm.EmptyLanguage, fsm.VocabularyGap: nothing satisfies it, or nothing that the model could write.
            fsm.TokenNotAllowed: what was written before the conversation was saved breaks it.
            An error leaves everything as it was.
        """
        if not isinstance(expression, Expression | str | None):
            raise OptionError(
                f"expected an expression such as `fsm.regex(...)`, a text or None, got {expression!r}", "expression"
            )
        with self._pool.lock:
            place, model = self._open(), self._pool.model
            if expression is None:
                self._place = replace(place, constraint=None)
                return
            token_ids, old = place.row.token_ids, place.constraint
            start = old.start if isinstance(old, UnknownConstraint) else len(token_ids)
            new = ConversationConstraint.at(Constraint.of_model(model, lift(expression), force=False), start)
            self._place = replace(place, constraint=new.after(token_ids, start, model.eos_token_ids))

    # -- logits and tokens ---------------------------------------------------------------------------------------------

    def logits(self, at: int | range | slice = -1) -> torch.Tensor:
        """Return a copy of the logits after some tokens: (V,) for an int, (n, V) for a range or a slice.

        Args:
            at: indices of tokens, negative ones from the end; -1 is after the last token, 0 after the first.

        Raises:
            PromptRequired: there is no token.
            InferenceRequired: one of these tokens was not fed yet.
            IndexError: there is no such token.

        Cost: nothing for the last token after `infer`, and for the others that are kept (`kept_logits_bytes` of the executor), each
        as long as the text up to it stays; else one forward over the tokens that are needed.
        """
        with self._pool.lock:
            length = self._checked_length()
            num_pending = self.num_pending
            indices = _indices(at, length)
            if any(i >= length - num_pending for i in indices):
                self._check_fed()
            if not num_pending:
                feed(self._pool, [self])
            row = self._open().row
            known = {i: kept for i in indices if (kept := self._kept.whole(i + 1)) is not None}
            if row.logits is not None:
                known[length - 1] = row.logits
            missing = sorted({i for i in indices if i not in known})
            if missing:
                known.update(zip(missing, self._pool.model.read_logits(row, missing), strict=True))
                for i in missing:
                    self._keep(i + 1, known[i])
            if isinstance(at, range | slice):
                lines = [known[i] for i in indices]
                return torch.stack(lines) if lines else _no_logits(self._pool.model)
            (tensor,) = (known[i] for i in indices)
            return tensor.clone()

    def sample(
        self, sampler: Sampler | None = None, *, mask: TokenSet | None = None, scores: torch.Tensor | None = None
    ) -> int:
        """Return a token id that was drawn from the logits after the last token; it is not appended.

        Calling it again draws again, from the same logits, with the next random number.

        Args:
            sampler: `samplers.greedy()` for None, or `samplers.multinomial(...)`.
            mask: the ids that may be drawn; None for all. A constraint is obeyed, too.
            scores: (V,) to draw from instead of the logits, for a distribution of your own.

        Raises:
            PromptRequired, InferenceRequired: call `prompt`, or `executor.infer()`, first.
            ConstraintRequired: the conversation was loaded; name its constraint again, see `constrain`.
            OptionError: the sampler draws several tokens, or none by itself; `mask` is not a `TokenSet`, or has an id out of
                range; `scores` have another shape or type than the logits.
            DeadEnd: no id that may be drawn has a probability.
            InvalidLogits: the model has returned NaN or an infinity.
        """
        return draw_each(self._pool, [self], sampler, mask, _line(scores), append=False)[0]

    def step(
        self, sampler: Sampler | None = None, *, mask: TokenSet | None = None, scores: torch.Tensor | None = None
    ) -> int:
        """The same as `sample`, and the id is appended with its log-probability; it waits for the next `infer`."""
        return draw_each(self._pool, [self], sampler, mask, _line(scores), append=True)[0]

    # -- branches and places -------------------------------------------------------------------------------------------

    @overload
    def fork(self, n: None = None, *, same: bool = False) -> Conversation: ...

    @overload
    def fork(self, n: int, *, same: bool = False) -> list[Conversation]: ...

    def fork(self, n: int | None = None, *, same: bool = False) -> Conversation | list[Conversation]:
        """Return a second conversation with the same content, or a list of `n`; all share the KV cache, and each may change by itself.

        Pending tokens, the constraint, the marks and approximate keys and values are those of this one, which is not changed.

        Args:
            n: how many, 1 or more, as a list; None for one that is not in a list.
            same: the fork draws the same random numbers as this one from now on. Otherwise it has a stream of its own, which
                depends on this one's, its position in it, and how often it was forked before.

        Raises:
            OptionError: `n` is not an int, 1 or more.
        """
        check_int("n", n, 1, is_optional=True)
        with self._pool.lock:
            forks = [self._fork(same) for _ in range(1 if n is None else n)]
        return forks[0] if n is None else forks

    def rewind(self, n: int) -> None:
        """Remove the last `n` tokens, pending ones first. Random numbers are not rewound.

        Raises:
            OptionError: `n` is not an int from 0 to the number of tokens. Nothing has changed.

        Cost: nothing where the logits of the new end are kept (`kept_logits_bytes` of the executor); else the next sample or `infer`
        feeds its last token once more.
        """
        with self._pool.lock:
            place = self._open()
            count = _count(n, "n", len(place.row.token_ids))
            length = len(place.row.token_ids) - count
            if count:
                left = kept_tokens(place.row, length)
                known = self._kept.whole(length) if left.cached == length else None
                self._move(place, replace(left, logits=known), max(place.num_pending - count, 0))

    def mark(self) -> Mark:
        """Return a mark of this position for `rewind_to`; its keys, values and logits are kept as long as the mark is."""
        with self._pool.lock:
            mark = Mark(len(self))
            self._marks[mark] = self._open()
            return mark

    def rewind_to(self, mark: Mark) -> None:
        """Restore the tokens, keys, values, logits and constraint of a mark.

        Random numbers are not rewound, so that what is sampled now may differ from what was sampled then.

        Raises:
            OptionError: the mark was made elsewhere.
        """
        with self._pool.lock:
            row = self._open().row
            place = self._marks.get(mark) if isinstance(mark, Mark) else None
            if place is None:
                expected = "a mark of this conversation, or of one that it was forked from later"
                raise OptionError(f"expected {expected}, got {mark!r}", "mark")
            self._place = replace(place, row=replace(place.row, stream=row.stream))
            self._kept.forget_after(num_common(row.token_ids, place.row.token_ids))

    def drop(self, start: int, stop: int, mode: Literal["recompute", "shift"] = "recompute") -> None:
        """Remove the tokens from index `start` up to `stop`; those after them move to earlier positions.

        Args:
            start, stop: 0 <= start <= stop <= number of tokens.
            mode: `recompute` feeds what follows once more, and is exact. `shift` rotates the keys of what follows to their new
                positions (RoPE) and feeds the last token only: an approximation, because deeper layers were computed with what
                was dropped; `is_approximate` is True then.

        Raises:
            OptionError: other indices, or another mode. Nothing has changed.
            UnsupportedModel: `shift`, and the model has no plain rotary position embedding.
            fsm.TokenNotAllowed: what is left breaks the constraint.

        Cost: nothing now but a copy for `shift`; the next sample or `infer` feeds what is needed.
        """
        with self._pool.lock:
            place = self._open()
            row, model = place.row, self._pool.model
            length = len(row.token_ids)
            stop = _count(stop, "stop", length)
            start = _count(start, "start", stop)
            check("mode", mode, mode in ("recompute", "shift"), "'recompute' or 'shift'")
            rotary = Rotary.of_model(model) if mode == "shift" else None
            if start == stop:
                return
            left = _without(row, start, stop)
            if rotary is not None and row.kv is not None and row.cached > stop:
                left = replace(left, kv=rotary.closed_up(row.kv, start, stop, model))
                first = start if place.approximate_from is None else min(place.approximate_from, start)
                place = replace(place, approximate_from=first)
            num_dropped = max(stop - max(start, length - place.num_pending), 0)
            self._move(place, left, place.num_pending - num_dropped, dropped=(start, stop))
            if self.is_approximate:
                self._kept = self._kept.emptied()

    # -- files and the end ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, kv: bool = True) -> None:
        """Write the conversation to one file that `executor.load` and `SequenceState.load` read; see `SequenceState.save`.

        Its tokens and its position in the random numbers are kept, with `kv` also keys, values and logits. Marks are not. Of a
        constraint that has not ended only the index where it began is kept: what `executor.load` returns samples nothing until
        `constrain` is called once more.

        Raises:
            ClosedError: the conversation is closed.
            StateFileError: the folder does not exist, or `path` is a folder.
            OSError: the file cannot be written.
        """
        with self._pool.lock:
            state, constraint = self.state, self._open().constraint
        start = None if constraint is None or constraint.is_over else constraint.start
        save_state(path, state.model, state.rows, state.seed, kv=kv, constrained_from=start)

    def close(self) -> None:
        """Release everything that no other conversation, mark or state needs. Closing again does nothing."""
        with self._pool.lock:
            self._place = None
            self._marks.clear()
            self._pool.conversations.pop(self._number, None)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _open(self) -> _Place:
        """Return the state of an open conversation; `ClosedError` for a closed one."""
        if self._place is None:
            raise ClosedError(
                "expected an open conversation, got one after `close()`. Make one with `executor.create()`."
            )
        return self._place

    def _fork(self, same: bool) -> Conversation:
        self._pool.check_open()
        place = self._open()
        if not same:
            place = replace(place, row=replace(place.row, stream=place.row.stream.fork(self._num_forks)))
            self._num_forks += 1
        fork = Conversation(self._pool, next(self._pool.numbers), place)
        fork._marks.update(self._marks)
        fork._kept = self._kept.fork()
        return fork

    def _keep(self, index: int, logits: torch.Tensor) -> None:
        """Keep the logits before token `index`, if they are exact."""
        first = self._open().approximate_from
        if first is None or index <= first:
            self._kept.put(index, logits)

    def _held_rows(self) -> list[StateRow]:
        """Return every row whose keys and values are kept: its own, and those of its marks."""
        return [place.row for place in (self._open(), *list(self._marks.values()))]

    def _checked_length(self) -> int:
        """Return the number of tokens, at least one."""
        length = len(self)
        if not length:
            raise PromptRequired(
                "expected a conversation with a token, got an empty one. Call `conversation.prompt(...)`, "
                "then `executor.infer()`."
            )
        return length

    def _check_fed(self) -> None:
        """Raise `InferenceRequired` where tokens were not fed yet."""
        if self.num_pending:
            raise InferenceRequired(
                f"expected a conversation without pending tokens, got one with {self.num_pending} of {len(self)}. "
                "Call `executor.infer()` first; it feeds those of all conversations at once.",
                self.num_pending,
            )

    def _take(self, drawn: Drawn, append: bool) -> None:
        """Spend the random number of a token that was drawn, and append it if that is wanted."""
        place = self._open()
        row = replace(place.row, stream=drawn.stream)
        if not append:
            self._place = replace(place, row=row)
            return
        self._grow(
            replace(
                row,
                token_ids=(*row.token_ids, drawn.token_id),
                kinds=row.kinds + GENERATED,
                logprobs=(*row.logprobs, drawn.logprob),
                sampling_logprobs=(*row.sampling_logprobs, drawn.sampling_logprob),
                logits=None,
                piece=None,
                finish_reason="",
                value=None,
                mirostat_start=row.next_mirostat_start if drawn.mirostat else None,
            )
        )

    def _with_text(self, row: StateRow, given: str | Tokens) -> StateRow:
        model = self._pool.model
        checked_given(given, model)
        if row.token_ids:
            return extended(row, given, model.tokenizer)
        token_ids, num_start = prompt_ids(given, model)
        text = given if isinstance(given, str) else given.text
        if text and not token_ids:
            raise EmptyPrompt(f"expected a text that encodes to some token, got {text[:40]!r}")
        return replace(prompt_row(token_ids, model, row.stream, num_start), ends=row.ends)

    def _take_state(self, row: StateRow, state: SequenceState) -> None:
        model = self._pool.model
        if state.model is not model:
            raise ModelMismatch(
                f"expected a state of the executor's model {model!r}, got one of {state.model!r}. "
                "Prompt its text instead: `conversation.prompt(str(state))`."
            )
        other = only_row(state)
        if row.token_ids:
            self._grow(joined(row, other, model.tokenizer))
        else:
            self._move(self._open(), replace(other, stream=row.stream), other.pending)

    def _checked_ids(self, prompt: int | Iterable[int]) -> list[int]:
        vocab_size = self._pool.model.vocab_size
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

    def _grow(self, row: StateRow) -> None:
        """Replace the row by a longer one; `ContextLengthError` where it exceeds the context."""
        place, limit = self._open(), self._pool.model.context_length
        if limit is not None and len(row.token_ids) > limit:
            raise ContextLengthError(
                f"expected at most {limit} tokens, the context of the model; with the prompt a conversation has "
                f"{len(row.token_ids)}. Prompt less, or use a model with a longer context.",
                len(row.token_ids),
                limit,
            )
        if row is not place.row:
            self._move(place, row, place.num_pending + len(row.token_ids) - len(place.row.token_ids))

    def _move(self, place: _Place, row: StateRow, num_pending: int, dropped: tuple[int, int] = (0, 0)) -> None:
        """Replace the row, if the constraint of `place` allows it; the tokens between the indices `dropped` were removed from it."""
        constraint, first = place.constraint, place.approximate_from
        if constraint is not None:
            start = constraint.start - max(min(constraint.start, dropped[1]) - dropped[0], 0)
            ends = self._pool.model.eos_token_ids
            constraint = constraint.after(row.token_ids, min(start, len(row.token_ids)), ends)
        self._kept.forget_after(num_common(self._open().row.token_ids, row.token_ids))
        is_approximate = first is not None and first < row.cached
        self._place = _Place(row, num_pending, constraint, first if is_approximate else None)


def feed(pool: ConversationPool, conversations: Sequence[Conversation], meter: Meter | None = None) -> None:
    """Feed what is missing, so that the logits after the last token of each conversation are known; see `engine.prefill.prefilled`."""
    lacking = [conversation for conversation in conversations if is_lacking(conversation._open().row)]
    rows = pool.model.prefilled([conversation._open().row for conversation in lacking], meter)
    for conversation, row in zip(lacking, rows, strict=True):
        conversation._place = replace(conversation._open(), row=row)
        if row.logits is not None:
            conversation._keep(len(row.token_ids), row.logits)
    for conversation in conversations:
        if conversation.num_pending:
            conversation._place = replace(conversation._open(), num_pending=0)


def draw_each(
    pool: ConversationPool,
    conversations: Sequence[Conversation],
    sampler: Sampler | None,
    mask: TokenSet | None,
    scores: torch.Tensor | None,
    *,
    append: bool,
) -> list[int]:
    """Draw a token for each conversation, and append it or only spend its random number; see `BatchedExecutor.sample`."""
    sampler = checked_sampler(sampler)
    if mask is not None:
        try:
            check_mask(mask, pool.model.vocab_size, "mask")
        except (TypeError, ValueError) as error:
            raise OptionError(f"{error} None is for all tokens.", "mask") from error
    with pool.lock:
        for conversation in conversations:
            if conversation._pool is not pool:
                raise OptionError("expected conversations of this executor, got one of another", "conversations")
            conversation._checked_length()
            conversation._check_fed()
        if not conversations:
            return []
        feed(pool, conversations)
        rows = [conversation._open().row for conversation in conversations]
        masks = [conversation.allowed & (TokenSet.all if mask is None else mask) for conversation in conversations]
        draws = draw_tokens(pool.model, pool.masker, rows, masks, sampler, scores)
        for conversation, drawn in zip(conversations, draws, strict=True):
            conversation._take(drawn, append)
    return [drawn.token_id for drawn in draws]


def _line(scores: torch.Tensor | None) -> torch.Tensor | None:
    """Return the scores of one conversation as those of several; what is not a tensor is refused later."""
    return scores[None] if isinstance(scores, torch.Tensor) else scores


def _no_logits(model: LanguageModel) -> torch.Tensor:
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    return torch.empty((0, model.vocab_size), dtype=dtype, device=model.device)


def only_row(state: SequenceState) -> StateRow:
    """Return the row of a state that has one; `OptionError` where it has another number of rows, or the row has failed."""
    if len(state) != 1:
        raise OptionError(
            f"expected a state of one row, got one of {len(state)}. `state.take([(b, s)])` picks one.", "state"
        )
    row = state.rows[0][0]
    if row.error is not None:
        raise OptionError(f"expected a state that has not failed, got one with {row.error!r}", "state")
    return row


def _without(row: StateRow, start: int, stop: int) -> StateRow:
    """Return the row without some tokens, with the keys and values of those before them; those after them become appended tokens."""
    head, rest = kept_tokens(row, start), tail_tokens(row, stop, len(row.token_ids))
    return replace(
        head,
        token_ids=head.token_ids + rest.token_ids,
        kinds=head.kinds + rest.kinds,
        logprobs=head.logprobs + rest.logprobs,
        sampling_logprobs=head.sampling_logprobs + rest.sampling_logprobs,
        weight_start=max(min(row.weight_start, start), row.weight_start - (stop - start)),
    )


def _count(value: Any, name: str, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= index(value) <= most:
        raise OptionError(f"expected an int from 0 to {most} as `{name}`, got {value!r}. Nothing has changed.", name)
    return index(value)


def _indices(at: Any, length: int) -> list[int]:
    """Return indices of tokens, 0 or larger."""
    if isinstance(at, slice):
        return list(range(length)[at])
    items = list(at) if isinstance(at, range) else [at]
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__") or not -length <= index(item) < length:
            raise IndexError(f"expected the index of one of {length} tokens, or a range of them, as `at`, got {at!r}")
    return [index(item) % length for item in items]
