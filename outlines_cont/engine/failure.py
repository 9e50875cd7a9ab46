"""`fails`: the error of a row for which no token can be drawn: invalid logits, or a mask without a token that is possible."""

from __future__ import annotations

import math

from outlines_cont.engine.row import Row
from outlines_cont.errors import DeadEnd, InvalidLogits


def fails(row: Row, logprob: float, sampling_logprob: float) -> bool:
    """Return whether no token can be drawn for a row, and end it with the reason.

    Args:
        row: the row, with its logits.
        logprob, sampling_logprob: of the token that was drawn, by the model and as it was drawn.
    """
    if math.isfinite(logprob) and math.isfinite(sampling_logprob):
        return row.error is not None
    if row.logits is None or not row.logits.logsumexp(0).isfinite():
        row.fail(InvalidLogits(_INVALID.format(row.place)))
    elif row.shadow is not None and math.isnan(sampling_logprob):
        row.fail(InvalidLogits(_INVALID_GUIDANCE.format(row.place)))
    elif not math.isfinite(sampling_logprob):
        row.fail(DeadEnd(_DEAD_END.format(row.place)))
    return row.error is not None


_INVALID = (
    "expected finite logits from the model after {}, got NaN, an infinity, or minus infinity for every token. "
    "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
)
_INVALID_GUIDANCE = (
    "expected finite logits from the model after the negative prompt and what was written behind {}, got NaN or an infinity. "
    "Try another negative prompt, a smaller scale, or `dtype='float32'`."
)
_DEAD_END = (
    "every token that the constraint allows after {} has probability zero in the model. "
    "The model itself masks tokens that the text needs; loosen the constraint, or use another model."
)
