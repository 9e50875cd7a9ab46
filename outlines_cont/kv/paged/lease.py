"""`Lease`: slots of a pool that one row has taken for tokens that it feeds, with the interface of a `Buffer`: so what is done with buffers
(budget, eviction, prefix cache, files) is done with leases. Its slots go back when nothing refers to it any more, or when it is evicted.
"""

from __future__ import annotations

import numpy as np
import torch

from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.buffer import Buffer, Layer
from outlines_cont.kv.paged.pool import Pool, Slots
from outlines_cont.kv.row import KVPart


class Lease(Buffer):
    """Slots of one row. As a buffer it has one row, whose columns are all slots of the pool; its `used` counts its own slots.

    Attributes:
        pool: where the slots are.
        owned: the slots that it has, in the order in which they are used.
    """

    def __init__(self, pool: Pool, store: BufferStore, epoch: int) -> None:
        super().__init__(store.reserve, 1, epoch)
        self.pool = pool
        self.owned: Slots = np.empty(0, dtype=np.int64)

    @classmethod
    def holding(cls, pool: Pool, store: BufferStore, epoch: int, layers: list[Layer | None]) -> Lease:
        """Return a lease with a copy of (Hk, T, D) keys and values per layer, without spare slots, which is never appended to."""
        lease = cls(pool, store, epoch)
        lease.extend(next(layer[0].shape[1] for layer in layers if layer is not None))
        pool.write(lease.owned, layers)
        lease.used = len(lease.owned)
        lease._owner.add(lease)
        return lease

    def __del__(self) -> None:
        pool = self.__dict__.get("pool")
        if pool is not None:
            pool.give(self.owned)

    def claim(self, owner: object, stop: int) -> bool:
        """Return False: its columns are none that a batch of a buffer could append to."""
        return False

    def begin(self, owner: object) -> bool:
        """Claim the slots behind the used ones for `owner`; return False if another batch has the claim, or it was evicted."""
        return super().claim(owner, self.used)

    def extend(self, stop: int) -> None:
        """Let it have at least `stop` slots; raise `KVBudgetError` if there is no room."""
        count = stop - len(self.owned)
        if count > 0:
            self._make_room(self, count * self.pool.token_bytes)
            self.owned = np.concatenate([self.owned, self.pool.take(count)])
            self.nbytes = len(self.owned) * self.pool.token_bytes

    def shrink(self) -> None:
        """Give the slots back that are not used."""
        if len(self.owned) > self.used:
            self.pool.give(self.owned[self.used :])
            self.owned = self.owned[: self.used]
            self.nbytes = len(self.owned) * self.pool.token_bytes

    def evict(self) -> None:
        """Give all slots back; rows with tokens there feed these again."""
        super().evict()
        self.pool.give(self.owned)
        self.owned = self.owned[:0]

    def parts(self, start: int, stop: int) -> list[KVPart]:
        """Return the tokens in some of its slots, as parts whose slots ascend."""
        chosen = self.owned[start:stop]
        if not len(chosen):
            return []
        return [KVPart(self, 0, run) for run in np.split(chosen, np.flatnonzero(np.diff(chosen) < 0) + 1)]

    @property
    def device(self) -> torch.device | None:
        """That of the pool."""
        return self.pool.device

    @property
    def num_layers(self) -> int:
        """The layers of the pool."""
        return len(self.pool.pairs)

    @property
    def token_bytes(self) -> int:
        """Bytes of a slot in all layers."""
        return self.pool.token_bytes

    def layer(self, index: int) -> Layer | None:
        """Return (1, Hk, S, D) keys and values of a layer, of all slots of the pool."""
        keys, values = self.pool.pairs[index].unbind()
        return keys[None], values[None]
