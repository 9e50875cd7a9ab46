"""`Pool`: the keys and values of all rows of a model in slots, one token to a slot, of one tensor for each layer. Slots are lent by
`Lease`s, and come back from these. The tensors are as large as what was lent at once has needed, and half as much again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fsm.process_fork import lock

Slots = NDArray[np.int64]
"""(n,) int64, some slots of a pool."""

_NUM_SLOTS = 1024


class Pool:
    """Slots for the keys and values of tokens, which the layers of a decoder write and read by number.

    Slot 0 is never lent: what is padding writes there, and nothing reads it. Methods may be called by any thread.

    Args:
        num_layers, like: how many layers there are, all with keys and values like (Hk, any, D) `like`.
        num_slots: how many slots there are at first.
        budget_bytes: the bytes up to which the pool may have more slots than are lent; None for any.

    Attributes:
        pairs: for each layer (2, Hk, S, D), keys and values.
        version: how often the tensors were replaced by larger ones.
        token_bytes: the bytes of a slot in all layers.
    """

    def __init__(
        self, num_layers: int, like: torch.Tensor, *, num_slots: int = _NUM_SLOTS, budget_bytes: int | None = None
    ) -> None:
        heads, _, size = like.shape
        with torch.inference_mode():
            self.pairs = [like.new_zeros((2, heads, num_slots, size)) for _ in range(num_layers)]
        self.version = 0
        self.token_bytes = num_layers * 2 * heads * size * like.element_size()
        self._budget_bytes = budget_bytes
        self._free = np.arange(num_slots - 1, 0, -1)  # the last ones are lent first
        self._returned: deque[Slots] = deque()
        self._lock = lock()

    @property
    def device(self) -> torch.device:
        """Where the slots are."""
        return self.pairs[0].device

    @property
    def num_slots(self) -> int:
        """S."""
        return self.pairs[0].shape[2]

    @property
    def num_free(self) -> int:
        """How many slots are not lent."""
        with self._lock:
            self._collect()
            return len(self._free)

    def take(self, count: int) -> Slots:
        """Return slots that nobody has, ascending. Cost: none, or a copy of all slots where there are too few."""
        with self._lock:
            self._collect()
            if len(self._free) < count:
                self._grow(count - len(self._free))
            first = len(self._free) - count
            taken, self._free = self._free[first:], self._free[:first]
            return np.sort(taken)

    def give(self, slots: Slots) -> None:
        """Take slots back. It takes no lock, as the collector of Python may call it anywhere."""
        self._returned.append(slots)

    def write(self, slots: Slots, layers: Sequence[tuple[torch.Tensor, torch.Tensor] | None]) -> None:
        """Write (Hk, T, D) keys and values of each layer to T slots."""
        with torch.inference_mode():
            at = torch.from_numpy(slots).to(self.device)
            for pair, layer in zip(self.pairs, layers, strict=True):
                assert layer is not None
                pair[:, :, at] = torch.stack(layer)

    def _collect(self) -> None:
        returned = []
        while self._returned:
            returned.append(self._returned.popleft())
        if returned:
            # The lowest last, so that rows have adjacent slots again.
            self._free = np.concatenate([self._free, np.sort(np.concatenate(returned))[::-1]])

    def _grow(self, missing: int) -> None:
        """Replace the tensors by larger ones, layer by layer, so that little memory is taken twice."""
        before = self.num_slots
        wanted = before + max(missing, before // 2)
        most = wanted if self._budget_bytes is None else int(self._budget_bytes) // self.token_bytes + 1
        stop = max(before + missing, min(wanted, most))
        with torch.inference_mode():
            for index, old in enumerate(self.pairs):
                new = old.new_zeros((*old.shape[:2], stop, old.shape[3]))
                new[:, :, :before] = old
                self.pairs[index] = new
        self.version += 1
        self._free = np.concatenate([np.arange(stop - 1, before - 1, -1), self._free])
