"""`GrowingCache`: the `DynamicCache` that a model gets for a forward: its layers append to a `Buffer` in place, and return key tensors to
which shared prefix segments are attached for `kv.attention`. The length that the model sees is that of the tails; after the forward
`Tails.were_read` checks that the attention has read the segments in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from outlines_cont.kv.attention import Prefix
from outlines_cont.kv.buffer import Buffer, Layer, Slots
from outlines_cont.kv.share import Segment


class Tails:
    """What the layers of one cache have in common: the buffer of the tails, their length in columns, and the segments that rows share.

    `is_ours`: whether `prefix_attention` attends, with a mask of (R, 1, Q, C + Q): with segments, and on CUDA. `is_paged`: whether they are
    `kv.paged.cache.PagedTails`, which attend by a method of their own.
    """

    is_paged = False

    def __init__(self, buffer: Buffer, length: int, segments: Sequence[Segment], *, is_ours: bool = False) -> None:
        self.buffer = buffer
        self.length = length
        self.is_ours = is_ours or bool(segments)
        self.segments = list(segments)
        self._num_layers = 0
        self._prefixes: list[Prefix] = []
        self._slots: Slots | None = None  # of the forward that runs

    @property
    def num_columns(self) -> int:
        """The columns of the segments and the tails together: no token is at a position behind them."""
        return self.length + sum(segment.num_columns for segment in self.segments)

    def begin(self, num_layers: int, like: torch.Tensor) -> None:
        """Begin a forward that writes (R, Hk, Q, D) keys and values like `like` in every layer, by `write_pair`."""
        self.buffer.num_equal = num_layers
        self._slots = self.buffer.slots(self.length, like)

    def new_layer(self) -> GrowingLayer:
        """Return the next layer of the cache."""
        self._num_layers += 1
        return GrowingLayer(self, self._num_layers - 1)

    def write(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Layer:
        """Append (R, Hk, Q, D) keys and values in one layer; return those of all columns, with the segments attached."""
        return self._attached(index, *self.buffer.write(index, self.length, keys, values))

    def write_pair(self, index: int, pair: torch.Tensor) -> Layer:
        """The same for keys and values in one tensor, (2, R, Hk, Q, D), after `begin`."""
        slots = self._slots
        if slots is None:
            return self.write(index, *pair.unbind())
        slots.new[index].copy_(pair)
        return self._attached(index, slots.keys[index], slots.values[index])

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Return the attention of queries over what `write_pair` has returned; of paged tails alone."""
        raise NotImplementedError

    def _attached(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Layer:
        if not self.segments:
            return keys, values
        shared = [layer for segment in self.segments if (layer := segment.layer(index)) is not None]
        if not shared:
            return keys, values
        self._prefixes.append(Prefix(shared))
        return self._prefixes[-1].attach(keys), values

    def were_read(self) -> bool:
        """Return whether the attention of the forward that ends here has read every segment handed out."""
        prefixes, self._prefixes, self._slots = self._prefixes, [], None
        return all(prefix.uses for prefix in prefixes)


class GrowingCache(DynamicCache):
    """The cache of a batch for one model: the tails of its rows, and shared segments before them that the model does not see.

    The layers refer to the tails and not to the cache, so there is no cycle of references, and memory is freed without the collector.
    """

    def __init__(self, buffer: Buffer, length: int, segments: Sequence[Segment], *, is_ours: bool = False) -> None:
        super().__init__()
        self.tails = Tails(buffer, length, segments, is_ours=is_ours)
        # Transformers calls this for a new layer; it expects a class, but a function works as well.
        self.layer_class_to_replicate = self.tails.new_layer  # type: ignore[assignment]
        known = [buffer.num_layers, *(segment.buffer.num_layers for segment in segments)]
        self.layers = [self.tails.new_layer() for _ in range(max(known))]


class GrowingLayer(DynamicLayer):
    """One layer of a `GrowingCache`; it writes to the buffer of the tails."""

    def __init__(self, tails: Tails, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tails = tails
        self._index = index

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Layer:
        """Append (R, Hk, Q, D) keys and values; return those of all columns of the tails."""
        return self._tails.write(self._index, key_states, value_states)

    def get_seq_length(self) -> int:
        """Return the columns before those of the forward that runs."""
        return self._tails.length
