"""`Guidance`: classifier-free guidance (Sanchez et al. 2023, arXiv:2306.17806): the negative prompt, which replaces the prompt in a second
sequence, and the scale. `guided_logits`: the formula, `scale * log_softmax(p) + (1 - scale) * log_softmax(n)`, of the logits `p` after the
row and `n` after the negative prompt and the generated tokens; where `n` alone is minus infinity, the log-probability of `p`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

import torch

from outlines_cont.checks import is_number
from outlines_cont.errors import OptionError
from outlines_cont.state.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Guidance:
    """The negative prompt and scale of classifier-free guidance. Token ids are stored as a tuple.

    Attributes:
        negative_prompt: a text or `Tokens`, encoded as a prompt is, or token ids, at least one. The empty text is the token that the
            tokenizer puts at the beginning of every text; an error where it puts none.
        scale: 1 is the model's own distribution; 0 is that after the negative prompt; more than 1 moves away from the latter.

    Raises:
        OptionError: the negative prompt is neither a text nor token ids, or the scale is not a finite number.
    """

    negative_prompt: str | Tokens | Sequence[int]
    scale: float

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if not isinstance(self.negative_prompt, str | Tokens):
            object.__setattr__(self, "negative_prompt", _checked_ids(self.negative_prompt))

    @property
    def is_neutral(self) -> bool:
        """Whether the distribution is the model's own, so that the negative prompt is not fed."""
        return self.scale == 1


def guided_logits(positive: torch.Tensor, negative: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Return (..., V) logits of the guided distribution, not normalised.

    Args:
        positive: (..., V) logits after the text.
        negative: the same after the negative prompt and the generated tokens.
        scale: one for all, or (..., 1).

    Returns:
        Minus infinity where `positive` has it. Where only `negative` has it, the log-probability of `positive`. NaN throughout a
        row for which one of the two is not a distribution.
    """
    norm = negative.logsumexp(-1, keepdim=True)
    positive, negative = positive.log_softmax(-1), negative - norm
    guided = negative + scale * (positive - negative)
    guided = torch.where(negative.isneginf(), positive, guided).masked_fill_(positive.isneginf(), -torch.inf)
    return guided.masked_fill_(~norm.isfinite(), torch.nan)


def check_scale(scale: object) -> None:
    """Raise `OptionError` unless `scale` is a finite number."""
    if not is_number(scale) or not abs(scale) < math.inf:
        raise OptionError(f"expected a finite number as `scale`, got {scale!r}", "scale")


def _checked_ids(prompt: object) -> tuple[int, ...]:
    try:
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
            raise TypeError
        token_ids = tuple(index(item) for item in prompt)
    except TypeError:
        raise OptionError(
            f"expected a text or token ids as `negative_prompt`, got {type(prompt).__name__}", "negative_prompt"
        ) from None
    if not token_ids:
        raise OptionError(
            "expected at least one token id as `negative_prompt`, got none. For the token at the beginning of every text pass ''.",
            "negative_prompt",
        )
    return token_ids
