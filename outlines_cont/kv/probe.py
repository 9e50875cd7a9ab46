"""`branch_error`: measures, by 7 short forwards of random ids, how far attention over a shared prefix in place changes the logits of a
model, in units of their standard deviation. Infinite where the model ignores the shared keys, or fails.
"""

from __future__ import annotations

from typing import cast

import torch

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.share import Sharing
from outlines_cont.kv.store import KVStore


class _Probed:
    """A stand-in for a model that is being probed, with every capability switched on, so that a `KVBatch` uses them."""

    can_skip = True
    can_branch = True

    def __init__(self, model: LanguageModel) -> None:
        self.device = model.device
        self.dtype = model.dtype
        self.forward = model.forward
        self.kv_store = KVStore()


def branch_error(model: LanguageModel, num_ids: int) -> float:
    """Return the largest error of the logits of two rows that read a shared prefix in place, in units of their standard deviation.

    It is infinite where the model does not attend to what its cache returns, or raises an error. Ids are drawn below `num_ids`.

    Cost: 7 forwards of at most 13 ids.
    """
    generator = torch.Generator().manual_seed(0)
    common = torch.randint(num_ids, (9,), generator=generator).tolist()
    tails = torch.randint(num_ids, (2, 4), generator=generator).tolist()
    plain = torch.stack([_logits(model, [common + tail], [8 + 2, 8 + 4]) for tail in tails])
    batch = _batch(model)
    batch.feed([common], [[8]])
    batch.keep([0, 0])
    try:
        first = batch.feed([tail[:2] for tail in tails], [[1], [1]]).logits[:, 0]
        batch.feed([tail[2:3] for tail in tails], [[0], [0]])
        last = batch.feed([tail[3:] for tail in tails], [[0], [0]]).logits[:, 0]
    except Exception:  # whatever a model does with a mask or keys that it does not expect: it cannot branch
        return float("inf")
    error = (torch.stack([first, last], dim=1) - plain).abs().max() / plain.std().clamp_min(1e-30)
    return float(error.nan_to_num(nan=float("inf")))


def _logits(model: LanguageModel, chunks: list[list[int]], wanted: list[int]) -> torch.Tensor:
    """Return (len(wanted), V) logits of one row that is fed whole."""
    return _batch(model).feed(chunks, [wanted]).logits[0]


def _batch(model: LanguageModel) -> KVBatch:
    return KVBatch(cast(LanguageModel, _Probed(model)), [None], sharing=Sharing(1, 1))
