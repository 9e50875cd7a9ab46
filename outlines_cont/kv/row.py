"""`RowKV`: the keys and values of the first tokens of one sequence, as a list of parts (`KVPart`), each some columns of one row of a
`Buffer`; any number of rows share buffers. Prefixes are taken without a copy. Where the buffer of a part was evicted, its tokens and
all after them count as not cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.buffer import FOREIGN, Buffer, Layer


@dataclass(frozen=True, eq=False)
class KVPart:
    """Some tokens of one sequence: token i is in row `row`, column `columns[i]` of `buffer` (int64, strictly ascending, not empty)."""

    buffer: Buffer
    row: int
    columns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, key: slice) -> KVPart:
        """Return the part of fewer tokens, without a copy."""
        return KVPart(self.buffer, self.row, self.columns[key])

    def index(self) -> torch.Tensor | None:
        """Return the columns on the device of the buffer, for `read`; None if they are adjacent."""
        device = self.buffer.device
        return None if self._is_adjacent or device is None else upload(self.columns.copy(), device)

    def read(self, tensor: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """Return (H, T, D), or (2 * L, H, T, D), the tokens of the part out of a tensor of the buffer; a view where they are adjacent."""
        if index is None:
            return tensor[..., self.row, :, int(self.columns[0]) : int(self.columns[-1]) + 1, :]
        return tensor.select(-4, self.row).index_select(-2, index.to(tensor.device))  # layers may be on several

    @cached_property
    def _is_adjacent(self) -> bool:
        return int(self.columns[-1]) - int(self.columns[0]) == len(self.columns) - 1


@dataclass(frozen=True, eq=False)
class RowKV:
    """The keys and values of the first tokens of one sequence, as `parts` in their order. Immutable, but buffers may be evicted."""

    parts: tuple[KVPart, ...]

    def __len__(self) -> int:
        """Return how many tokens are cached: those before the first part that was evicted."""
        length = 0
        for part in self.parts:  # a loop, as it is read for every row and step
            if not part.buffer.is_live:
                break
            length += len(part)
        return length

    def __getitem__(self, key: slice) -> RowKV:
        """Return the keys and values of the tokens before `key.stop`, without a copy; `key` has no start and no step."""
        if key.start or key.step not in (None, 1):
            raise ValueError(f"expected a slice from the beginning, such as `kv[:n]`, got {key}")
        return self.between(0, range(sum(map(len, self.parts)))[key].stop)

    def between(self, start: int, stop: int) -> RowKV:
        """Return the keys and values of the tokens from `start` to `stop` alone, without a copy."""
        parts, at = [], 0
        for part in self.parts:
            first, last = max(start - at, 0), min(stop - at, len(part))
            if first < last:
                parts.append(part if last - first == len(part) else part[first:last])
            at += len(part)
        return RowKV(tuple(parts))

    def beginning_with(self, base: RowKV, count: int) -> RowKV:
        """Return these keys and values, with those of the first `count` tokens (or all, if fewer) taken from `base`."""
        total = sum(map(len, self.parts))
        start = min(count, total)
        return RowKV((*base[:start].parts, *self.between(start, total).parts))

    def pinned(self, count: int) -> RowKV:
        """Return these, with the buffers of the first `count` tokens pinned: they are never evicted, nor appended to."""
        for part in self.between(0, count).parts:
            part.buffer.pin()
        return self

    @property
    def num_token_bytes(self) -> int:
        """The bytes of the tokens alone, without spare columns, over parts that were not evicted."""
        return sum(len(part) * part.buffer.token_bytes for part in self.parts)

    def num_fresh(self, epoch: int) -> int:
        """Return how many of the first tokens were fed to the model in an epoch of its weights, that of the store for the present one."""
        return sum(map(len, takewhile(lambda part: part.buffer.is_live and part.buffer.epoch == epoch, self.parts)))

    def compact(self, store: BufferStore) -> KVPart:
        """Return a copy in a buffer of its own that has no spare columns, which is never appended to."""
        layers, paging = self.layers(), store.paging
        like = next(layer[0] for layer in layers if layer is not None)
        if paging is not None and paging.fits(like.device, like.dtype):
            lease = paging.hold(layers)
            return KVPart(lease, 0, lease.owned)
        buffer = Buffer.full(store.reserve, store.epoch, layers)
        store.touch(buffer)
        return KVPart(buffer, 0, np.arange(buffer.used))

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of the parts that were not evicted."""
        return [part.buffer for part in self.parts if part.buffer.is_live]

    @property
    def storage(self) -> dict[int, int]:
        """The bytes of each buffer that is kept alive, by identity, so that shared ones can be counted once."""
        return {id(buffer): buffer.nbytes for buffer in self.buffers}

    def layers(self) -> list[Layer | None]:
        """Return (H, T, D) keys and values per layer, None for a layer without; a copy."""
        parts = RowKV(self.parts)[: len(self)].parts
        if not parts:
            return []
        places = [part.index() for part in parts]
        return [_joined(parts, places, index) for index in range(parts[0].buffer.num_layers)]

    def to(self, device: torch.device, store: BufferStore) -> RowKV:
        """Return the same on another device, copied; itself where it is there already or nothing is cached."""
        if all(buffer.device == device for buffer in self.buffers):
            return self
        moved = [(pair[0].to(device), pair[1].to(device)) if pair else None for pair in self.layers()]
        return RowKV.of_layers(store, moved)

    @classmethod
    def of_layers(cls, store: BufferStore, layers: Sequence[Layer | None]) -> RowKV:
        """Return (H, T, D) keys and values per layer, T > 0, as those of a row; they are copied."""
        buffer = Buffer(store.reserve, 1, FOREIGN)
        for index, layer in enumerate(layers):
            if layer is not None:
                buffer.write(index, 0, layer[0][None], layer[1][None])
        return cls((KVPart(buffer, 0, np.arange(buffer.used)),))


def _joined(parts: Sequence[KVPart], places: Sequence[torch.Tensor | None], index: int) -> Layer | None:
    pairs = [(part, place, part.buffer.layer(index)) for part, place in zip(parts, places, strict=True)]
    keys = [part.read(layer[0], place) for part, place, layer in pairs if layer is not None]
    values = [part.read(layer[1], place) for part, place, layer in pairs if layer is not None]
    return (torch.cat(keys, dim=1), torch.cat(values, dim=1)) if keys else None
