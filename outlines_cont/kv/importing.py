"""Rows out of a `DynamicCache` of transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.buffer import FOREIGN, Buffer
from outlines_cont.kv.row import KVPart, RowKV


def from_dynamic_cache(store: BufferStore, cache: Cache, mask: NDArray[np.bool_]) -> list[RowKV | None]:
    """Return one share per row of `cache`; everything is copied.

    Args:
        store: where the copy belongs to.
        cache: R rows and C columns in plain layers.
        mask: bool, (R, C), where a column is a token of the row.

    Raises:
        UnsupportedModel: a layer is of another kind, such as one with a sliding window, which has forgotten tokens.
        ValueError: the cache has another number of rows or columns than the mask.
    """
    buffer = Buffer(store, mask.shape[0], epoch=FOREIGN)
    for index, layer in enumerate(_plain(cache.layers)):
        if not layer.is_initialized or layer.keys is None or layer.values is None:
            continue
        shape = (layer.keys.shape[0], layer.keys.shape[2])
        if shape != mask.shape:
            raise ValueError(f"expected {mask.shape[0]} rows and {mask.shape[1]} columns in the cache, got {shape}")
        buffer.write(index, 0, layer.keys, layer.values)
    lines = [np.flatnonzero(row) for row in mask]
    return [RowKV((KVPart(buffer, row, columns),)) if len(columns) else None for row, columns in enumerate(lines)]


def _plain(layers: Sequence[object]) -> list[DynamicLayer]:
    # Exact types: layers with a recurrent state derive from DynamicLayer.
    odd = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if odd:
        raise UnsupportedModel(
            f"expected plain layers (DynamicLayer) in the cache, got {odd}. Make it with `DynamicCache()`, without a config."
        )
    return [layer for layer in layers if isinstance(layer, DynamicLayer)]
