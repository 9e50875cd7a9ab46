"""`prefix_attention`: attention over prefixes that rows share (Hydragen, cascade attention), as an attention function of transformers. A
shared segment is read by one call with the queries of all its rows (Juravsky et al. 2024), the tails by another, and the parts are merged
exactly by their log-sum-exp (Milakov and Gimelshein 2018). Without segments it is "sdpa" on a CPU, and a kernel of our choice on CUDA.
Kernels of PyTorch are used where they fit (all but float64 on CUDA), else matrix products. `prefix_attention_of` switches a model to it.

The cache passes the segments as an attribute of the key tensor. A model may change that tensor before it calls its attention function,
so every call is counted, and the batch checks the count after the forward.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from outlines_cont.device import upload

# With "sdpa" in its name, transformers refuses it for models that have no such attention (soft-capping, sinks).
NAME = "shared_prefix_sdpa"
_ATTRIBUTE = "_outlines_cont_prefix"
_REPEATED = "_outlines_cont_repeated"
_ALIGNED = 8
_LARGEST_HEAD = 256

Attended = tuple[Tensor, Tensor]
"""Softmax attention, and the log-sum-exp of its scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Which rows of the batch attend to which rows of a segment.

    Attributes:
        gather: (b * s,) int64, the batch rows of each segment row, padded by repeats; None: batch row i belongs to segment row i // s.
        rows: (n,) int64, the batch rows that attend to the segment; None for all, in order.
        indices: (n,) int64, their indices in `gather`.
    """

    gather: Tensor | None = None
    rows: Tensor | None = None
    indices: Tensor | None = None

    def to(self, device: torch.device) -> Queries:
        """Return the same on a device."""
        return Queries(
            *(
                tensor if tensor is None else upload(tensor.numpy(), device)
                for tensor in (self.gather, self.rows, self.indices)
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrefixLayer:
    """One segment in one layer, and the queries that attend to it.

    Attributes:
        keys, values: (b, Hk, P, D).
        mask: (b, 1, 1, P) additive, in the float type of the keys; None where all columns are visible. Some column of every row is.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    queries: Queries


@dataclass(slots=True, eq=False)
class Prefix:
    """The segments of one layer for one forward, in the order of the sequences; `uses` counts the calls that have read them."""

    layers: list[PrefixLayer]
    uses: int = 0

    def attach(self, keys: Tensor) -> Tensor:
        """Return `keys` as a tensor that carries this prefix."""
        carrier = keys.view(keys.shape) if keys.is_contiguous() else keys[:]
        setattr(carrier, _ATTRIBUTE, self)
        return carrier


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Attended:
    """Return softmax attention and the log-sum-exp of its scores.

    Args:
        query: (B, H, Q, D).
        keys, values: (B, Hk, K, D); H is a multiple of Hk.
        scale: the factor of the scores.
        mask: of `additive_mask`, broadcast to (B, 1, Q, K); None for all visible. On CUDA every query sees a key.

    Returns:
        (B, H, Q, D) and (B, H, Q) at least float32; zeros and minus infinity for a query that sees no key.
    """
    if query.device.type == "cpu" and query.shape[-1] == values.shape[-1]:
        return _cpu_attend(query, keys, values, scale, mask)
    if query.device.type == "cuda" and query.dtype != torch.float64:
        return _cuda_attend(query, keys, values, scale, mask)
    return plain_attend(query, keys, values, scale, mask)


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `visible` (B, 1, Q, K) bool is true, else minus infinity; rows are aligned for GPU kernels, to 8 elements."""
    columns = visible.shape[-1]
    padded = torch.zeros((*visible.shape[:-1], -(-columns // _ALIGNED) * _ALIGNED), dtype=dtype, device=visible.device)
    return padded[..., :columns].masked_fill_(~visible, -torch.inf)


def causal_mask(count: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the additive mask (1, 1, Q, K) of `count` queries, the last of `columns` tokens, each of which sees those before it."""
    visible = torch.ones((1, 1, count, columns), dtype=torch.bool, device=device).tril_(columns - count)
    return additive_mask(visible, dtype)


