"""`paged_attend`: attention of the last tokens of rows over slots of a pool (paged attention, Kwon et al. 2023), one token to a slot, found
by a table: rows that share a prefix name the same slots, so that nothing is copied, merged or masked. By a kernel of Triton on CUDA, if
there is Triton, else by matrix products over copies.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from outlines_cont.kv.attention import plain_attend

_KERNEL_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST_HEAD = 256


def paged_attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    window: int | None = None,
) -> Tensor:
    """Return softmax attention of the last Q tokens of each row over its tokens.

    Query q of row r is at position `lengths[r] - Q + q`, and sees the positions up to its own. A row with fewer than Q new tokens has them
    at the end, and what comes before is ignored by the caller; a row of length 0 is padding.

    Args:
        query: (R, H, Q, D).
        keys, values: (S, Hk, D), those of all slots; H is a multiple of Hk.
        table: (R, C) int32, the slot of each position; anything from the length of a row on.
        lengths: (R,) int32, the tokens of each row, the queries included; at most C. It is not read by the host.
        scale: the factor of the scores.
        window: how many positions a query sees, its own included; None for all.

    Returns:
        (R, H, Q, D) in the type of `query`; zeros for queries at negative positions.

    Cost: the keys and values of a row are read once for each key head and 64 query heads of it; the plain form copies them.
    """
    if query.device.type == "cuda" and has_kernel(query.dtype, query.shape[-1]):
        from outlines_cont.kv.paged import kernel

        return kernel.paged_attend(query, keys, values, table, lengths, scale, window=window)
    return plain_paged_attend(query, keys, values, table, lengths, scale, window=window)


def plain_paged_attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    window: int | None = None,
) -> Tensor:
    """The same as `paged_attend`, by matrix products over a copy of the keys and values of each row, on any device."""
    count, columns = query.shape[2], table.shape[1]
    at = torch.arange(columns, device=query.device)
    is_token = at < lengths[:, None]
    slots = torch.where(is_token, table, 0).long()
    # What is in a slot that is not of the row may be no number, and would count even by a weight of zero.
    own_keys, own_values = (
        slotted[slots].masked_fill(~is_token[:, :, None, None], 0).transpose(1, 2) for slotted in (keys, values)
    )
    positions = lengths[:, None, None] - count + torch.arange(count, device=query.device)[:, None]
    visible = at <= positions
    if window is not None:
        visible &= at > positions - window
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    mask = torch.zeros(visible.shape, dtype=dtype, device=query.device).masked_fill_(~visible, -torch.inf)
    return plain_attend(query, own_keys, own_values, scale, mask[:, None])[0].to(query.dtype)


def has_kernel(dtype: torch.dtype, size: int) -> bool:
    """Return whether there is a kernel for a float type and a size of heads, on CUDA."""
    return dtype in _KERNEL_TYPES and size <= _LARGEST_HEAD and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
