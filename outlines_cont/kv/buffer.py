"""`Buffer`: contiguous storage for the keys and values of several rows, a pair of tensors per layer that grows by an eighth (amortised
linear appends), or one tensor for all layers, if these are known to be equal and small (`num_equal`), so that tokens of all layers are
moved by one operator. It is append-only: one batch at a time may claim the end, and columns that others may read are never overwritten.
A buffer may be evicted, after which its tokens are fed again; its epoch marks keys and values of earlier weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakSet

import torch

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values in one layer."""


class Slots(NamedTuple):
    """For each layer, where to write the keys and values of a forward, (2, R, H, Q, D), and views of those of all columns."""

    new: Sequence[torch.Tensor]
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]


# Spare columns of a new buffer, and the divisor of the length that a full one grows by: appending is linear, little is idle.
_SPARE = 16
_GROWTH = 8
# The largest tensor for all layers: a larger one would need as much again while it grows, and its copies take longer than their launches.
_LARGEST_WHOLE = 2**26
_lock = threading.Lock()

FOREIGN = -1
"""The epoch of keys and values that no forward of the model has computed: from a file, a user's cache, or moved tokens."""


class Buffer:
    """Keys and values of R rows: one pair of (R, H, capacity, D) tensors per layer.

    Columns below `used` are never written again. Only the batch that has claimed the buffer appends. The tensors are replaced when the
    capacity grows, so read them by `layer` each time.

    Args:
        reserve: `KVStore.reserve`, which is called before memory is allocated.
        num_rows: R.
        epoch: that of the store when the keys and values are computed, or `FOREIGN`; of a copy, the earliest of its sources.

    Attributes:
        num_rows, epoch: as given.
        used: columns that were ever written.
        nbytes: bytes of all tensors, spare columns included.
        users: the batches that read it now; while there is one it is not evicted.
        is_spare: whether only the prefix cache needs it, so that it is evicted before those of states.
        is_live: whether it was not evicted.
        num_exact: how many columns to allocate at first, without spare ones then and later; None for spare ones.
        num_equal: how many layers there will be, if all have keys and values of one shape and type; 0 if that is not known.
        whole: (2 * L, R, H, capacity, D), the keys and values of one layer after the other; None where layers have tensors of their own.
    """

    def __init__(self, reserve: Callable[[Buffer, int], None], num_rows: int, epoch: int) -> None:
        self.num_rows = num_rows
        self.epoch = epoch
        self.is_spare = False
        self.is_live = True
        self.used = 0
        self.nbytes = 0
        self.num_exact: int | None = None
        self.num_equal = 0
        self.whole: torch.Tensor | None = None
        self.users: WeakSet[object] = WeakSet()
        self._make_room = reserve
        self._layers: list[Layer | None] = []
        self._owner: WeakSet[object] = WeakSet()

    @classmethod
    def full(cls, reserve: Callable[[Buffer, int], None], epoch: int, layers: Sequence[Layer | None]) -> Buffer:
        """Return a buffer of one row that takes (H, T, D) keys and values per layer without a copy, which is never appended to."""
        buffer = cls(reserve, 1, epoch)
        buffer._layers = [(layer[0][None], layer[1][None]) if layer is not None else None for layer in layers]
        buffer.used = next(layer[0].shape[1] for layer in layers if layer is not None)
        buffer.nbytes = sum(tensor.nbytes for layer in layers if layer is not None for tensor in layer)
        buffer._owner.add(buffer)
        return buffer

    @property
    def device(self) -> torch.device | None:
        """The device of the first layer; None where nothing was written."""
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
        """Return the tensors of a layer; None if the model keeps none of its own (it shares another layer's)."""
        return self._layers[index] if index < len(self._layers) else None

    def claim(self, owner: object, stop: int) -> bool:
        """Claim the columns from `stop` on for `owner`; return False where something was written there, or another batch has the claim."""
        with _lock:
            if not self.is_live or self.used != stop or len(self._owner):
                return False
            self._owner.add(owner)
            return True

    def release(self, owner: object) -> None:
        """End the claim of `owner`."""
        self._owner.discard(owner)

    def trim(self, owner: object, stop: int) -> None:
        """Free the columns from `stop` on, which `owner` has written and no other batch has read."""
        if owner in self._owner:
            self.used = stop

    def write(self, index: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> Layer:
        """Write (R, H, Q, D) keys and values from column `start` on; return views of all columns. `KVBudgetError` without room."""
        stop = start + keys.shape[2]
        layer = self._reserve(index, keys, values, start, stop)
        layer[0].narrow(2, start, stop - start).copy_(keys)
        layer[1].narrow(2, start, stop - start).copy_(values)
        self.used = max(self.used, stop)
        return layer[0].narrow(2, 0, stop), layer[1].narrow(2, 0, stop)

    def slots(self, start: int, like: torch.Tensor) -> Slots | None:
        """Make room for (R, H, Q, D) keys and values like `like` in all layers from column `start` on, and return where to write them.

        None where layers have tensors of their own; then they are written by `write`.
        """
        stop = start + like.shape[2]
        self._reserve(0, like, like, start, stop)
        if self.whole is None:
            return None
        self.used = max(self.used, stop)
        pairs = self.whole.view(-1, 2, *self.whole.shape[1:])
        seen = self.whole.narrow(3, 0, stop).unbind()
        return Slots(pairs.narrow(4, start, stop - start).unbind(), seen[::2], seen[1::2])

    def allocate(self, like: Buffer, num_columns: int) -> None:
        """Make room for `num_columns` columns with the layers of `like`; their contents are undefined until they are written."""
        self.num_equal = len(like._layers) if like.whole is not None else 0
        for index, layer in enumerate(like._layers):
            if layer is not None:
                self._reserve(index, *layer, 0, num_columns)
        self.used = num_columns

    def pin(self) -> None:
        """Never evict it, nor append to it: what it holds cannot be computed again."""
        self.users.add(self)
        self._owner.add(self)

    def evict(self) -> None:
        """Free the tensors; rows with keys and values here feed those tokens again."""
        self.is_live = False
        self._layers, self.whole, self.nbytes = [], None, 0

    def _reserve(self, index: int, keys: torch.Tensor, values: torch.Tensor, kept: int, stop: int) -> Layer:
        """Return the tensors of a layer with room for `stop` columns, the first `kept` of them as they were."""
        layer = self.layer(index)
        if layer is not None and layer[0].shape[2] >= stop:
            return layer
        self._layers += [None] * (index + 1 - len(self._layers))
        spare = max(_SPARE, (stop if layer is not None else 0) // _GROWTH)
        capacity = stop + spare if self.num_exact is None else max(stop, self.num_exact)
        nbytes = self.num_rows * capacity * (_column_bytes(keys) + _column_bytes(values))
        if index == 0 and self._is_whole(keys, values, nbytes):
            return self._reserve_whole(keys, kept, capacity)
        self._make_room(self, nbytes)
        grown = (_grown(keys, self.num_rows, capacity), _grown(values, self.num_rows, capacity))
        if layer is not None:
            for old, new in zip(layer, grown, strict=True):
                new[:, :, :kept] = old[:, :, :kept]
        self._layers[index] = grown
        self.nbytes += sum(tensor.nbytes for tensor in grown) - sum(tensor.nbytes for tensor in layer or ())
        self.whole = None
        return grown

    def _is_whole(self, keys: torch.Tensor, values: torch.Tensor, nbytes: int) -> bool:
        """Return whether a new tensor may be that of all layers, where one of them has `nbytes` bytes."""
        is_new = self.whole is not None or not any(self._layers)
        is_equal = keys.shape == values.shape and keys.dtype == values.dtype and self.num_exact is None
        return is_new and is_equal and 0 < self.num_equal * nbytes <= _LARGEST_WHOLE

    def _reserve_whole(self, like: torch.Tensor, kept: int, capacity: int) -> Layer:
        old, shape = self.whole, (2 * self.num_equal, self.num_rows, like.shape[1], capacity, like.shape[3])
        self._make_room(self, math.prod(shape) * like.element_size())
        self.whole = like.new_empty(shape)
        if old is not None:
            self.whole[..., :kept, :] = old[..., :kept, :]
        self.nbytes += self.whole.nbytes - (0 if old is None else old.nbytes)
        tensors = self.whole.unbind()
        self._layers = list(zip(tensors[::2], tensors[1::2], strict=True))
        return tensors[0], tensors[1]


def _column_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[1] * tensor.shape[3] * tensor.element_size()


def _grown(like: torch.Tensor, num_rows: int, capacity: int) -> torch.Tensor:
    return like.new_empty((num_rows, like.shape[1], capacity, like.shape[3]))
