"""`KVStore`: weak references to all buffers of one model, and an optional byte budget for them: to make room, the least recently used
buffers that no batch reads are evicted, those of the prefix cache first. Raises `KVBudgetError` if that does not suffice. Also the
lock of the model, and the epoch of its weights.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from fsm.process_fork import lock, rlock
from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.buffer import Buffer


class KVStore:
    """The live buffers of a model, evicted by LRU to stay within a budget.

    They are referenced weakly: a buffer is freed with the last state that uses it. The states that used an evicted buffer feed its tokens
    again when they are continued.

    Attributes:
        budget_bytes: the most bytes of all buffers together, None for no limit.
        lock: held while the model feeds tokens; acquire it to feed tokens elsewhere, or to read rows that run.
        epoch: a number that grows when the weights have changed, so that earlier keys and values are out of date.
        paging: a `kv.paged.paging.Paging` if keys and values are kept in slots of a pool; None for buffers alone.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.lock = rlock(is_awaited=True)
        self.epoch = 0
        self.paging: Any = None
        self._last_use: WeakKeyDictionary[Buffer, int] = WeakKeyDictionary()
        self._clock = 0
        self._lock = lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers that are alive."""
        return sum(buffer.nbytes for buffer in list(self._last_use))

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token; 0 where nothing was fed yet."""
        return max((buffer.token_bytes for buffer in list(self._last_use)), default=0)

    def touch(self, buffer: Buffer) -> None:
        """Record that `buffer` is used now; one that is new is registered."""
        with self._lock:
            self._clock += 1
            self._last_use[buffer] = self._clock

    def begin_epoch(self) -> None:
        """Mark all keys and values so far as out of date, because the weights have changed."""
        self.epoch += 1

    def has_room(self, nbytes: int) -> bool:
        """Return whether `nbytes` more fit into the budget. Cost: none without a budget."""
        return self.budget_bytes is None or self.nbytes + nbytes <= self.budget_bytes

    def reserve(self, buffer: Buffer, nbytes: int) -> None:
        """Make room for `nbytes` more in `buffer`, by evicting buffers that no batch reads: those of the prefix cache first, by LRU.

        A new buffer is registered. Raises `KVBudgetError` if what is being read and `nbytes` are more than the budget.
        """
        if buffer not in self._last_use:
            self.touch(buffer)
        if self.budget_bytes is None:
            return
        with self._lock:
            idle = [other for other in self._last_use if other is not buffer and not other.users and other.nbytes]
            idle.sort(key=lambda other: (not other.is_spare, self._last_use[other]))
            total = self.nbytes + nbytes
            for other in idle:
                if total <= self.budget_bytes:
                    return
                total -= other.nbytes
                other.evict()
        if total > self.budget_bytes:
            raise KVBudgetError(
                f"expected keys and values within the budget of {self.budget_bytes} bytes, but the rows that run, and what cannot be "
                f"computed again, need {total}. All states are unchanged; run fewer or shorter rows together, or raise `kv_budget_bytes`.",
                total,
                self.budget_bytes,
            )
