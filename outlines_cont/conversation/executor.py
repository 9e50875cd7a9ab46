"""`BatchedExecutor`: many conversations on one model: `infer` feeds the pending tokens of all of them in common batches, `sample` and
`step` draw for several of them in one batch. Modelled on LLamaSharp's class of that name, without embeddings and images as prompts. A
model that does not support left-padded batches takes a forward per conversation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import torch

from outlines_cont.checks import check, check_model, is_int
from outlines_cont.conversation.content import Content, ConversationConstraint, only_row
from outlines_cont.conversation.conversation import Conversation, ConversationPool, draw_each, feed
from outlines_cont.engine.drawing.kept_logits import MAX_KEPT_BYTES
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import open_seeds
from outlines_cont.state.file import load_state
from outlines_cont.state.sequence_state import SequenceState, kv_bytes


class BatchedExecutor(ConversationPool):
    """Conversations that run together on one model, with the random seed and the lock that they share.

    `create` a conversation, `prompt` it, `infer` for all, `sample`. Conversations are referenced weakly; when one is closed or garbage
    collected, its keys and values are freed unless another one shares them. Threads may share an executor: its lock makes calls atomic.
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
        super().__init__(model, open_seeds(seed, 1)[0][0], kept_logits_bytes)

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
            feed(self, self.conversations, meter)
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
        return draw_each(self, conversations, sampler, mask, scores, append=False)

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
            return draw_each(self, chosen, sampler, mask, scores, append=True)

    def load(self, path: str | os.PathLike[str]) -> Conversation:
        """Return a new conversation that continues a saved one, random numbers included.

        Constraints are not saved. If the conversation had one, `sample`, `step`, `allowed` and `is_accepting` raise `ConstraintRequired`
        until `constrain(expression)` sets it again, which then reads the text from where it began, or `constrain(None)` lifts it.

        Raises:
            StateFileError: the file is missing, cut, altered, or something else.
            StateMismatch: it belongs to another model or tokenizer.
            OptionError: it has several rows; load those with `SequenceState.load`.
            ClosedError: the executor is closed.
        """
        with self.lock:
            self._check_open()
            rows, seed, start = load_state(path, self.model)
            row = only_row(SequenceState(self.model, rows, seed), self.model)
            constraint = None if start is None else ConversationConstraint(start)
            return Conversation(self, next(self._numbers), Content.of(row, self.model, constraint))

    def close(self) -> None:
        """Close all conversations; none can be created after it. Closing again does nothing."""
        with self.lock:
            for conversation in self.conversations:
                conversation.close()
            self._closed.set()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "closed" if self.is_closed else f"{len(self._by_number)} conversations"
        return f"<{type(self).__name__} on {self.model!r}, {kind}>"