def _cpu_attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Attended:
    out, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
    if mask is not None:
        # The operator returns 0 where nothing is visible, which would weigh as much as a key with that score.
        norm = norm.masked_fill((mask == -torch.inf).all(dim=-1), -torch.inf)
    return out, norm


def _cuda_attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Attended:
    """The same as `attend`, by the kernel that takes the arguments: flash without a mask, else the memory-efficient one.

    Not by `scaled_dot_product_attention`, which may choose cuDNN: that builds a plan for every new length, in some 45 ms.
    """
    if mask is None and fits_flash(query.dtype, query.shape[-1], values.shape[-1]):
        return _flash(query, keys, values, scale, is_causal=False)
    rows, heads, count, size = query.shape
    groups = heads // keys.shape[1]
    if groups > 1:
        # The kernel has no grouped heads: the query heads of a key head become its queries, so that its keys are read once.
        query, mask = query.reshape(rows, keys.shape[1], -1, size), None if mask is None else _repeated(mask, groups)
    bias = None if mask is None else mask.expand(*query.shape[:3], keys.shape[2])
    out, norm, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, keys, values, bias, True, 0.0, False, scale=scale
    )
    norm = norm[:, :, : query.shape[2]]  # the operator rounds the number of queries up
    return out.reshape(rows, heads, count, -1), norm.reshape(rows, heads, count)


