"""`to_dynamic_cache`, `from_dynamic_cache`: convert the keys and values of rows to a plain `DynamicCache` of transformers, left-padded
with zeros, and back, as rows of one shared `Buffer` in which masked columns are skipped. Everything is copied. On the way back only
plain layers are accepted: sliding windows and recurrent states raise `UnsupportedModel`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.buffer import FOREIGN, Buffer
from outlines_cont.kv.row import KVPart, RowKV


def to_dynamic_cache(rows: Sequence[RowKV | None], width: int) -> DynamicCache:
    """Return a cache of `width` columns, each row left-padded with zeros; None is a row of padding only.

    At least one row has tokens, none more than `width`.
    """
    lines = [row.layers() if row is not None else [] for row in rows]
    cache = DynamicCache()
    for index, like in enumerate(next(line for line in lines if line)):
        layer: DynamicLayer = DynamicLayer()  # type: ignore[no-untyped-call]
        if like is not None:
            pairs = [line[index] if line else None for line in lines]
            keys, values = (_padded([pair[i] if pair else None for pair in pairs], like[i], width) for i in (0, 1))
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _padded(rows: Sequence[torch.Tensor | None], like: torch.Tensor, width: int) -> torch.Tensor:
    heads, _, size = like.shape
    out = like.new_zeros((len(rows), heads, width, size))
    for index, row in enumerate(rows):
        if row is not None:
            out[index, :, width - row.shape[1] :] = row
    return out


def from_dynamic_cache(store: BufferStore, cache: Cache, mask: NDArray[np.bool_]) -> list[RowKV | None]:
    """Return the keys and values of each row of `cache` (R rows, C columns) where `mask` (R, C) is True; None for a row without tokens.

    Raises:
        UnsupportedModel: a layer is of another kind, such as one with a sliding window, which drops old tokens.
        ValueError: the cache has another number of rows or columns than the mask.
    """
    # Exact types: layers with a recurrent state derive from DynamicLayer.
    odd = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if odd:
        raise UnsupportedModel(
            f"expected plain layers (DynamicLayer) in the cache, got {odd}. Make it with `DynamicCache()`, without a config."
        )
    buffer = Buffer(store.reserve, mask.shape[0], FOREIGN)
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            shape = (layer.keys.shape[0], layer.keys.shape[2])
            if shape != mask.shape:
                raise ValueError(f"expected {mask.shape[0]} rows and {mask.shape[1]} columns in the cache, got {shape}")
            buffer.write(index, 0, layer.keys, layer.values)
    lines = [np.flatnonzero(row) for row in mask]
    return [RowKV((KVPart(buffer, row, columns),)) if len(columns) else None for row, columns in enumerate(lines)]
