"""`tolerance`: the largest error of a probe's logits that rounding explains, in units of their spread: a constant for each float type, that
of half precision for float32 where PyTorch may multiply with fewer bits.
"""

from __future__ import annotations

import torch

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
# Measured on an H100: 32 layers of width 4,096 in bfloat16 are off by 0.26 of the spread of the logits, at the worst of 32,000 tokens.
# Models of eight layers and more that do not see a prefix, or its first token, are off by 4 and more.
_HALF_TOLERANCE = 0.6


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of a probe, in units of the spread of the logits, that rounding explains."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return _HALF_TOLERANCE  # a GPU multiplies with as few bits as those of half precision
    return _TOLERANCE.get(dtype, _HALF_TOLERANCE)
