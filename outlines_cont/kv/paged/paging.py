"""`Paging`: what a store has (`KVStore.paging`) if keys and values are kept in slots of a pool, not in growing buffers."""

from __future__ import annotations

from collections.abc import Sequence

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

    def open(self, model: LanguageModel, shares: Sequence[RowKV | None]) -> PagedBatch:
        """Return a batch of rows whose tokens are in the pool."""
        return PagedBatch(model, shares, self.pool)

    def hold(self, layers: list[Layer | None]) -> Lease:
        """Return a copy of (Hk, T, D) keys and values per layer, in slots of its own."""
        return Lease.full(self.pool, self._store, self._store.epoch, layers)
