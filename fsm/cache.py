"""A cache bounded in bytes that forgets what was used least recently. Safe to share between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Values by key, `max_bytes` of them at most; each value says its own size when it is put in."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of `key`, which counts as used now, or None."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, nbytes: int) -> V:
        """Keep `value`; the oldest others go when the sum passes `max_bytes`. Returns `value`."""
        with self._lock:
            old = self._values.pop(key, None)
            self.nbytes += nbytes - (old[1] if old else 0)
            self._values[key] = (value, nbytes)
            while self.nbytes > self.max_bytes and len(self._values) > 1:
                self.nbytes -= self._values.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0
