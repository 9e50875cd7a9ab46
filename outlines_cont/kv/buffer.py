"""`Buffer`: storage for the keys and values of several rows, which grows in place and never overwrites a column in use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from outlines_cont.interfaces import BufferStore

Layer = tuple[torch.Tensor, torch.Tensor]

# Spare columns of a new buffer, and what a full one grows by: an eighth, so that appending is linear and little is idle.
_SPARE = 16
_GROWTH = 8
_lock = threading.Lock()

FOREIGN = -1
"""The epoch of keys and values that came from elsewhere than a forward of the model: a file, a user's cache, moved tokens."""


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """The keys and values of T tokens in one layer.

    Attributes:
        keys: (heads, size) of keys of shape (heads, T, size).
        values: the same of values.
        dtype: of both.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    dtype: torch.dtype


class Buffer:
    """Keys and values of R rows: one pair of (R, H, capacity, D) tensors per layer.

    Columns below `used` belong to whoever wrote them and are never written again. Only the batch that has claimed the
    buffer appends. The tensors are replaced when the capacity grows, so they are to be asked for, not kept.

    Attributes:
        num_rows: R.
        used: columns that were ever written.
        nbytes: bytes of all tensors, spare columns included.
        users: the batches that read it now; it is not evicted as long as there is one.
        epoch: that of the store when it was made, or `FOREIGN`. A copy has the earliest of what it is a copy of.
        is_spare: whether only the prefix cache needs it, so that it is evicted before those of states.
    """

    def __init__(self, store: BufferStore, num_rows: int, *, epoch: int | None = None) -> None:
        self.num_rows = num_rows
        self.epoch = store.epoch if epoch is None else epoch
        self.is_spare = False
        self.used = 0
        self.nbytes = 0
        self.users: WeakSet[object] = WeakSet()
        self._store = store
        self._layers: list[Layer | None] = []
        self._owner: WeakSet[object] = WeakSet()
        self._is_evicted = False
        store.add(self)

    @classmethod
    def full(cls, store: BufferStore, layers: Sequence[Layer | None]) -> Buffer:
        """Return a buffer of one row that takes (H, T, D) keys and values per layer as they are, and to which nobody appends."""
        buffer = cls(store, 1)
        buffer._layers = [(layer[0][None], layer[1][None]) if layer is not None else None for layer in layers]
        buffer.used = next(layer[0].shape[1] for layer in layers if layer is not None)
        buffer.nbytes = sum(tensor.nbytes for layer in layers if layer is not None for tensor in layer)
        buffer._owner.add(buffer)
        return buffer

    @property
    def is_live(self) -> bool:
        """Whether the keys and values are still here."""
        return not self._is_evicted

    @property
    def is_fresh(self) -> bool:
        """Whether they are here, and are what the model as it is now would make of their tokens."""
        return not self._is_evicted and self.epoch == self._store.epoch

    @property
    def device(self) -> torch.device | None:
        """Where the first layer lies; None where nothing was written."""
        return next((layer[0].device for layer in self._layers if layer), None)

    @property
    def num_layers(self) -> int:
        """The layers that were written or skipped so far."""
        return len(self._layers)

    @property
    def token_bytes(self) -> int:
        """Bytes of one column of one row, over the layers that were written."""
        return sum(_column_bytes(tensor) for layer in self._layers if layer for tensor in layer)

    def layer(self, index: int) -> Layer | None:
        """Return the tensors of a layer; None where the model keeps none of its own (it shares another layer's)."""
        return self._layers[index] if index < len(self._layers) else None

    def claim(self, owner: object, stop: int) -> bool:
        """Return whether `owner` may append from column `stop` on: nobody has written there, and nobody else may."""
        with _lock:
            if self._is_evicted or self.used != stop or len(self._owner):
                return False
            self._owner.add(owner)
            return True

    def release(self, owner: object) -> None:
        """End the claim of `owner`."""
        self._owner.discard(owner)

    def trim(self, owner: object, stop: int) -> None:
        """Forget the columns from `stop` on, which `owner` has written and nobody else has seen."""
        if owner in self._owner:
            self.used = stop

    def write(self, index: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> Layer:
        """Write (R, H, Q, D) keys and values at columns `start` and on, and return views of all columns up to there.

        Raises:
            KVBudgetError: the budget of the model has no room for it.
        """
        stop = start + keys.shape[2]
        layer = self._reserve(index, keys, values, start, stop)
        layer[0][:, :, start:stop] = keys
        layer[1][:, :, start:stop] = values
        self.used = max(self.used, stop)
        return layer[0][:, :, :stop], layer[1][:, :, :stop]

    def allocate(self, like: Buffer, num_columns: int) -> None:
        """Make room for `num_columns` columns with the layers of `like`; they hold anything until they are written."""
        for index in range(like.num_layers):
            layer = like.layer(index)
            if layer is not None:
                pair = (layer[0][:1, :, :0], layer[1][:1, :, :0])
                self._reserve(index, *pair, 0, num_columns)
        self.used = num_columns

    def evict(self) -> None:
        """Let the tensors go; every row that has its keys and values here will feed its tokens again."""
        self._is_evicted = True
        self._layers, self.nbytes = [], 0

    def _reserve(self, index: int, keys: torch.Tensor, values: torch.Tensor, kept: int, stop: int) -> Layer:
        """Return the tensors of a layer with room for `stop` columns, the first `kept` of them as they were."""
        self._layers += [None] * (index + 1 - len(self._layers))
        layer = self._layers[index]
        if layer is not None and layer[0].shape[2] >= stop:
            return layer
        capacity = stop + max(_SPARE, (stop if layer is not None else 0) // _GROWTH)
        self._store.reserve(self, self.num_rows * capacity * (_column_bytes(keys) + _column_bytes(values)))
        grown = (_grown(keys, self.num_rows, capacity), _grown(values, self.num_rows, capacity))
        if layer is not None:
            for old, new in zip(layer, grown, strict=True):
                new[:, :, :kept] = old[:, :, :kept]
        self._layers[index] = grown
        self.nbytes += sum(tensor.nbytes for tensor in grown) - sum(tensor.nbytes for tensor in layer or ())
        return grown


def _column_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[1] * tensor.shape[3] * tensor.element_size()


def _grown(like: torch.Tensor, num_rows: int, capacity: int) -> torch.Tensor:
    return like.new_empty((num_rows, like.shape[1], capacity, like.shape[3]))
