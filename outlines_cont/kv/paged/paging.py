"""`Paging`: what a store has (`KVStore.paging`) if keys and values are kept in slots of a pool, not in growing buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.interfaces import BufferStore, LanguageModel
from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.paged.batch import PagedBatch
from outlines_cont.kv.paged.lease import Lease
from outlines_cont.kv.paged.pool import Pool
from outlines_cont.kv.row import RowKV


class Paging:
    """A pool, with what is made of it."""

    def __init__(self, pool: Pool, store: BufferStore) -> None:
        self.pool = pool
        self._store = store

    def fits(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether keys and values of a device and a float type go into the pool: weights may have been moved since."""
        return self.pool.device == device and self.pool.pairs[0].dtype == dtype

    def open(self, model: LanguageModel, shares: Sequence[RowKV | None]) -> PagedBatch:
        """Return a batch of rows whose tokens are in the pool."""
        return PagedBatch(model, shares, self.pool)

    def hold(self, layers: list[Layer | None]) -> Lease:
        """Return a copy of (Hk, T, D) keys and values per layer, in slots of its own."""
        return Lease.holding(self.pool, self._store, self._store.epoch, layers)


def begin_paging(model: LanguageModel, *, num_slots: int | None = None) -> Pool:
    """Let the rows of a model, all of whose layers have keys and values of one shape, have them in a pool from now on; return the pool.

    On a CPU it is for tests: attention over slots copies them there.
    """
    keys, _ = next(layer for layer in model.kv_layout if layer is not None)
    assert all(layer is not None and layer[0].shape == layer[1].shape == keys.shape for layer in model.kv_layout)
    options = {} if num_slots is None else {"num_slots": num_slots}
    pool = Pool(len(model.kv_layout), keys, **options)
    model.kv_store.paging = Paging(pool, model.kv_store)
    return pool
