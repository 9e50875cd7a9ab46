"""`BatchedExecutor`: many conversations on one model: `infer` feeds the pending tokens of all of them in common batches, `sample` and
`step` draw for several of them in one batch. Modelled on LLamaSharp's class of that name, without embeddings and images as prompts. A
model that does not support left-padded batches takes a forward per conversation.

`Conversation`: one sequence that is prompted, sampled, forked, rewound and edited by hand: a cell around an immutable `Content`, which each
call replaces. `Mark`: a position to go back to. Forks and marks share the KV cache; recent logits are kept up to a byte limit, so that a
rewind often costs no forward. `drop` is exact, or shifts keys (an approximation). A file has the index where a constraint began, not the
constraint. Both classes are here, as a conversation is fed and drawn for by its executor.

`guide`: classifier-free guidance step by step over two conversations or states: the next token is drawn from log p(negative) + scale *
(log p(positive) - log p(negative)), with constraint and random numbers of the positive, and appended to both conversations (states are
copied). Scale 1 is the positive context alone, a larger one avoids the negative. In a call of a generator, `Guidance` does the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, Self, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from fsm import Expression
from fsm.process_fork import rlock
from outlines_cont.checks import (
    MAX_SAMPLES,
    check,
    check_int,
    check_model,
    check_one_of,
    checked_bool,
    index_of,
    is_int,
)
from outlines_cont.conversation.content import Content, checked_ids, checked_mask, checked_sampler, drawn, given_row
from outlines_cont.conversation.rotary import Rotary
from outlines_cont.engine.drawing.kept_logits import MAX_KEPT_BYTES, KeptLogits
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.guidance import check_scale, guided_logits
from outlines_cont.errors import ClosedError, InferenceRequired, ModelMismatch, OptionError, PromptRequired
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.prefix_cache import num_common
from outlines_cont.meter import Meter
from outlines_cont.near_names import NearNames
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.stop import FreeText
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream, open_seeds
from outlines_cont.state.file import load_state, save_state
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState, kv_bytes
from outlines_cont.state.tokens import Tokens


@dataclass(frozen=True, eq=False, repr=False)
class Mark:
    """A position in a conversation, after `length` tokens, made by `conversation.mark()`; forks that are made later can use it, too."""

    length: int

    def __repr__(self) -> str:
        return f"<Mark after {self.length} tokens>"


class Conversation(NearNames):
    """One sequence of a `BatchedExecutor`, made by `executor.create()`.

    The order of calls is prompt (any number of times), `executor.infer()`, then sample, fork, rewind, mark, drop, save in
    any order and any number of times. Logits stay until the conversation itself is prompted. After `rewind`, `rewind_to` and `drop` it
    can be sampled without `infer`: logits that are not kept are computed when needed.

    Sampling does not append: `sample` returns an id, and `prompt(id)` appends it; `step` does both.
    """

    def __init__(self, executor: BatchedExecutor, number: int, content: Content) -> None:
        """See `BatchedExecutor.create`."""
        self._executor = executor
        self._number = number
        self._content: Content | None = content
        self._num_forks = 0
        self._kept = KeptLogits(sys.maxsize, executor.kept_logits_bytes)
        self._marks: WeakKeyDictionary[Mark, Content] = WeakKeyDictionary()
        executor._by_number[number] = self

    # -- content -------------------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """All ids, pending ones included."""
        return list(self._open().row.token_ids)

    @property
    def text(self) -> str:
        """The text of all ids without special tokens, which `str(conversation.state)` has; an incomplete character is U+FFFD."""
        return self._executor.model.tokenizer.decode(self._open().row.token_ids)

    @property
    def num_pending(self) -> int:
        """How many tokens the next `infer` has to feed."""
        return len(self) - self._open().num_fed

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        return self._open().row.stream.seed

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._content is None

    @property
    def is_approximate(self) -> bool:
        """Whether some keys and values are approximate, after `drop(mode="shift")`."""
        return self._open().approximate_from is not None

    @property
    def is_accepting(self) -> bool:
        """Whether the text is in the language of the constraint; True without one. Raises `ConstraintRequired` as `allowed` does."""
        return self._open().constraint.is_accepting

    @property
    def allowed(self) -> TokenSet:
        """The token ids that the constraint allows next; all without one.

        Raises:
            ConstraintRequired: the conversation was loaded, and its constraint was not set again; see `constrain`.
        """
        return self._open().constraint.mask

    @property
    def state(self) -> SequenceState:
        """The conversation as a value of one row for any generator; keys and values are shared, and it never changes.

        Without approximate keys and values, which are computed exactly when the state is continued, and without the constraint.
        """
        with self._executor.lock:
            return self._open().exact_state

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._open().row.token_ids)

    def __repr__(self) -> str:
        if self.is_closed:
            return "<Conversation, closed>"
        return f"<Conversation of {len(self)} tokens, {self.num_pending} pending>"

    # -- growing -------------------------------------------------------------------------------------------------------

    def prompt(self, prompt: str | Tokens | int | Iterable[int] | SequenceState) -> None:
        """Append text, token ids, or the tokens of a state; nothing is fed before the next `executor.infer()`.

        Args:
            prompt: text (start tokens are put before the first one only; special tokens in it are characters, but in
                `Tokens.of(text, special=True)`), ids (one, or any sequence), or a state of one row. An empty conversation takes
                the keys, values and logits of a state; tokens that are cached there are not pending. An empty text or list appends nothing.

        Raises:
            ClosedError: the conversation is closed.
            PromptTypeError: something else.
            OptionError: an id is out of range, or the row of a state has failed.
            ModelMismatch, SampleMismatch: the state belongs to another model, or has another number of rows.
            ContextLengthError: the context of the model is too short.
            fsm.TokenNotAllowed: a token breaks the constraint.

        After an error nothing has changed.
        """
        with self._executor.lock:
            if not isinstance(prompt, str | Tokens | SequenceState):
                prompt = checked_ids(prompt, self._executor.model.vocab_size)
            self._content = self._open().prompted(prompt)

    def constrain(self, expression: Expression | str | None) -> None:
        """Constrain the text after this position to a language, until an end of text is sampled; None lifts the constraint.

        It applies to `sample`, `step` and `prompt`. Forks keep the constraint and its state, a rewind rewinds it; one to before its
        beginning lifts it, with a `ConstraintWarning`. After loading a conversation that was saved under a constraint, the first call
        sets that one again, from the index where it began.

        Args:
            expression: such as `fsm.regex("[0-9]+")` or `fsm.json_schema(...)`; a `str` is a literal.

        Raises:
            OptionError: it is neither an expression nor a text.
            fsm.EmptyLanguage, fsm.VocabularyGap: no text satisfies it, or none that the model can spell.
            fsm.TokenNotAllowed: the text before the conversation was saved breaks it.

        After an error nothing has changed.
        """
        is_language = isinstance(expression, Expression | str | None)
        check("expression", expression, is_language, "an expression such as `fsm.regex(...)`, a text or None")
        with self._executor.lock:
            self._content = self._open().constrained(expression)

    # -- logits and tokens ---------------------------------------------------------------------------------------------

    def logits(self, at: int | range | slice = -1) -> torch.Tensor:
        """Return a copy of the logits after some tokens: (V,) for an int, (n, V) for a range or a slice.

        Args:
            at: indices of tokens, negative ones from the end; -1 is after the last token, 0 after the first.

        Raises:
            PromptRequired: there is no token.
            InferenceRequired: one of these tokens was not fed yet.
            IndexError: there is no such token.

        Cost: nothing for the last token after `infer`, and for others whose logits are kept (`kept_logits_bytes` of the executor) and
        before which no token has changed; else one forward over the tokens that are needed.
        """
        with self._executor.lock:
            indices = _indices(at, self._checked_length())
            self._check_fed(max(indices, default=-1) + 1)
            model = self._executor.model
            if not self.num_pending:
                self._executor._feed([self])
            row = self._open().row
            known = {i: kept for i in indices if (kept := self._kept.whole(i + 1)) is not None}
            if row.logits is not None:
                known[len(self) - 1] = row.logits
            missing = sorted({*indices} - {*known})
            for i, found in zip(missing, model.read_logits(row, missing) if missing else (), strict=True):
                known[i] = found
                self._keep(i + 1, found)
            if not isinstance(at, range | slice):
                return known[indices[0]].clone()
            dtype = torch.promote_types(model.dtype, torch.float32)
            none = torch.empty((0, model.vocab_size), dtype=dtype, device=model.device)
            return torch.stack([known[i] for i in indices]) if indices else none

    def sample(
        self, sampler: Sampler | None = None, *, mask: TokenSet | None = None, scores: torch.Tensor | None = None
    ) -> int:
        """Return a token id that was drawn from the logits after the last token; it is not appended.

        Calling it again draws again, from the same logits, with the next random number.

        Args:
            sampler: `samplers.greedy()` for None, or `samplers.multinomial(...)`.
            mask: the ids that may be drawn; None for all. The constraint applies, too.
            scores: (V,) to draw from instead of the logits, for a distribution of your own.

        Raises:
            PromptRequired, InferenceRequired: call `prompt`, or `executor.infer()`, first.
            ConstraintRequired: the conversation was loaded; set its constraint again, see `constrain`.
            OptionError: the sampler is a search or draws several tokens; `mask` is not a `TokenSet`, or has an id out of
                range; `scores` have another shape or type than the logits.
            DeadEnd: no id that may be drawn has a probability.
            InvalidLogits: the model has returned NaN or an infinity.
        """
        return self._executor.sample([self], sampler, mask=mask, scores=_batched(scores))[0]

    def step(
        self, sampler: Sampler | None = None, *, mask: TokenSet | None = None, scores: torch.Tensor | None = None
    ) -> int:
        """The same as `sample`, and append the id with its log-probability; it is fed by the next `infer`."""
        return self._executor.step([self], sampler, mask=mask, scores=_batched(scores))[0]

    # -- forks and rewinds ---------------------------------------------------------------------------------------------

    @overload
    def fork(self, n: None = None, *, same: bool = False) -> Conversation: ...

    @overload
    def fork(self, n: int, *, same: bool = False) -> list[Conversation]: ...

    def fork(self, n: int | None = None, *, same: bool = False) -> Conversation | list[Conversation]:
        """Return a second conversation with the same content, or a list of `n`; all share the KV cache, and change independently.

        Pending tokens, the constraint, the marks and approximate keys and values are those of this one.

        Args:
            n: how many, from 1 to 100,000, as a list; None for one that is not in a list.
            same: draw the same random numbers as this one from now on. Otherwise the fork has a random stream of its own, which depends
                on that of this one, the position in it, and how often it was forked before.

        Raises:
            OptionError: `n` is not an int from 1 to 100,000.
        """
        check_int("n", n, 1, MAX_SAMPLES, is_optional=True)
        checked_bool(same, "same")
        with self._executor.lock:
            forks = [self._fork(same) for _ in range(1 if n is None else n)]
        return forks[0] if n is None else forks

    def rewind(self, n: int) -> None:
        """Remove the last `n` tokens, pending ones first. Random numbers are not rewound.

        A constraint that began after the new end is lifted, with a `ConstraintWarning`.

        Raises:
            OptionError: `n` is not an int from 0 to the number of tokens. Nothing has changed.

        Cost: nothing if the logits of the new end are kept (`kept_logits_bytes` of the executor); else the next sample or `infer`
        feeds its last token once more.
        """
        with self._executor.lock:
            length = len(self)
            self._remove(length - _count(n, "n", length), length)

    def mark(self) -> Mark:
        """Return a mark of this position for `rewind_to`; its keys, values and logits are kept as long as the mark is."""
        with self._executor.lock:
            mark = Mark(len(self))
            self._marks[mark] = self._open()
            return mark

    def rewind_to(self, mark: Mark) -> None:
        """Restore the tokens, keys, values, logits and constraint of a mark.

        Random numbers are not rewound, so that a second sample may differ from the first.

        Raises:
            OptionError: the mark was made elsewhere.
        """
        with self._executor.lock:
            stream = self._open().row.stream
            content = self._marks.get(mark) if isinstance(mark, Mark) else None
            if content is None:
                told = "expected a mark of this conversation, or of one that it was forked from later"
                raise OptionError(f"{told}, got {mark!r}", "mark")
            self._set(content.with_row(replace(content.row, stream=stream)))

    def drop(self, start: int, stop: int, mode: Literal["recompute", "shift"] = "recompute") -> None:
        """Remove the tokens from index `start` up to `stop`; those after them move to earlier positions.

        If the last tokens are removed this is a rewind; a constraint the beginning of which is removed with tokens before it, but not all
        after it, begins at `start`.

        Args:
            start: the index of the first token that is removed, 0 <= start <= stop.
            stop: the index after the last one, at most the number of tokens.
            mode: `recompute` feeds the tokens after them again, and is exact. `shift` rotates the keys of these to their new positions
                (RoPE) and feeds the last token only: an approximation, because deeper layers were computed with the removed tokens;
                `is_approximate` is True then.

        Raises:
            OptionError: other indices, or another mode. Nothing has changed.
            UnsupportedModel: `shift`, and the model has no plain rotary position embedding.
            fsm.TokenNotAllowed: the text without them breaks the constraint.

        Cost: none but a copy for `shift`; the next sample or `infer` feeds what is needed.
        """
        with self._executor.lock:
            stop = _count(stop, "stop", len(self))
            start = _count(start, "start", stop)
            check_one_of("mode", mode, ("recompute", "shift"))
            rotary = Rotary.of_model(self._executor.model) if mode == "shift" else None
            self._remove(start, stop, rotary)

    # -- files and the end ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, kv: bool = True) -> None:
        """Write the conversation to one file that `executor.load` and `SequenceState.load` read; see `SequenceState.save`.

        The file has its tokens and its position in the random stream, with `kv` also keys, values and logits, but no marks. Of a
        constraint that has not ended it has only the index where it began: after `executor.load`, call `constrain` before sampling.

        Raises:
            ClosedError: the conversation is closed.
            StateFileError: the folder does not exist, or `path` is a folder.
            OSError: the file cannot be written.
        """
        checked_bool(kv, "kv")
        with self._executor.lock:
            state, constraint = self.state, self._open().constraint
        start = None if constraint.state is None else constraint.start
        save_state(path, state.model, state.rows, state.seed, kv=kv, constrained_from=start)

    def close(self) -> None:
        """Release everything that no other conversation, mark or state shares. Closing again does nothing."""
        with self._executor.lock:
            self._content = None
            self._marks.clear()
            self._executor._by_number.pop(self._number, None)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for this room -------------------------------------------------------------------------------------------------

    def _open(self) -> Content:
        if self._content is None:
            raise ClosedError(
                "expected an open conversation, got one after `close()`. Make one with `executor.create()`."
            )
        return self._content

    def _remove(self, start: int, stop: int, rotary: Rotary | None = None) -> None:
        """Remove tokens; with `rotary` the keys of later ones are moved, which is approximate, else these are computed again."""
        content = self._open()
        if start < stop:
            row, kv = content.row, None
            if rotary is not None and row.kv is not None and row.cached > stop:
                kv = rotary.closed_up(row.kv, start, stop, self._executor.model)
            self._set(content.without(start, stop, kv))

    def _set(self, content: Content) -> None:
        """Replace the content; of the kept logits those after tokens that have changed are forgotten, and one may be those of its end."""
        row, first = content.row, content.approximate_from
        num_same = num_common(self._open().row.token_ids, row.token_ids)
        self._kept.forget_after(num_same if first is None else min(num_same, first))
        known = self._kept.whole(row.cached) if row.logits is None and row.cached == len(row.token_ids) else None
        self._content = content if known is None else content.with_row(replace(row, logits=known))

    def _fork(self, same: bool) -> Conversation:
        self._executor._check_open()
        content = self._open()
        if not same:
            content = content.with_row(replace(content.row, stream=content.row.stream.fork(self._num_forks)))
            self._num_forks += 1
        fork = Conversation(self._executor, next(self._executor._numbers), content)
        fork._marks.update(self._marks)
        fork._kept = self._kept.fork()
        return fork

    def _fed(self, row: StateRow) -> None:
        """Record that all tokens were fed, and keep the logits after the last."""
        content = self._open()
        self._content = replace(content.with_row(row), num_fed=len(row.token_ids))
        if row is not content.row and row.logits is not None:
            self._keep(len(row.token_ids), row.logits)

    def _keep(self, index: int, logits: torch.Tensor) -> None:
        """Keep the logits before token `index`, if they are exact."""
        first = self._open().approximate_from
        if first is None or index <= first:
            self._kept.put(index, logits)

    def _checked_length(self) -> int:
        length = len(self)
        if not length:
            raise PromptRequired(
                "expected a conversation with a token, got an empty one. Call `conversation.prompt(...)`, "
                "then `executor.infer()`."
            )
        return length

    def _check_fed(self, length: int) -> None:
        """Raise `InferenceRequired` unless the first `length` tokens were fed."""
        if length > self._open().num_fed:
            raise InferenceRequired(
                f"expected a conversation without pending tokens, got one with {self.num_pending} of {len(self)}. "
                "Call `executor.infer()` first; it feeds those of all conversations together.",
                self.num_pending,
            )


class BatchedExecutor(NearNames):
    """Conversations that run together on one model, with the random seed and the lock that they share.

    `create` a conversation, `prompt` it, `infer` for all, `sample`. Conversations are referenced weakly; when one is closed or garbage
    collected, its keys and values are freed unless another one shares them. Threads may share an executor: its lock makes calls atomic.

    Attributes:
        model: the model of all conversations.
        seed: the seed of the random numbers of conversations without a seed of their own.
        kept_logits_bytes: how many bytes of logits of earlier tokens each conversation keeps.
        lock: the re-entrant lock that every call takes; take it to make several calls atomic.
        is_closed: whether it was closed.
    """

    def __init__(
        self, model: LanguageModel, *, seed: int | None = None, kept_logits_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        """Begin without a conversation.

        Args:
            model: a model of `outlines_cont.models`, such as of `models.transformers`.
            seed: of the random numbers of all conversations without a seed of their own; None draws one.
            kept_logits_bytes: how many bytes of logits of earlier tokens each conversation keeps, so that `rewind` and `logits` of these
                cost no forward; the oldest are removed first. 32 MiB by default: 64 positions with a vocabulary of 131,072 tokens.

        Raises:
            OptionError: `seed` is not a seed, `kept_logits_bytes` is not an int, 0 or more, or `model` is not of `outlines_cont.models`.
        """
        check_model(model)
        check("kept_logits_bytes", kept_logits_bytes, is_int(kept_logits_bytes, 0), "a number of bytes, 0 or more,")
        self.model = model
        (self.seed,) = open_seeds(seed, 1)
        self.kept_logits_bytes = kept_logits_bytes
        self.lock = rlock()
        self.is_closed = False
        self._masker = Masker()
        self._numbers = count()  # of the next conversations
        self._by_number: WeakValueDictionary[int, Conversation] = WeakValueDictionary()  # the open ones

    @property
    def conversations(self) -> list[Conversation]:
        """The open conversations, the oldest first."""
        with self.lock:
            return [conversation for _, conversation in sorted(self._by_number.items())]

    @property
    def num_pending(self) -> int:
        """How many tokens the next `infer` has to feed, without those that must be recomputed."""
        return sum(conversation.num_pending for conversation in self.conversations)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys, values and logits of all open conversations and their marks; shared ones count once."""
        with self.lock:
            states = [held.state for one in self.conversations for held in (one._open(), *list(one._marks.values()))]
            held = {id(state.rows[0][0].logits) for state in states}
            kept = {id(x): x.nbytes for conversation in self.conversations for x in conversation._kept.tensors}
            others = sum(size for key, size in kept.items() if key not in held)
            return kv_bytes(states) + others

    def create(self, prompt: Any = None, *, seed: int | None = None) -> Conversation:
        """Return a new conversation.

        Args:
            prompt: as of `conversation.prompt`; None for an empty conversation. A state has no constraint, not even that of the
                conversation that it was taken from: call `constrain` for the text that follows.
            seed: of its random numbers. None takes the executor's: the conversation with the number n draws what the sample with this
                number of a call with `rng=executor.seed` draws, so every run that makes conversations in the same order has the same.

        Raises:
            ClosedError: the executor is closed.
            OptionError: the seed is out of range; and what `prompt` raises.
        """
        with self.lock:
            self._check_open()
            number = next(self._numbers)
            stream = RandomStream(self.seed, sample=number) if seed is None else RandomStream(open_seeds(seed, 1)[0])
            conversation = Conversation(self, number, Content.of(StateRow.of_prompt([], stream), self.model))
            if prompt is not None:
                conversation.prompt(prompt)
            return conversation

    def infer(self) -> int:
        """Feed all pending tokens of all open conversations, so that every conversation with a token can be sampled.

        Returns:
            How many tokens were fed, including those that must be recomputed.

        Raises:
            ClosedError: the executor is closed.
            KVBudgetError: one conversation alone needs more than the budget of the model. Nothing has changed; the others can
                run after that one was closed or rewound.

        Cost: that of steps of the engine of the model (`engine_of`), limited by its `max_batch_tokens`: one forward if the
        pending parts are few and equally long. A model whose rows cannot run in one batch takes one per conversation.
        """
        with self.lock:
            self._check_open()
            meter = Meter()
            self._feed(self.conversations, meter)
            return meter.fed_tokens

    def sample(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None = None,
        *,
        mask: TokenSet | None = None,
        scores: torch.Tensor | None = None,
    ) -> list[int]:
        """Draw a token for each conversation, in one batch; see `Conversation.sample`. If one cannot be drawn, none is.

        `mask` is for all of them; `scores` are (R, V), one row per conversation.
        """
        return self._draw(conversations, sampler, mask, scores, append=False)

    def step(
        self,
        conversations: Sequence[Conversation] | None = None,
        sampler: Sampler | None = None,
        *,
        mask: TokenSet | None = None,
        scores: torch.Tensor | None = None,
    ) -> list[int]:
        """Draw a token for each conversation (None: all that are open) and append it; see `Conversation.step`."""
        with self.lock:
            chosen = self.conversations if conversations is None else list(conversations)
            return self._draw(chosen, sampler, mask, scores, append=True)

    def load(self, path: str | os.PathLike[str]) -> Conversation:
        """Return a new conversation that continues a saved one, random numbers included.

        Constraints are not saved. If the conversation had one, `sample`, `step`, `allowed` and `is_accepting` raise `ConstraintRequired`
        until `constrain(expression)` sets it again, which then reads the text from where it began, or `constrain(None)` lifts it.

        Raises:
            StateFileError: the file is missing, cut, altered, or something else.
            StateMismatch: it belongs to another model or tokenizer.
            SampleMismatch: it has several rows; load those with `SequenceState.load`.
            ClosedError: the executor is closed.
        """
        with self.lock:
            self._check_open()
            rows, seed, start = load_state(path, self.model)
            row = given_row(SequenceState(self.model, rows, seed), self.model)
            return Conversation(self, next(self._numbers), Content.of(row, self.model, start))

    def close(self) -> None:
        """Close all conversations; none can be created after it. Closing again does nothing."""
        with self.lock:
            for conversation in self.conversations:
                conversation.close()
            self.is_closed = True

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "closed" if self.is_closed else f"{len(self._by_number)} conversations"
        return f"<{type(self).__name__} on {self.model!r}, {kind}>"

    # -- for this room -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(
                "expected an open executor, got one after `close()`. Make another `BatchedExecutor(model)`."
            )

    def _feed(self, conversations: Sequence[Conversation], meter: Meter | None = None) -> None:
        """Feed all tokens that are not cached; the logits after the last one of each conversation are known then."""
        rows = self.model.prefilled([conversation._open().row for conversation in conversations], meter)
        for conversation, row in zip(conversations, rows, strict=True):
            conversation._fed(row)

    def _draw(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None,
        mask: TokenSet | None,
        scores: torch.Tensor | None,
        *,
        append: bool,
    ) -> list[int]:
        """Draw a token for each conversation, and append it or only advance the random stream; see `sample`."""
        sampler, mask = checked_sampler(sampler), checked_mask(mask, self.model.vocab_size)
        with self.lock:
            for conversation in conversations:
                if conversation._executor is not self:
                    raise OptionError("expected conversations of this executor, got one of another", "conversations")
                conversation._check_fed(conversation._checked_length())
            if append and len({*map(id, conversations)}) < len(conversations):
                raise OptionError(
                    "expected each conversation once, got one of them twice. Step a fork of it.", "conversations"
                )
            if not conversations:
                return []
            self._feed(conversations)
            contents = [conversation._open() for conversation in conversations]
            draws = drawn(contents, sampler, mask, scores, self._masker, append=append)
            for conversation, (_, content) in zip(conversations, draws, strict=True):
                conversation._content = content
            return [token_id for token_id, _ in draws]


