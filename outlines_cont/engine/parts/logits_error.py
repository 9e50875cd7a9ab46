"""`draw_error`: the error of a row from whose logits no token can be drawn: `InvalidLogits` if those of the model or after the negative
prompt are no distribution, else `DeadEnd`, as no allowed token has a probability. `invalid_logits`: the first, for other callers.
"""

from __future__ import annotations

import math

import torch

from outlines_cont.errors import DeadEnd, InvalidLogits

_INVALID = (
    "expected finite logits from the model after {}, got NaN, an infinity, or minus infinity for every token or for a forced one. "
    "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
)
_INVALID_GUIDANCE = (
    "expected finite logits from the model after the negative prompt and the generated part of {}, got NaN or an infinity. "
    "Try another negative prompt, a smaller scale, or `dtype='float32'`."
)
_DEAD_END = (
    "every token that the constraint allows after {} has probability zero in the model. "
    "The model itself masks tokens that the text needs; loosen the constraint, or use another model."
)


def invalid_logits(excerpt: str) -> InvalidLogits:
    """Return the error of a row with non-finite logits, after `excerpt` of it."""
    return InvalidLogits(_INVALID.format(excerpt))


def draw_error(excerpt: str, logits: torch.Tensor | None, is_guided: bool, sampling_logprob: float) -> Exception | None:
    """Return the error of a row for which a draw from its (V,) logits gave a log-probability that is not finite."""
    if logits is None or not logits.logsumexp(0).isfinite():
        return invalid_logits(excerpt)
    if is_guided and math.isnan(sampling_logprob):
        return InvalidLogits(_INVALID_GUIDANCE.format(excerpt))
    return None if math.isfinite(sampling_logprob) else DeadEnd(_DEAD_END.format(excerpt))
