"""Keys and values as a plain `DynamicCache` of transformers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.row import RowKV


def to_dynamic_cache(rows: Sequence[RowKV | None], width: int) -> DynamicCache:
    """Return a cache of the given rows and `width` columns, each row flush right, zeros on its left.

    Args:
        rows: at least one of them with tokens, none with more than `width`; None is a row of padding only.
        width: columns of the cache.

    Cost: one copy of everything.
    """
    lines = [row.layers() if row is not None else [] for row in rows]
    pattern = next(line for line in lines if line)
    cache = DynamicCache()
    cache.layers = [
        _cache_layer([line[index] if line else None for line in lines], like, width)
        for index, like in enumerate(pattern)
    ]
    return cache


def _cache_layer(rows: Sequence[Layer | None], like: Layer | None, width: int) -> DynamicLayer:
    layer: DynamicLayer = DynamicLayer()  # type: ignore[no-untyped-call]
    if like is None:
        return layer
    keys, values = (_padded([row[i] if row else None for row in rows], like[i], width) for i in (0, 1))
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


def _padded(rows: Sequence[torch.Tensor | None], like: torch.Tensor, width: int) -> torch.Tensor:
    heads, _, size = like.shape
    out = like.new_zeros((len(rows), heads, width, size))
    for index, row in enumerate(rows):
        if row is not None:
            out[index, :, width - row.shape[1] :] = row
    return out
