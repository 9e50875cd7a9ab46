"""`RecurrentBatch`: the cache of one row of a recurrent or hybrid model, whose state cannot be cropped: it is kept whole, as snapshots
(two at most per row), and copied to continue. A rewind restores the last snapshot that is early enough, and the tokens after it are fed
again. Rows run one at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.fed import Fed
from outlines_cont.kv.row import RowKV


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The whole cache of one row after `length` tokens. It is never fed itself, only copies of it."""

    cache: DynamicCache
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the cache."""
        return sum(_tensor_bytes(value) for layer in self.cache.layers for value in vars(layer).values())


@dataclass(frozen=True, eq=False)
class RecurrentKV(RowKV):
    """The snapshots of one sequence, two at most: where its last run began (or was rewound to), and after its last token."""

    snapshots: tuple[Snapshot, ...] = ()

    def __len__(self) -> int:
        return self.snapshots[-1].length if self.snapshots else 0

    def __getitem__(self, key: slice) -> RecurrentKV:
        """Return the snapshots of at most `key.stop` tokens; the last may have fewer, since a snapshot cannot be cropped."""
        stop = range(len(self))[key].stop
        return RecurrentKV((), tuple(snapshot for snapshot in self.snapshots if snapshot.length <= stop))

    @property
    def storage(self) -> dict[int, int]:
        """The bytes of each snapshot, by identity."""
        return {id(snapshot): snapshot.nbytes for snapshot in self.snapshots}

    def to(self, device: torch.device, store: object) -> RecurrentKV:
        """Return the same; the snapshots stay where the model has made them."""
        return self


class RecurrentBatch:
    """The cache of one recurrent row, fed alone, with the interface of `KVBatch`."""

    def __init__(self, model: LanguageModel, shares: Sequence[RowKV | None]) -> None:
        """Take the snapshots of one row, None for none. Cost: a copy of its last snapshot."""
        (share,) = shares
        self._model = model
        self._snapshots = share.snapshots if isinstance(share, RecurrentKV) else ()
        self._length = 0
        self._restore()

    @property
    def lengths(self) -> list[int]:
        """How many tokens are in the cache, in a list."""
        return [self._length]

    def feed(self, chunks: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Fed:
        """Feed one chunk. See `KVBatch.feed`."""
        (chunk,), (columns,) = chunks, wanted
        device = self._model.device
        stop = self._length + len(chunk)
        logits = self._model.forward(
            torch.tensor([list(chunk)], device=device),
            torch.ones((1, stop), dtype=torch.int64, device=device),
            torch.arange(self._length, stop, device=device)[None],
            self._cache,
            # A forward has some logits, even where none are wanted yet.
            sorted(columns) or [len(chunk) - 1],
        )
        self._length = stop
        return Fed(logits, [{column: place for place, column in enumerate(sorted(columns))}])

    def rewind(self, row: int, length: int) -> None:
        """Go back to the last snapshot of at most `length` tokens; `lengths` is what is left, and the caller feeds the rest again."""
        self._snapshots = tuple(snapshot for snapshot in self._snapshots if snapshot.length <= length)
        self._restore()

    def release(self, row: int) -> RowKV | None:
        """Return the snapshots of the row; the batch cannot be used afterwards."""
        last = Snapshot(self._cache, self._length)
        before = [snapshot for snapshot in self._snapshots[-1:] if snapshot.length < self._length]
        return RecurrentKV((), (*before, last)) if self._length else None

    def release_all(self) -> list[RowKV | None]:
        """Return the same in a list."""
        return [self.release(0)]

    def _restore(self) -> None:
        last = self._snapshots[-1] if self._snapshots else None
        self._cache = copy.deepcopy(last.cache) if last is not None else self._model.new_cache()
        self._length = last.length if last is not None else 0


def _tensor_bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(_tensor_bytes(item) for item in values)
