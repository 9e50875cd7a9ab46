"""The plain way to read a row with images: one forward of everything, without a cache; transformers computes masks and positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from outlines_cont import SequenceState
from outlines_cont.state.row import SCORED, StateRow

# In these families the images of a row are in one dimension of its pixels.
_JOINED_BY_ROW = ("Idefics3", "SmolVLM")


def whole_logits(model: Any, row: StateRow) -> torch.Tensor:
    """(T, V) logits after each token of a row."""
    network, options = model.hugging_face, dict[str, torch.Tensor]()
    axis = int(type(network).__name__.startswith(_JOINED_BY_ROW))
    given = [span.pixels.inputs for span in row.images if span.pixels is not None and span.pixels.inputs is not None]
    assert len(given) == len(row.images)
    if given:
        options = {name: _joined([inputs[name] for inputs in given], axis) for name in given[0]}
        options |= model._reader.types(row.token_ids)
    place = getattr(network, "model", network)
    if hasattr(place, "rope_deltas"):
        place.rope_deltas = None
    ids = torch.tensor([row.token_ids])
    options["attention_mask"] = torch.ones_like(ids)
    with torch.no_grad():
        logits: torch.Tensor = network(input_ids=ids, use_cache=False, **options).logits[0]
    return logits


def _joined(tensors: list[torch.Tensor], axis: int) -> torch.Tensor:
    """Tensors in one, as a processor joins those of several images: smaller ones are padded at the right and the bottom."""
    sizes = [max(tensor.shape[i] for tensor in tensors) for i in range(tensors[0].dim())]
    padded = []
    for tensor in tensors:
        ends = [0 if i == axis else size - tensor.shape[i] for i, size in enumerate(sizes)]
        padded.append(functional.pad(tensor, [n for end in reversed(ends) for n in (0, end)]))
    return torch.cat(padded, dim=axis)


def worst_error(model: Any, state: SequenceState) -> float:
    """The largest difference of a log-probability of the last pieces of a state from that of the plain way."""
    worst = 0.0
    for row in (row for group in state.rows for row in group):
        if row.error is not None or row.piece is None:
            raise AssertionError(f"a row has not run: {row.error}")
        logprobs = whole_logits(model, row).log_softmax(-1)
        for index in range(row.piece.start, len(row.token_ids)):
            if row.kinds[index] in SCORED:
                found, wanted = row.logprobs[index], float(logprobs[index - 1, row.token_ids[index]])
                worst = max(worst, abs(found - wanted) if math.isfinite(found) else math.inf)
    return worst


def evict_all(model: Any) -> None:
    """Drop all keys and values that no batch reads, as a budget might at any time."""
    for buffer in list(model.kv_store._last_use):
        if not buffer.users and buffer.nbytes:
            buffer.evict()