def _batched(scores: torch.Tensor | None) -> torch.Tensor | None:
    return scores[None] if isinstance(scores, torch.Tensor) else scores  # anything else is refused later


def _count(value: Any, name: str, most: int) -> int:
    count = index_of(value)
    check(name, value, count is not None and 0 <= count <= most, f"an int from 0 to {most}", "Nothing has changed.")
    assert count is not None
    return count


def _indices(at: Any, length: int) -> list[int]:
    if isinstance(at, slice):
        return list(range(length)[at])
    found = [index_of(item) for item in (at if isinstance(at, range) else [at])]
    known = [index for index in found if index is not None and -length <= index < length]
    if len(known) < len(found):
        raise IndexError(f"expected the index of one of {length} tokens, or a range of them, as `at`, got {at!r}")
    return [index % length for index in known]


@dataclass(eq=False, repr=False)
class GuidedConversation:
    """Two conversations that get the same tokens, drawn by classifier-free guidance. Make one with `guide`.

    Attributes:
        positive: the context to follow; its random numbers and its constraint are used.
        negative: the context to avoid, or to weaken.
        scale: the weight of their difference; 0 is the negative context alone, 1 the positive.
    """

    positive: Conversation
    negative: Conversation
    scale: float

    def infer(self) -> None:
        """Feed what is pending of both, in one forward. `executor.infer()` does it, too."""
        with self.positive._executor.lock:
            for conversation in (self.positive, self.negative):
                conversation._checked_length()
            self.positive._executor._feed([self.positive, self.negative])

    def scores(self) -> torch.Tensor:
        """Return the (V,) logits from which the next token is drawn; their softmax is the guided distribution.

        Minus infinity where the positive context has it. Where only the negative one has it the log-probability is the
        positive's.

        Raises:
            PromptRequired, InferenceRequired: call `prompt` on both, or `infer`, first.
        """
        positive, negative = (one.logits() for one in (self.positive, self.negative))
        return positive.log_softmax(-1) if self.scale == 1 else guided_logits(positive, negative, self.scale)

    def sample(self, sampler: Sampler | None = None, *, mask: TokenSet | None = None) -> int:
        """Return a token id drawn from `scores`; see `Conversation.sample`."""
        with self.positive._executor.lock:
            return self.positive.sample(sampler, mask=mask, scores=self.scores())

    def step(self, sampler: Sampler | None = None, *, mask: TokenSet | None = None) -> int:
        """The same as `sample`, and append the token to both; the log-probability is that of the positive one."""
        with self.positive._executor.lock:
            token_id = self.positive.step(sampler, mask=mask, scores=self.scores())
            try:
                self.negative.prompt(token_id)
            except BaseException:
                self.positive.rewind(1)
                raise
            return token_id

    def write(self, max_tokens: int, sampler: Sampler | None = None, *, mask: TokenSet | None = None) -> SequenceState:
        """Generate at most `max_tokens` up to an end of text, and return the state of the positive conversation.

        `sampler` is `samplers.greedy()` for None; `mask` is for all tokens, None for every token that has text and ends of text.
        """
        model = self.positive._executor.model
        chosen = FreeText.of_model(model).token_ids if mask is None else mask
        for _ in range(max_tokens):
            self.infer()
            if self.step(sampler, mask=chosen) in model.eos_token_ids:
                # The end of a text is not one of its tokens.
                self.positive.rewind(1)
                self.negative.rewind(1)
                break
        return self.positive.state


