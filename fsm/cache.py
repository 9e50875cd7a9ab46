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
    owner: Hashable
    is_used: bool = True


@dataclass(slots=True)
class _Owner:
    num_entries: int = 0
    nbytes: int = 0


class ByteCache(Generic[K, V]):
    """Values by key, `max_bytes` of them at most; each value says its own size when it is put in.

    Values may have an owner: something that their keys keep in memory, and that counts once for all of them, from when it is
    charged until the last of them goes. One value alone may be larger than all may be together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._entries: dict[K, _Entry[V]] = {}  # in the order in which they may have to go
        self._owners: dict[Hashable, _Owner] = {}
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

    def put(self, key: K, value: V, nbytes: int, owner: Hashable = None) -> V:
        """Keep `value`; others go when the sum passes `max_bytes`. Returns `value`."""
        with self._lock:
            old = self._entries.pop(key, None)
            if owner is not None:
                self._owners.setdefault(owner, _Owner()).num_entries += 1
            if old is not None:
                self._release(old)
            self.nbytes += nbytes
            self._entries[key] = _Entry(value, nbytes, owner)
            self._shrink()
        return value

    def has_uncharged(self, owner: Hashable) -> bool:
        """True when values of `owner` are kept and nothing was charged for it."""
        known = self._owners.get(owner)
        return known is not None and not known.nbytes

    def charge(self, owner: Hashable, nbytes: int) -> None:
        """Count `nbytes` for `owner`, as long as any value of it is kept."""
        with self._lock:
            known = self._owners.get(owner)
            if known is not None:
                self.nbytes += nbytes - known.nbytes
                known.nbytes = nbytes
                self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._owners.clear()
            self.nbytes = 0

    def _shrink(self) -> None:
        while self.nbytes > self.max_bytes and len(self._entries) > 1:
            key, entry = next(iter(self._entries.items()))
            del self._entries[key]
            if entry.is_used:
                entry.is_used = False
                self._entries[key] = entry
            else:
                self._release(entry)

    def _release(self, entry: _Entry[V]) -> None:
        self.nbytes -= entry.nbytes
        if entry.owner is not None:
            owner = self._owners[entry.owner]
            owner.num_entries -= 1
            if not owner.num_entries:
                self.nbytes -= owner.nbytes
                del self._owners[entry.owner]
