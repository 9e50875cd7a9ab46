"""`kv_layout`: number of heads, head sizes and dtype of the keys and values in each layer of a model, read from the cache after one
forward of one token, once per model. None for a layer without keys and values of its own; an empty list for a recurrent model.
"""

from __future__ import annotations

import torch

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.buffer import LayerLayout
from outlines_cont.kv.serial import open_batch


def kv_layout(model: LanguageModel) -> list[LayerLayout | None]:
    """Return the layout of every layer, None for one that keeps nothing of its own; no layers for a recurrent model.

    Cost: the first time one forward of one token, which no meter counts.
    """
    if model.is_recurrent:
        return []
    known: list[LayerLayout | None] | None = model.memo.get("kv_layout")
    if known is None:
        with model.kv_store.lock, torch.inference_mode():
            batch = open_batch(model, [None])
            batch.feed([[0]], [[]])
            (row,) = batch.release_all()
        layers = row.layers() if row is not None else []
        known = model.memo["kv_layout"] = [_layout(*layer) if layer is not None else None for layer in layers]
    return known


def _layout(keys: torch.Tensor, values: torch.Tensor) -> LayerLayout:
    return LayerLayout((keys.shape[0], keys.shape[2]), (values.shape[0], values.shape[2]), keys.dtype)
