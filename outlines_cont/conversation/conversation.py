"""`Conversation`: one sequence that its user prompts, samples, forks and rewinds by hand.

Left out: pieces and their values (generators make them), and saving an expression: a file keeps where a constraint began.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import index
from typing import Any, Literal, Protocol, Self, overload
from weakref import WeakKeyDictionary

import torch

from fsm import Expression
from fsm.expression import lift
from outlines_cont.checks import is_int
from outlines_cont.conversation.constraint import ConversationConstraint, Unnamed
from outlines_cont.conversation.mark import Mark
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
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.constraint import Constraint
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.file import save_state
from outlines_cont.state.prompt_row import prompt_row
from outlines_cont.state.row import GENERATED, StateRow, counts_of
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.text import extended, joined, kept_tokens, tail_tokens
from outlines_cont.state.tokens import Tokens, checked_given, num_start_tokens, prompt_ids, start_ids


class Home(Protocol):
    """What a conversation asks of its executor."""

    @property
    def model(self) -> LanguageModel:
        """The model of all conversations."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a conversation is read or changed; the same thread may take it again."""

    def create(self, prompt: Any = None) -> Conversation:
        """Return a new conversation that begins with `prompt`."""

    def open(self, row: StateRow, pending: int) -> Conversation:
        """Return a new conversation that goes on from `row`."""

    @property
    def kept_logits_bytes(self) -> int:
        """How many bytes of logits of earlier tokens each conversation keeps."""

    def forget(self, number: int) -> None:
        """Take note that the conversation of this number is closed."""

    def fill(self, conversations: Sequence[Conversation]) -> None:
        """Feed what is lacking, so that the logits after the last token of each are known."""

    def read(self, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
        """Return (len(indices), V) logits after some tokens of a row, ascending."""

    def sample(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None,
        *,
        mask: TokenSet | None,
        scores: torch.Tensor | None,
    ) -> list[int]:
        """Draw a token for each conversation."""

    def step(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None,
        *,
        mask: TokenSet | None,
        scores: torch.Tensor | None,
    ) -> list[int]:
        """Draw a token for each conversation, and append it."""


class Conversation:
    """One sequence of a `BatchedExecutor`, made by `executor.create()`.

    The order of calls is prompt (any number of times), `executor.infer()`, then sample, fork, rewind, mark, drop, save in
    any order and any number of times. Logits stay until the conversation itself is prompted, whatever others do. After
    `rewind`, `rewind_to` and `drop` sampling works at once: what is not known any more is computed on the spot.

    Sampling does not append: `sample` returns an id, and `prompt(id)` appends it; `step` does both.
    """

    def __init__(self, home: Home, number: int, row: StateRow, pending: int) -> None:
        """See `BatchedExecutor.create`."""
        self._home = home
        self._number = number
        self._row: StateRow | None = row
        self._pending = pending
        self._num_forks = 0
        self._leash: ConversationConstraint | Unnamed | None = None
        self._kept = KeptLogits(sys.maxsize, home.kept_logits_bytes)
        # Index of the first token whose keys and values are not exactly those of a fresh run.
        self._approximate_from: int | None = None
        self._marks: WeakKeyDictionary[
            Mark, tuple[StateRow, int, ConversationConstraint | Unnamed | None, int | None]
        ] = WeakKeyDictionary()

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """All ids, those that are not fed yet included."""
        return list(self._open().token_ids)

    @property
    def text(self) -> str:
        """The text of all ids without special tokens, such as an end that was drawn; `str(conversation.state)` shows them.

        A character that is not complete yet shows as U+FFFD.
        """
        return self._home.model.tokenizer.decode(self._open().token_ids)

    @property
    def num_pending(self) -> int:
        """How many tokens the next `infer` has to feed before one can be sampled."""
        self._open()
        return self._pending

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        return self._open().stream.seed

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._row is None

    @property
    def is_approximate(self) -> bool:
        """Whether `drop(mode="shift")` has left keys and values that a fresh run would not have."""
        self._open()
        return self._approximate_from is not None

    @property
    def is_accepting(self) -> bool:
        """Whether the text obeys the constraint as it stands; True without one.

        Raises:
            ConstraintRequired: see `allowed`.
        """
        self._open()
        return self._leash is None or self._leash.is_accepting

    @property
    def allowed(self) -> TokenSet:
        """What the constraint lets follow; all tokens without one.

        Raises:
            ConstraintRequired: the conversation was loaded, and its constraint was not named again; see `constrain`.
        """
        self._open()
        return TokenSet.all if self._leash is None else self._leash.mask

    @property
    def state(self) -> SequenceState:
        """The conversation as a value of one row for any generator; keys and values are shared, and it never changes.

        What is only approximate is left out of it: continued, it is computed exactly. So is the constraint: one that
        `executor.create(state)` makes has none until `constrain` is called.
        """
        with self._home.lock:
            row = self._open()
            if self._approximate_from is not None:
                kept = kept_tokens(row, self._approximate_from)
                row = replace(row, kv=kept.kv, logits=None)
            return SequenceState(self._home.model, ((row,),), row.stream.seed)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._open().token_ids)

    def __repr__(self) -> str:
        if self._row is None:
            return "<Conversation, closed>"
        return f"<Conversation of {len(self)} tokens, {self._pending} pending>"

    # -- growing -------------------------------------------------------------------------------------------------------

    def prompt(self, prompt: str | Tokens | int | Iterable[int] | SequenceState) -> None:
        """Append text, token ids, or the tokens of a state; nothing is fed before the next `executor.infer()`.

        Args:
            prompt: text (special tokens are put in front of the first one only; in it they are letters, but in
                `Tokens.of(text, special=True)`), ids (one, or any sequence), or a state of one row. An empty conversation takes over
                the keys, values and logits of a state; what the state has fed is not pending. An empty text or list appends nothing.

        Raises:
            ClosedError: the conversation is closed.
            PromptTypeError: something else.
            OptionError: an id is out of range, or a state has other than one row, or one that failed.
            ModelMismatch: the state belongs to another model.
            ContextLengthError: the context of the model is too short.
            fsm.TokenNotAllowed: a token breaks the constraint.
            An error leaves everything as it was.
        """
        with self._home.lock:
            row = self._open()
            if isinstance(prompt, str | Tokens):
                self._grow(self._with_text(row, prompt))
            elif isinstance(prompt, SequenceState):
                self._take_state(row, prompt)
            else:
                token_ids = self._checked_ids(prompt)
                longer = row.append(token_ids, reset=False)
                is_first = not row.token_ids
                num_start = (
                    num_start_tokens(token_ids, start_ids(self._home.model)) if is_first else row.num_start_tokens
                )
                self._grow(replace(longer, num_start_tokens=num_start))

    def constrain(self, expression: Expression | str | None) -> None:
        """Let only tokens follow that keep what comes after this place in a language, until an end of text; None lifts it.

        `sample` and `step` obey, `prompt` refuses what breaks it. Forks keep the constraint and their place in it, a rewind
        goes back in it; one to before its beginning lets it begin there. In a conversation that was loaded while a constraint
        held, the first call names that one again, and it begins where it began.

        Args:
            expression: such as `fsm.regex("[0-9]+")` or `fsm.json_schema(...)`; a text stands for itself.

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
        with self._home.lock:
            row = self._open()
            if expression is None:
                self._leash = None
                return
            constraint = Constraint.of_model(self._home.model, lift(expression), force=False)
            start = self._leash.start if isinstance(self._leash, Unnamed) else len(row.token_ids)
            leash = ConversationConstraint.at(constraint, start)
            self._leash = leash.after(row.token_ids, start, self._home.model.eos_token_ids)

    # -- logits and tokens ---------------------------------------------------------------------------------------------

    def logits(self, at: int | range | slice = -1) -> torch.Tensor:
        """Return a copy of the logits after some tokens: (V,) for an int, (n, V) for a range or a slice.

        Args:
            at: indices of tokens, negative ones from the end; -1 is after the last token, 0 after the first.

        Raises:
            PromptRequired: there is no token.
            InferenceRequired: a token that is meant was not fed yet.
            IndexError: there is no such token.

        Cost: nothing for the last token after `infer`, and for the others that are kept (`kept_logits_bytes` of the executor), each
        for the time that the text up to it stays; else one forward over the tokens that are meant.
        """
        with self._home.lock:
            length = self._needs_token()
            indices = _indices(at, length)
            if any(i >= length - self._pending for i in indices):
                self._needs_inference()
            if not self._pending:
                self._home.fill([self])
            row = self._open()
            known = {i: kept for i in indices if (kept := self._kept.whole(i + 1)) is not None}
            if row.logits is not None:
                known[length - 1] = row.logits
            missing = sorted({i for i in indices if i not in known})
            if missing:
                known.update(zip(missing, self._home.read(row, missing), strict=True))
                for i in missing:
                    self._keep(i + 1, known[i])
            if isinstance(at, range | slice):
                lines = [known[i] for i in indices]
                return torch.stack(lines) if lines else _no_logits(self._home.model)
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
            scores: (V,) to draw from in the place of the logits, for a law of your own.

        Raises:
            PromptRequired, InferenceRequired: call `prompt`, or `executor.infer()`, first.
            ConstraintRequired: the conversation was loaded; name its constraint again, see `constrain`.
            OptionError: the sampler draws several tokens, or none by itself; `mask` is no `TokenSet`, or has an id that the model has
                not; `scores` have another shape or type than the logits.
            DeadEnd: no id that may be drawn has a probability.
            InvalidLogits: the model has returned NaN or an infinity.
        """
        return self._home.sample([self], sampler, mask=mask, scores=_line(scores))[0]

    def step(
        self, sampler: Sampler | None = None, *, mask: TokenSet | None = None, scores: torch.Tensor | None = None
    ) -> int:
        """The same as `sample`, and the id is appended with its log-probability; it waits for the next `infer`."""
        return self._home.step([self], sampler, mask=mask, scores=_line(scores))[0]

    # -- branches and places -------------------------------------------------------------------------------------------

    @overload
    def fork(self, n: None = None, *, same: bool = False) -> Conversation: ...

    @overload
    def fork(self, n: int, *, same: bool = False) -> list[Conversation]: ...

    def fork(self, n: int | None = None, *, same: bool = False) -> Conversation | list[Conversation]:
        """Return a second conversation that goes on from here, or a list of `n`; all share what was fed, and each may change.

        Pending tokens, the constraint, the marks and what was only approximate are those of this one. This one stays as it is
        and goes on beside its forks.

        Args:
            n: how many, 1 or more, as a list; None for one that is no list.
            same: the fork draws the same random numbers as this one from now on. Otherwise it has a stream of its own, which
                depends on this one's, its place in it, and how often it was forked before.

        Raises:
            OptionError: `n` is not an int, 1 or more.
        """
        if n is not None:
            if not is_int(n, 1):
                raise OptionError(f"expected an int, 1 or more, or None as `n`, got {n!r}", "n")
            with self._home.lock:
                return [self.fork(same=same) for _ in range(n)]
        with self._home.lock:
            row = self._open()
            if not same:
                row = replace(row, stream=row.stream.fork(self._num_forks))
                self._num_forks += 1
            fork = self._home.open(row, self._pending)
            fork._leash, fork._approximate_from = self._leash, self._approximate_from
            fork._marks.update(self._marks)
            fork._kept = self._kept.fork()
            return fork

    def rewind(self, n: int) -> None:
        """Take back the last `n` tokens, pending ones first. Random numbers go on where they are.

        Raises:
            OptionError: `n` is not an int from 0 to the number of tokens. Nothing has changed.

        Cost: nothing where the logits of the new end are kept (`kept_logits_bytes` of the executor); else the next sample or `infer`
        feeds its last token once more.
        """
        with self._home.lock:
            row = self._open()
            count = _count(n, "n", len(row.token_ids))
            length = len(row.token_ids) - count
            if count:
                left = kept_tokens(row, length)
                known = self._kept.whole(length) if left.cached == length else None
                self._set(replace(left, logits=known), max(self._pending - count, 0))

    def mark(self) -> Mark:
        """Return a mark of this place, with which `rewind_to` comes back; what was fed here is kept as long as the mark."""
        with self._home.lock:
            row = self._open()
            mark = Mark(len(row.token_ids))
            self._marks[mark] = (row, self._pending, self._leash, self._approximate_from)
            return mark

    def rewind_to(self, mark: Mark) -> None:
        """Return to a mark, whatever has happened since; tokens, keys, values, logits and constraint are those of then.

        Random numbers go on where they are, so that what is sampled now is not what was sampled then.

        Raises:
            OptionError: the mark was made elsewhere.
        """
        with self._home.lock:
            row = self._open()
            if not isinstance(mark, Mark) or mark not in self._marks:
                raise OptionError(
                    f"expected a mark of this conversation, or of one that it was forked from later, got {mark!r}",
                    "mark",
                )
            place, self._pending, self._leash, self._approximate_from = self._marks[mark]
            self._row = replace(place, stream=row.stream)
            self._kept.forget_after(_num_same(row, place))

    def drop(self, start: int, stop: int, mode: Literal["recompute", "shift"] = "recompute") -> None:
        """Take out the tokens from index `start` up to `stop`; what follows them moves up.

        Args:
            start, stop: 0 <= start <= stop <= number of tokens.
            mode: `recompute` feeds what follows once more, and is exact. `shift` turns the keys of what follows to their new
                positions and feeds nothing but the last token: its deeper layers still remember what was dropped, and
                `is_approximate` says so.

        Raises:
            OptionError: other indices, or another mode. Nothing has changed.
            UnsupportedModel: `shift`, and the keys of the model do not turn with their position in the plain way.
            fsm.TokenNotAllowed: what is left breaks the constraint.

        Cost: nothing now but a copy for `shift`; the next sample or `infer` feeds what is needed.
        """
        with self._home.lock:
            row = self._open()
            length = len(row.token_ids)
            stop = _count(stop, "stop", length)
            start = _count(start, "start", stop)
            if mode not in ("recompute", "shift"):
                raise OptionError(f"expected 'recompute' or 'shift' as `mode`, got {mode!r}", "mode")
            rotary = Rotary.of_model(self._home.model) if mode == "shift" else None
            if start == stop:
                return
            left = _without(row, start, stop)
            approximate = self._approximate_from
            if rotary is not None and row.kv is not None and row.cached > stop:
                left = replace(left, kv=rotary.closed_up(row.kv, start, stop, self._home.model))
                approximate = start if approximate is None else min(approximate, start)
            dropped = max(stop - max(start, length - self._pending), 0)
            self._set(left, self._pending - dropped, moved=(start, stop))
            self._approximate_from = approximate if left.cached > (approximate or 0) else None
            if self.is_approximate:
                self._kept = self._kept.emptied()

    # -- files and the end ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, kv: bool = True) -> None:
        """Write the conversation to one file that `executor.load` and `SequenceState.load` read; see `SequenceState.save`.

        Its tokens and its place in the random numbers are kept, with `kv` also keys, values and logits. Marks are not. Of a
        constraint that still holds only the place where it began is kept: what `executor.load` returns samples nothing until
        `constrain` is called once more.

        Raises:
            ClosedError: the conversation is closed.
            StateFileError: the folder does not exist, or `path` is a folder.
            OSError: the file cannot be written.
        """
        with self._home.lock:
            state, leash = self.state, self._leash
        is_over = leash is None or (isinstance(leash, ConversationConstraint) and leash.state is None)
        start = None if leash is None or is_over else leash.start
        save_state(path, state.model, state.rows, state.seed, kv=kv, constrained_from=start)

    def close(self) -> None:
        """Let everything go that no other conversation, mark or state needs. Closing again does nothing."""
        with self._home.lock:
            self._row, self._leash = None, None
            self._marks.clear()
            self._home.forget(self._number)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _open(self) -> StateRow:
        """Return the row of an open conversation."""
        if self._row is None:
            raise ClosedError(
                "expected an open conversation, got one after `close()`. Make one with `executor.create()`."
            )
        return self._row

    def _filled(self, row: StateRow) -> None:
        """Take the row again, fed as a whole."""
        self._row = row
        if row.logits is not None:
            self._keep(len(row.token_ids), row.logits)

    def _keep(self, index: int, logits: torch.Tensor) -> None:
        """Keep the logits before token `index`, where they are exact."""
        if self._approximate_from is None or index <= self._approximate_from:
            self._kept.put(index, logits)

    def _held(self) -> list[StateRow]:
        """Return every row whose keys and values are kept: its own, and those of its marks."""
        return [self._open(), *(place[0] for place in list(self._marks.values()))]

    def _needs_token(self) -> int:
        """Return the number of tokens, at least one."""
        length = len(self._open().token_ids)
        if not length:
            raise PromptRequired(
                "expected a conversation with a token, got an empty one. Call `conversation.prompt(...)`, "
                "then `executor.infer()`."
            )
        return length

    def _needs_inference(self) -> None:
        """Raise for tokens that were not fed yet."""
        if self._pending:
            raise InferenceRequired(
                f"expected a conversation without pending tokens, got one with {self._pending} of {len(self)}. "
                "Call `executor.infer()` first; it feeds those of all conversations at once.",
                self._pending,
            )

    def _ready(self) -> StateRow:
        """Return the row of a conversation that a token may be sampled for."""
        self._needs_token()
        self._needs_inference()
        return self._open()

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return what the conversation holds, for a sampler that needs it; counted anew for every token."""
        row = self._open()
        return counts_of(row.token_ids, row.kinds, row.sampling_logprobs, self._mirostat_start if mirostat else None)

    @property
    def _mirostat_start(self) -> int:
        """From which token on `Mirostat` counts: where it began, else the next one."""
        row = self._open()
        return len(row.token_ids) if row.mirostat_start is None else row.mirostat_start

    def _take(
        self, token_id: int, logprob: float, sampling_logprob: float, stream: RandomStream, mirostat: bool
    ) -> None:
        """Append a sampled token; the random numbers go on with `stream`. `mirostat`: it was drawn with `Mirostat`."""
        row = self._open()
        self._grow(
            replace(
                row,
                token_ids=(*row.token_ids, token_id),
                kinds=row.kinds + GENERATED,
                logprobs=(*row.logprobs, logprob),
                sampling_logprobs=(*row.sampling_logprobs, sampling_logprob),
                stream=stream,
                logits=None,
                piece=None,
                finish_reason="",
                value=None,
                mirostat_start=self._mirostat_start if mirostat else None,
            )
        )

    def _with_text(self, row: StateRow, given: str | Tokens) -> StateRow:
        model = self._home.model
        checked_given(given, model)
        if row.token_ids:
            return extended(row, given, model.tokenizer)
        token_ids, num_start = prompt_ids(given, model)
        text = given if isinstance(given, str) else given.text
        if text and not token_ids:
            raise EmptyPrompt(f"expected a text that encodes to some token, got {text[:40]!r}")
        return replace(prompt_row(token_ids, model, row.stream, num_start), ends=row.ends)

    def _take_state(self, row: StateRow, state: SequenceState) -> None:
        model = self._home.model
        if state.model is not model:
            raise ModelMismatch(
                f"expected a state of the executor's model {model!r}, got one of {state.model!r}. "
                "Prompt its text instead: `conversation.prompt(str(state))`."
            )
        other = only_row(state)
        if row.token_ids:
            self._grow(joined(row, other, model.tokenizer))
            return
        row = replace(other, stream=row.stream)
        self._set(row, row.pending)

    def _checked_ids(self, prompt: int | Iterable[int]) -> list[int]:
        vocab_size = self._home.model.vocab_size
        try:
            if isinstance(prompt, bytes | bytearray):
                raise TypeError
            items = [prompt] if hasattr(prompt, "__index__") and not getattr(prompt, "shape", ()) else list(prompt)  # type: ignore[arg-type]
            token_ids = [index(item) for item in items]  # type: ignore[arg-type]
        except TypeError:
            raise PromptTypeError(
                f"expected a text, token ids or a SequenceState as a prompt, got {type(prompt).__name__}"
            ) from None
        odd = next((i for i, item in zip(token_ids, items, strict=True) if not 0 <= i < vocab_size), None)
        if odd is not None:
            raise OptionError(f"expected token ids from 0 to {vocab_size - 1} as a prompt, got {odd}", "prompt")
        return token_ids

    def _grow(self, row: StateRow) -> None:
        """Take a row that is this one and more at its end; a change of its last tokens counts as new, too."""
        old = self._open()
        limit = self._home.model.context_length
        if limit is not None and len(row.token_ids) > limit:
            raise ContextLengthError(
                f"expected at most {limit} tokens, the context of the model; with the prompt a conversation has "
                f"{len(row.token_ids)}. Prompt less, or use a model with a longer context.",
                len(row.token_ids),
                limit,
            )
        if row is not old:
            self._set(row, self._pending + len(row.token_ids) - len(old.token_ids))

    def _set(self, row: StateRow, pending: int, moved: tuple[int, int] = (0, 0)) -> None:
        """Take a row, if the constraint allows it; the tokens between the two indices `moved` are no longer in it."""
        leash = self._leash
        if leash is not None:
            start = leash.start - max(min(leash.start, moved[1]) - moved[0], 0)
            leash = leash.after(row.token_ids, min(start, len(row.token_ids)), self._home.model.eos_token_ids)
        self._kept.forget_after(_num_same(self._open(), row))
        self._row, self._pending, self._leash = row, pending, leash
        if self._approximate_from is not None and self._approximate_from >= row.cached:
            self._approximate_from = None


def _num_same(a: StateRow, b: StateRow) -> int:
    """Return how many tokens two rows begin with alike. Cost: a comparison of tuples, where one begins with the other."""
    short, long = sorted((a.token_ids, b.token_ids), key=len)
    if long[: len(short)] == short:
        return len(short)
    return next(i for i, (x, y) in enumerate(zip(short, long, strict=False)) if x != y)


def _line(scores: torch.Tensor | None) -> torch.Tensor | None:
    """Return the scores of one conversation as those of several; what is no tensor is refused later."""
    return scores[None] if isinstance(scores, torch.Tensor) else scores


def _no_logits(model: LanguageModel) -> torch.Tensor:
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    return torch.empty((0, model.vocab_size), dtype=dtype, device=model.device)


def only_row(state: SequenceState) -> StateRow:
    """Return the row of a state that has one.

    Raises:
        OptionError: it has another number of rows, or the row has failed.
    """
    if len(state) != 1:
        raise OptionError(
            f"expected a state of one row, got one of {len(state)}. `state.take([(b, s)])` picks one.", "state"
        )
    row = state.rows[0][0]
    if row.error is not None:
        raise OptionError(f"expected a state that has not failed, got one with {row.error!r}", "state")
    return row


def _without(row: StateRow, start: int, stop: int) -> StateRow:
    """Return the row without some tokens, with the keys and values of those before them; those after them are given text."""
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
