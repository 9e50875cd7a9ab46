"""`Buffer`: contiguous storage for the keys and values of several rows, a pair of tensors per layer that grows by an eighth (amortised
linear appends), or stacks of many layers in one tensor, if these are known to be equal (`num_equal`), so that tokens of a stack are moved
by one operator. It is append-only: one batch at a time may claim the end, and columns that others may read are never overwritten.
A buffer may be evicted, after which its tokens are fed again; its epoch marks keys and values of earlier weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
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
# The largest stack of a CPU, where there is one for all layers or none: copies of more take longer than their launches.
_LARGEST_STACK = 2**26
# The largest stack of another device, where layers are in as many as are needed: a copy of it takes half a millisecond on an H100, 50 times
# as long as its launch, and a buffer takes at most as much more memory while it grows.
_LARGEST_DEVICE_STACK = 2**30
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
        stacks: the layers in their order, some of them in each: (2 * n, R, H, capacity, D), the keys and values of one layer after the
            other; empty where layers have tensors of their own.
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
        self.stacks: list[torch.Tensor] = []
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
        if not self.stacks:
            return None
        self.used = max(self.used, stop)
        pairs = [stack.view(-1, 2, *stack.shape[1:]).narrow(4, start, stop - start).unbind() for stack in self.stacks]
        seen = [*chain.from_iterable(stack.narrow(3, 0, stop).unbind() for stack in self.stacks)]
        return Slots([*chain.from_iterable(pairs)], seen[::2], seen[1::2])

    def allocate(self, like: Buffer, num_columns: int) -> None:
        """Make room for `num_columns` columns with the layers of `like`; their contents are undefined until they are written."""
        self.num_equal = like.num_layers if like.stacks else 0
        for index in range(like.num_layers):
            if (layer := like.layer(index)) is not None:
                self._reserve(index, *layer, 0, num_columns)
        self.used = num_columns

    def pin(self) -> None:
        """Never evict it, nor append to it: what it holds cannot be computed again."""
        self.users.add(self)
        self._owner.add(self)

    def evict(self) -> None:
        """Free the tensors; rows with keys and values here feed those tokens again."""
        self.is_live = False
        self._layers, self.stacks, self.nbytes = [], [], 0

    def _reserve(self, index: int, keys: torch.Tensor, values: torch.Tensor, kept: int, stop: int) -> Layer:
        """Return the tensors of a layer with room for `stop` columns, the first `kept` of them as they were."""
        layer = self.layer(index)
        if layer is not None and layer[0].shape[2] >= stop:
            return layer
        self._layers += [None] * (index + 1 - len(self._layers))
        spare = max(_SPARE, (stop if layer is not None else 0) // _GROWTH)
        capacity = stop + spare if self.num_exact is None else max(stop, self.num_exact)
        nbytes = self.num_rows * capacity * (_column_bytes(keys) + _column_bytes(values))
        if index == 0 and (num_stacked := self._num_stacked(keys, values, nbytes)):
            self._make_room(self, self.num_equal * nbytes)
            return self._reserve_stacks(keys, kept, capacity, num_stacked)
        self._make_room(self, nbytes)
        grown = (_grown(keys, self.num_rows, capacity), _grown(values, self.num_rows, capacity))
        if layer is not None:
            for old, new in zip(layer, grown, strict=True):
                new[:, :, :kept] = old[:, :, :kept]
        self._layers[index] = grown
        self.nbytes += sum(tensor.nbytes for tensor in grown) - sum(tensor.nbytes for tensor in layer or ())
        self.stacks = []
        return grown

    def _num_stacked(self, keys: torch.Tensor, values: torch.Tensor, nbytes: int) -> int:
        """Return how many layers the new stacks have, where one layer has `nbytes` bytes; 0 if layers have tensors of their own."""
        is_new = bool(self.stacks) or not any(self._layers)
        is_equal = keys.shape == values.shape and keys.dtype == values.dtype and self.num_exact is None
        if not (is_new and is_equal and self.num_equal):
            return 0
        if keys.device.type == "cpu":
            return self.num_equal if self.num_equal * nbytes <= _LARGEST_STACK else 0
        return max(1, min(self.num_equal, _LARGEST_DEVICE_STACK // nbytes))

    def _reserve_stacks(self, like: torch.Tensor, kept: int, capacity: int, num_stacked: int) -> Layer:
        """Put the layers into stacks of `num_stacked` layers, one stack after the other, so that little memory is taken twice."""
        old = self.stacks
        done: list[torch.Tensor] = []
        for first in range(0, self.num_equal, num_stacked):
            count = min(num_stacked, self.num_equal - first)
            stack = like.new_empty((2 * count, self.num_rows, like.shape[1], capacity, like.shape[3]))
            if old:
                for new, before in matching([stack], _planes(old, 0, 2 * count)):
                    new[..., :kept, :] = before[..., :kept, :]
                old = _planes(old, 2 * count)
            done.append(stack)
            self.stacks = [*done, *old]
            tensors = [*chain.from_iterable(stack.unbind() for stack in self.stacks)]
            self._layers = list(zip(tensors[::2], tensors[1::2], strict=True))
            # A part of a stack keeps all of it: it counts as the layers that are left in it.
            self.nbytes = sum(stack.nbytes for stack in self.stacks)
        return tensors[0], tensors[1]


def matching(
    first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield views of two sequences of stacks in which each pair has the same layers: as many of these as are in one stack of both."""
    if len(first) == len(second) == 1:  # as on a CPU, where slices would cost as much as a small copy
        yield first[0], second[0]
        return
    stacks, others = list(first), list(second)
    while stacks and others:
        count = min(len(stacks[0]), len(others[0]))
        yield stacks[0][:count], others[0][:count]
        stacks, others = _planes(stacks, count), _planes(others, count)


def _planes(stacks: Sequence[torch.Tensor], start: int, stop: int | None = None) -> list[torch.Tensor]:
    """Return stacks with the keys and values from one index to another of all that are in `stacks`, as views."""
    found: list[torch.Tensor] = []
    for stack in stacks:
        part = stack[max(start, 0) : None if stop is None else max(stop, 0)]
        if len(part):
            found.append(part)
        start -= len(stack)
        stop = None if stop is None else stop - len(stack)
    return found


def _column_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[1] * tensor.shape[3] * tensor.element_size()


def _grown(like: torch.Tensor, num_rows: int, capacity: int) -> torch.Tensor:
    return like.new_empty((num_rows, like.shape[1], capacity, like.shape[3]))
