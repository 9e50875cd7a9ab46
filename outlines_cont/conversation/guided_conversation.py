"""`guide`: classifier-free guidance step by step over two conversations or states: the next token is drawn from log p(negative) + scale *
(log p(positive) - log p(negative)), with constraint and random numbers of the positive, and appended to both conversations (states are
copied). Scale 1 is the positive context alone, a larger one avoids the negative. In a call of a generator, `Guidance` does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outlines_cont.conversation.executor import BatchedExecutor, Conversation
from outlines_cont.engine.guidance import check_scale, guided_logits
from outlines_cont.errors import ModelMismatch, OptionError
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.stop import FreeText
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.sequence_state import SequenceState


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