def fits_flash(dtype: torch.dtype, size: int, value_size: int) -> bool:
    """Whether the flash kernel takes a float type and these sizes of the heads of queries and values."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    return is_half and size == value_size and size % _ALIGNED == 0 and size <= _LARGEST_HEAD


def _flash(query: Tensor, keys: Tensor, values: Tensor, scale: float, *, is_causal: bool) -> Attended:
    """Attend by the flash kernel. Causal queries are the last of the tokens that `keys` has: its mask is that of the lower right."""
    out, norm, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        query, keys, values, 0.0, is_causal, False, scale=scale
    )
    return out, norm


def _repeated(mask: Tensor, groups: int) -> Tensor:
    """Return a mask (B, 1, Q, K) for the queries of several heads as those of one, (B, 1, groups * Q, K); made once for all layers."""
    if mask.shape[2] == 1:
        return mask
    known: tuple[int, Tensor] | None = getattr(mask, _REPEATED, None)
    if known is None or known[0] != groups:
        rows, _, count, columns = mask.shape
        padded = mask.new_empty((rows, 1, groups, count, -(-columns // _ALIGNED) * _ALIGNED))
        padded[..., :columns] = mask[:, :, None]
        known = groups, padded.flatten(2, 3)[..., :columns]
        setattr(mask, _REPEATED, known)
    return known[1]


def plain_attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Attended:
    """The same as `attend`, by matrix products on any device."""
    groups = query.shape[1] // keys.shape[1]
    folded = query.reshape(query.shape[0], keys.shape[1], groups, *query.shape[2:])
    scores = torch.einsum("bhgqd,bhkd->bhgqk", folded, keys)
    scores = (scores if scores.dtype == torch.float64 else scores.float()) * scale
    if mask is not None:
        scores = scores + mask.unsqueeze(1)
    norm = scores.logsumexp(-1)
    weights = (scores - norm.nan_to_num(neginf=0.0).unsqueeze(-1)).exp().to(values.dtype)
    out = torch.einsum("bhgqk,bhkd->bhgqd", weights, values)
    return out.flatten(1, 2), norm.flatten(1, 2)


def prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of transformers, over the segments that `key` carries and the tail in it; without segments, that of "sdpa".

    Takes (R, H, Q, D) queries, (R, Hk, K, D) tails, and an additive (R, 1, Q, K) mask; None if a single query sees the whole tail, and on
    CUDA also for several queries that are its last tokens, each of which sees those before it. `dropout` is 0. Returns (R, Q, H, D), and
    None for the weights.
    """
    prefix: Prefix | None = getattr(key, _ATTRIBUTE, None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if prefix is None:
        found = _chosen(query, key, value, scale, attention_mask) if query.device.type == "cuda" else None
        if found is not None:
            return found.transpose(1, 2), None
        options = {"dropout": dropout, "scaling": scaling, **kwargs}
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return plain
    prefix.uses += 1
    out, norm = _tail(query, key, value, scale, attention_mask)
    for layer in prefix.layers:
        out, norm = _merge(out, norm, *_segment(query, layer, scale), layer.queries.rows)
    return out.transpose(1, 2).contiguous(), None


def _chosen(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Tensor | None:
    """Return attention on CUDA by a kernel of our choice, causal for several queries without a mask; None where PyTorch has to choose."""
    is_first = mask is None and 1 < query.shape[2] == keys.shape[2]  # several queries are all tokens that there are
    if query.dtype == torch.float64 or (is_first and not _is_flash(query, values)):
        return None
    if mask is not None and mask.dtype == torch.bool:
        mask = additive_mask(mask, query.dtype)
    return _tail(query, keys, values, scale, mask)[0]


def _is_flash(query: Tensor, values: Tensor) -> bool:
    return fits_flash(query.dtype, query.shape[-1], values.shape[-1])


def _tail(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Attended:
    rows, heads, count, size = query.shape
    if query.device.type == "cuda":
        if mask is None and count > 1:
            if _is_flash(query, value):
                return _flash(query, key, value, scale, is_causal=True)
            mask = causal_mask(count, key.shape[2], query.dtype, query.device)
        return attend(query, key, value, scale, mask)
    if count > 1:
        return attend(query, key, value, scale, mask)
    # A single query: the query heads of a key head become its queries, so that its keys are read once.
    folded = query.reshape(rows, key.shape[1], -1, size)
    out, norm = attend(folded, key, value, scale, mask)
    return out.reshape(rows, heads, 1, -1), norm.reshape(rows, heads, 1)


def _segment(query: Tensor, layer: PrefixLayer, scale: float) -> Attended:
    """Return attention and norm of the rows that attend to a segment, each shaped as those of the batch."""
    queries = layer.queries
    gathered = query if queries.gather is None else query.index_select(0, queries.gather)
    segments, key_heads = layer.keys.shape[:2]
    total, heads, count, size = gathered.shape
    samples, groups = total // segments, heads // key_heads
    split = gathered.reshape(segments, samples, key_heads, groups, count, size)
    folded = split.transpose(1, 2).reshape(segments, key_heads, samples * groups * count, size)
    out, norm = attend(folded, layer.keys, layer.values, scale, layer.mask)
    shape = (segments, key_heads, samples, groups, count)
    out = out.reshape(*shape, -1).transpose(1, 2).reshape(total, heads, count, -1)
    norm = norm.reshape(shape).transpose(1, 2).reshape(total, heads, count)
    if queries.indices is None:
        return out, norm
    return out.index_select(0, queries.indices), norm.index_select(0, queries.indices)


def _merge(out: Tensor, norm: Tensor, more: Tensor, more_norm: Tensor, rows: Tensor | None) -> Attended:
    """Return attention and log-sum-exp over the union of the keys of `out` and `more`; `more` is for `rows` only."""
    if rows is not None:
        some, some_norm = _merge(out.index_select(0, rows), norm.index_select(0, rows), more, more_norm, None)
        return out.index_copy(0, rows, some), norm.index_copy(0, rows, some_norm)
    share = torch.sigmoid(more_norm - norm).unsqueeze(-1).to(out.dtype)
    return torch.lerp(out, more, share), torch.logaddexp(norm, more_norm)


AttentionInterface.register(NAME, prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)

_lock = threading.Lock()
_open: dict[int, tuple[int, str]] = {}


@contextmanager
def prefix_attention_of(config: Any) -> Iterator[None]:
    """Let a model with this config attend by `prefix_attention` inside the block, and restore its attention function after it.

    Where nothing is shared the two functions are equal, so other threads may run the model meanwhile.
    """
    key = id(config)
    with _lock:
        count, own = _open.get(key, (0, config._attn_implementation))
        _open[key] = (count + 1, own)
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _lock:
            count, own = _open.pop(key)
            if count > 1:
                _open[key] = (count - 1, own)
            else:
                config._attn_implementation = own
