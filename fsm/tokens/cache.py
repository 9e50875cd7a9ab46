"""`ByteCache`: a cache bounded in bytes with second-chance eviction, safe to share between threads. A look-up takes no lock, it only marks
the entry; a marked entry that would be evicted next loses its mark and moves to the end of the queue (the clock algorithm; Corbato 1968).
The last entry is never evicted, however large. Memory that keys keep alive may be charged to an owner, once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from fsm.process_fork import lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """A cache of values by key, of at most `max_bytes` bytes, or of one larger value; the caller of `put` gives the size of a value.

    Values may have an owner: something that their keys keep in memory, and that counts once for all of them, from when it is
    charged until the last of them is removed.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._entries = OrderedDict[K, tuple[V, int, Hashable]]()  # in the order of eviction
        self._used = set[K]()
        self._owners: dict[Hashable, list[int]] = {}  # the number of values of each, and the bytes charged for it
        self._lock = lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """True when `key` has a value; it does not count as used."""
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value of `key`, which counts as used now, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._used.add(key)
        return entry[0]

    def items(self) -> list[tuple[K, V]]:
        """All keys and values; none counts as used."""
        with self._lock:
            return [(key, entry[0]) for key, entry in self._entries.items()]

    def put(self, key: K, value: V, nbytes: int, owner: Hashable = None) -> V:
        """Store and return `value`, unused; others are evicted above `max_bytes`. Cost: 0.7 us."""
        with self._lock:
            if owner is not None:
                self._owners.setdefault(owner, [0, 0])[0] += 1
            if key in self._entries:
                self._release(self._entries.pop(key))
            self._entries[key] = value, nbytes, owner
            self.nbytes += nbytes
            if self.nbytes > self.max_bytes:
                self._shrink()
        return value

    def get_or_put(self, key: K, make: Callable[[], V], nbytes: int) -> V:
        """The value of `key`, which is made and stored if there is none; threads that ask at the same time may each make it."""
        found = self.get(key)
        return self.put(key, make(), nbytes) if found is None else found

    def has_uncharged(self, owner: Hashable) -> bool:
        """True when the cache has values of `owner` and nothing was charged for it."""
        return self._owners.get(owner, (0, 1))[1] == 0

    def charge(self, owner: Hashable, nbytes: int) -> None:
        """Count `nbytes` for `owner`, as long as the cache has a value of it."""
        with self._lock:
            known = self._owners.get(owner)
            if known is not None:
                self.nbytes += nbytes - known[1]
                known[1] = nbytes
                self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._used.clear()
            self._owners.clear()
            self.nbytes = 0

    def _shrink(self) -> None:
        if len(self._used) > len(self._entries):
            self._used &= self._entries.keys()  # a concurrent `get` may have marked an evicted entry
        while self.nbytes > self.max_bytes and len(self._entries) > 1:
            key, entry = self._entries.popitem(last=False)
            if key in self._used:
                self._used.discard(key)
                self._entries[key] = entry
            else:
                self._release(entry)

    def _release(self, entry: tuple[V, int, Hashable]) -> None:
        _, nbytes, owner = entry
        self.nbytes -= nbytes
        if owner is not None:
            known = self._owners[owner]
            known[0] -= 1
            if not known[0]:
                self.nbytes -= known[1]
                del self._owners[owner]
