"""Reductions by blocks: maxima or sums of blocks of a row are one fast pass, and tell in which blocks to look further.

The last block of a row may be shorter than the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Reduce = Callable[..., torch.Tensor]


def reduced(values: torch.Tensor, size: int, reduce: Reduce) -> torch.Tensor:
    """Return (R, ceil(N / size)): `reduce`, such as `torch.amax`, of every block of (R, N) values."""
    whole = values.shape[-1] // size * size
    parts = [reduce(values[:, whole:], -1, keepdim=True)] if whole < values.shape[-1] else []
    if whole:
        parts.insert(0, reduce(values[:, :whole].view(len(values), -1, size), -1))
    return torch.cat(parts, dim=-1)


def places(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Return (R, B * size) int64: the places of all values of (R, B) blocks; behind the end where a block is shorter."""
    return (blocks[..., None] * size + torch.arange(size, device=blocks.device)).flatten(1)


def taken(values: torch.Tensor, at: torch.Tensor, behind: float) -> torch.Tensor:
    """Return the (R, N) values at (R, M) places, and `behind` for places behind the end."""
    last = values.shape[-1] - 1
    return values.gather(-1, at.clamp_max(last)).masked_fill(at > last, behind)