def guide(
    positive: Conversation | SequenceState, negative: Conversation | SequenceState, scale: float = 1.5
) -> GuidedConversation:
    """Return two contexts as one, to be continued together.

    Args:
        positive: a conversation, to which the tokens are appended, or a state, which is not changed.
        negative: the same, of the same model; two conversations must belong to one executor.
        scale: 0 is the negative context alone, 1 the positive one alone, and more avoids what is likely in the negative one.

    Raises:
        OptionError: `scale` is not a finite number, both are the same conversation, or their executors differ.
        ModelMismatch: they belong to different models.
    """
    check_scale(scale)
    contexts = (positive, negative)
    for context in contexts:
        if not isinstance(context, Conversation | SequenceState):
            raise OptionError(f"expected conversations or states to guide, got {type(context).__name__}", "positive")
    given = [context for context in contexts if isinstance(context, Conversation)]
    if len(given) == 2 and (given[0] is given[1] or given[0]._executor is not given[1]._executor):
        told = "expected two different conversations of one executor, such as a conversation and its fork, or a state of its model"
        raise OptionError(told, "negative")
    found = [context._executor.model if isinstance(context, Conversation) else context.model for context in contexts]
    if found[0] is not found[1]:
        raise ModelMismatch(f"expected two contexts of one model, got one of {found[0]!r} and one of {found[1]!r}")
    executor = given[0]._executor if given else BatchedExecutor(found[0], kept_logits_bytes=0)
    first, second = (one if isinstance(one, Conversation) else executor.create(one) for one in contexts)
    return GuidedConversation(first, second, scale)
