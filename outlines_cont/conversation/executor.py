"""`BatchedExecutor`: many conversations on one model, whose pending tokens run together.

The feature is that of LLamaSharp's BatchedExecutor. Left out: embeddings and images as prompts.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self
from weakref import WeakValueDictionary

import torch

from outlines_cont.checks import check_model, is_int
from outlines_cont.conversation.constraint import Unnamed
from outlines_cont.conversation.conversation import Conversation, only_row
from outlines_cont.engine.drawing.draw_plan import DrawPlan, drawing_of
from outlines_cont.engine.drawing.kept_logits import MAX_KEPT_BYTES
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import ClosedError, DeadEnd, InvalidLogits, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet, check_mask
from outlines_cont.samplers import greedy
from outlines_cont.sampling.random_stream import RandomStream, open_seeds
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.file import load_state
from outlines_cont.state.row import StateRow, is_lacking
from outlines_cont.state.sequence_state import SequenceState, kv_bytes

_TAIL_TOKENS = 8
_SCORES = torch.float32, torch.float64


class BatchedExecutor:
    """Conversations that run together on one model.

    `create` a conversation, `prompt` it, `infer` for all, `sample`. A conversation lives as long as somebody holds it; closed
    or dropped, its keys and values are freed unless another one shares them. Threads may use one executor: calls wait for
    each other.
    """

    def __init__(
        self, model: LanguageModel, *, seed: int | None = None, kept_logits_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        """Begin without a conversation.

        Args:
            model: what `models.transformers` or `models.from_transformers` has made.
            seed: of the random numbers of all conversations that name none; None draws one.
            kept_logits_bytes: how many bytes of logits of earlier tokens each conversation keeps, so that `rewind` and `logits` of these
                cost no forward; the oldest go first. 32 MiB by default: 64 places of a vocabulary of 131,072 tokens.

        Raises:
            OptionError: `seed` is no seed, `kept_logits_bytes` is not an int, 0 or more, or `model` is none that `outlines_cont.models`
                has made.
        """
        check_model(model)
        if not is_int(kept_logits_bytes, 0):
            raise OptionError(
                f"expected a number of bytes, 0 or more, as `kept_logits_bytes`, got {kept_logits_bytes!r}",
                "kept_logits_bytes",
            )
        self._kept_logits_bytes = kept_logits_bytes
        self.seed = open_seeds(seed, 1)[0][0]
        self._model = model
        self._lock = threading.RLock()
        self._masker = Masker()
        self._is_closed = False
        self._numbers = count()
        self._known: WeakValueDictionary[int, Conversation] = WeakValueDictionary()

    @property
    def model(self) -> LanguageModel:
        """The model of all conversations."""
        return self._model

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held during every call; hold it to make several calls as one."""
        return self._lock

    @property
    def conversations(self) -> list[Conversation]:
        """The open conversations, the oldest first."""
        with self._lock:
            return [conversation for _, conversation in sorted(self._known.items())]

    @property
    def kept_logits_bytes(self) -> int:
        """How many bytes of logits of earlier tokens each conversation keeps."""
        return self._kept_logits_bytes

    @property
    def num_pending(self) -> int:
        """How many tokens the next `infer` has to feed, those aside that must be computed again."""
        return sum(conversation.num_pending for conversation in self.conversations)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys, values and logits of all open conversations and their marks; what is shared counts once."""
        with self._lock:
            rows = [row for conversation in self.conversations for row in conversation._held()]
            held = {id(row.logits) for row in rows}
            kept = {id(x): x.nbytes for conversation in self.conversations for x in conversation._kept.tensors}
            others = sum(size for key, size in kept.items() if key not in held)
            return kv_bytes([SequenceState(self._model, ((row,),), 0) for row in rows]) + others

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def create(self, prompt: Any = None, *, seed: int | None = None) -> Conversation:
        """Return a new conversation.

        Args:
            prompt: what it begins with, as `conversation.prompt` takes it; None for nothing. A state holds no constraint, not
                even that of a conversation that it was taken from: call `constrain` for what is to follow.
            seed: of its random numbers. None takes a stream of the executor's seed that no other conversation has, which is
                the same in every run that makes conversations in the same order.

        Raises:
            ClosedError: the executor is closed.
            OptionError: the seed is out of range; and what `prompt` raises.
        """
        with self._lock:
            self._check_open()
            number = next(self._numbers)
            stream = RandomStream(self.seed, number) if seed is None else RandomStream(open_seeds(seed, 1)[0][0])
            conversation = self._enter(number, StateRow.of_prompt([], stream), 0)
            if prompt is not None:
                conversation.prompt(prompt)
            return conversation

    def infer(self) -> int:
        """Feed everything that is pending, of all open conversations, however long.

        After it every conversation with a token can be sampled. Where nothing is pending it does nothing.

        Returns:
            How many tokens had to be fed, those that must be computed again included.

        Raises:
            ClosedError: the executor is closed.
            KVBudgetError: one conversation alone needs more than the budget of the model. All are as they were; others can
                run after that one was closed or rewound.

        Cost: that of steps of the engine of the model (`engine_of`), whose `max_batch_tokens` holds: one forward where the
        pending parts are equally long and few. A model whose rows cannot run in one batch takes one per conversation.
        """
        with self._lock:
            self._check_open()
            meter = Meter()
            self._fill(self.conversations, meter)
            return meter.fed_tokens

    def sample(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None = None,
        *,
        mask: TokenSet | None = None,
        scores: torch.Tensor | None = None,
    ) -> list[int]:
        """Draw a token for each conversation, all at once; see `Conversation.sample`. Where one cannot, none is drawn.

        `mask` is for all of them; `scores` are (R, V), one line per conversation.
        """
        with self._lock:
            drawn = self._draw(conversations, sampler, mask, scores)
            for conversation, draw in zip(conversations, drawn, strict=True):
                conversation._row = replace(conversation._open(), stream=draw.stream)
            return [draw.token_id for draw in drawn]

    def step(
        self,
        conversations: Sequence[Conversation] | None = None,
        sampler: Sampler | None = None,
        *,
        mask: TokenSet | None = None,
        scores: torch.Tensor | None = None,
    ) -> list[int]:
        """Draw a token for each conversation (None: all that are open) and append it; see `Conversation.step`."""
        with self._lock:
            chosen = self.conversations if conversations is None else list(conversations)
            drawn = self._draw(chosen, sampler, mask, scores)
            for conversation, draw in zip(chosen, drawn, strict=True):
                conversation._take(draw.token_id, draw.logprob, draw.sampling_logprob, draw.stream, draw.mirostat)
            return [draw.token_id for draw in drawn]

    def load(self, path: str | os.PathLike[str]) -> Conversation:
        """Return a new conversation that goes on where the one that was saved stood, random numbers included.

        No file can hold an expression. If a constraint held when it was saved, `sample`, `step`, `allowed` and `is_accepting`
        raise `ConstraintRequired` until `constrain(expression)` names it again, which then reads the text from where it
        began, or `constrain(None)` lifts it.

        Raises:
            StateFileError: the file is missing, cut, altered, or something else.
            StateMismatch: it belongs to another model or tokenizer.
            OptionError: it holds several rows; load those with `SequenceState.load`.
            ClosedError: the executor is closed.
        """
        with self._lock:
            self._check_open()
            rows, seed, constrained_from = load_state(path, self._model)
            row = only_row(SequenceState(self._model, rows, seed))
            conversation = self.open(row, row.pending)
            conversation._leash = None if constrained_from is None else Unnamed(constrained_from)
            return conversation

    def close(self) -> None:
        """Close all conversations; nothing can be created after it. Closing again does nothing."""
        with self._lock:
            for conversation in self.conversations:
                conversation.close()
            self._is_closed = True

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "closed" if self._is_closed else f"{len(self._known)} conversations"
        return f"<{type(self).__name__} on {self._model!r}, {kind}>"

    # -- what conversations ask ----------------------------------------------------------------------------------------

    def open(self, row: StateRow, pending: int) -> Conversation:
        """Return a new conversation that goes on from `row`, of which the last `pending` tokens were not fed."""
        with self._lock:
            self._check_open()
            return self._enter(next(self._numbers), row, pending)

    def forget(self, number: int) -> None:
        """Take note that the conversation of this number is closed."""
        self._known.pop(number, None)

    def fill(self, conversations: Sequence[Conversation]) -> None:
        """Feed what is lacking, so that the logits after the last token of each conversation are known."""
        self._fill(conversations, Meter())

    def read(self, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
        """Return (len(indices), V) logits after some tokens of a row, ascending; see `read_logits`."""
        return self._model.read_logits(row, indices)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                "expected an open executor, got one after `close()`. Make another `BatchedExecutor(model)`."
            )

    def _enter(self, number: int, row: StateRow, pending: int) -> Conversation:
        conversation = Conversation(self, number, row, pending)
        self._known[number] = conversation
        return conversation

    def _fill(self, conversations: Sequence[Conversation], meter: Meter) -> None:
        chosen = [conversation for conversation in conversations if is_lacking(conversation._open())]
        rows = [conversation._open() for conversation in chosen]
        for conversation, row in zip(chosen, self._model.prefilled(rows, meter), strict=True):
            conversation._filled(row)
        for conversation in conversations:
            conversation._pending = 0

    def _draw(
        self,
        conversations: Sequence[Conversation],
        sampler: Sampler | None,
        mask: TokenSet | None,
        scores: torch.Tensor | None,
    ) -> list[_Drawn]:
        """Return what was drawn for each conversation, which stays as it is: its number is spent when it takes the token.

        Args:
            conversations: they must be ready.
            sampler: None for the most probable.
            mask: what may be drawn.
            scores: (R, V) to draw from in the place of their logits.
        """
        sampler = _checked(sampler)
        if mask is not None:
            try:
                check_mask(mask, self._model.vocab_size, "mask")
            except (TypeError, ValueError) as error:
                raise OptionError(f"{error} None is for all tokens.", "mask") from error
        for conversation in conversations:
            if conversation._home is not self:
                raise OptionError("expected conversations of this executor, got one of another", "conversations")
            conversation._ready()
        if not conversations:
            return []
        self.fill(conversations)
        rows = [conversation._open() for conversation in conversations]
        logits = torch.stack([row.logits for row in rows if row.logits is not None])
        _check_scores(scores, logits)
        norm = logits.logsumexp(dim=-1)
        allowed = TokenSet.all if mask is None else mask
        masks = [conversation.allowed & allowed for conversation in conversations]
        masked = self._masker.masked(logits if scores is None else scores, masks)
        streams = [row.stream.open() for row in rows]
        uniforms = None
        if sampler.needs_random:
            uniforms = torch.tensor([stream.draw() for stream in streams], dtype=torch.float64)
        drawing = drawing_of(sampler)
        counts = [drawing.counts_of(conversation) for conversation in conversations]
        drawn = DrawPlan([drawing] * len(rows)).draw(masked, uniforms, counts)
        if drawn.errors:
            raise next(iter(drawn.errors.values()))
        token_ids, sampling_logprobs = drawn.token_ids, drawn.logprobs
        logprobs = logits.gather(-1, token_ids[:, None])[:, 0] - norm
        ids, table = token_ids.tolist(), torch.stack([norm, logprobs, sampling_logprobs.to(norm)]).T.tolist()
        for row, (total, _, sampled) in zip(rows, table, strict=True):
            self._check_draw(row, total, sampled)
        self._model.count(Meter(sampled_tokens=len(ids)))
        return [
            _Drawn(token_id, logprob, sampled, stream.close(), drawing.has_mirostat)
            for token_id, (_, logprob, sampled), stream in zip(ids, table, streams, strict=True)
        ]

    def _check_draw(self, row: StateRow, total: float, sampled: float) -> None:
        if math.isfinite(total) and math.isfinite(sampled):
            return
        tail = self._model.tokenizer.decode(row.token_ids[-_TAIL_TOKENS:])
        place = f"{len(row.token_ids)} tokens (...{tail!r})"
        if not math.isfinite(total):
            raise InvalidLogits(f"expected finite logits from the model after {place}, got NaN or an infinity.")
        raise DeadEnd(
            f"no token that may be drawn has a probability after {place}. Loosen the mask or the constraint; a constraint that "
            "is fulfilled needs a model with an end-of-sequence token, or `constrain(None)`."
        )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A token, its log-probability, that as it was drawn, where the random numbers go on after it, and whether `Mirostat` was used."""

    token_id: int
    logprob: float
    sampling_logprob: float
    stream: RandomStream
    mirostat: bool


def _check_scores(scores: object, logits: torch.Tensor) -> None:
    if scores is None:
        return
    if isinstance(scores, torch.Tensor) and scores.shape == logits.shape and scores.dtype in _SCORES:
        return
    shape, dtype = getattr(scores, "shape", None), getattr(scores, "dtype", None)
    got = type(scores).__name__ if shape is None else f"one of shape {tuple(shape)} and {dtype}"
    raise OptionError(
        f"expected a tensor of float32 or float64 of shape {tuple(logits.shape)} as `scores`, a line for each conversation, got {got}.",
        "scores",
    )


def _checked(sampler: Sampler | None) -> Sampler:
    sampler = greedy() if sampler is None else sampler
    if not hasattr(sampler, "sample"):
        raise OptionError(
            f"expected a sampler that draws a token, such as `samplers.multinomial()`, got {sampler!r}", "sampler"
        )
    if (sampler.num_samples or 1) > 1:
        raise OptionError(
            f"expected a sampler that draws one token, such as `samplers.multinomial()`, got {sampler!r}. "
            "For several samples write `conversation.fork(n)`.",
            "sampler",
        )
    return sampler
