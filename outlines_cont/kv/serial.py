"""`open_batch`: returns the batch that fits a model: a `KVBatch`; a `RecurrentBatch` for one row of a recurrent or hybrid model, whose
state cannot be cropped: a rewind restores a snapshot (two at most per row), and the tokens after it are fed again; or, for several rows of
a model that does not support left-padded batches, a `SerialBatch`, in which each row has a forward of its own. `kv_layout`: the shapes and
dtype of the keys and values in each layer.

A snapshot is the whole cache of a row, copied to continue. The layout is read from the cache after a forward of one token, once per model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import Fed, KVBatch
from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.row import RowKV

_NOT_MOVED = (0,)


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
        return RecurrentKV((), _up_to(self.snapshots, range(len(self))[key].stop))

    @property
    def storage(self) -> dict[int, int]:
        """The bytes of each snapshot, by identity."""
        return {id(snapshot): snapshot.nbytes for snapshot in self.snapshots}

    def to(self, device: torch.device, store: object) -> RecurrentKV:
        """Return the same; snapshots are not moved."""
        return self


class RecurrentBatch:
    """The cache of one recurrent row, fed alone, with the interface of `KVBatch`."""

    def __init__(self, model: LanguageModel, shares: Sequence[RowKV | None]) -> None:
        """Take the snapshots of one row, None for none. Cost: a copy of its last snapshot."""
        (share,) = shares
        self._model = model
        self.offsets: Sequence[int] | None = None
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
            torch.arange(self._length, stop, device=device)[None] + (self.offsets or _NOT_MOVED)[0],
            self._cache,
            # A forward has some logits, even where none are wanted yet.
            sorted(columns) or [len(chunk) - 1],
        )
        self._length = stop
        return Fed(logits, [{column: at for at, column in enumerate(sorted(columns))}])

    def rewind(self, lengths: Mapping[int, int]) -> None:
        """Restore the last snapshot of at most so many tokens of the row 0; the caller feeds those after `lengths` again."""
        (length,) = lengths.values()
        self._snapshots = _up_to(self._snapshots, length)
        self._restore()

    def release_all(self) -> list[RowKV | None]:
        """Return the snapshots of the row, in a list; the batch cannot be used afterwards."""
        last = Snapshot(self._cache, self._length)
        before = _up_to(self._snapshots[-1:], self._length - 1)
        return [RecurrentKV((), (*before, last)) if self._length else None]

    def _restore(self) -> None:
        last = self._snapshots[-1] if self._snapshots else None
        self._cache = copy.deepcopy(last.cache) if last is not None else self._model.new_cache()
        self._length = last.length if last is not None else 0


class SerialBatch:
    """A batch whose sequences are fed one by one, each in its own `KVBatch` or `RecurrentBatch`; the interface is that of `KVBatch`."""

    def __init__(self, batches: Sequence[KVBatch | RecurrentBatch]) -> None:
        """Take the batches, of one sequence each."""
        self._batches = batches

    @property
    def offsets(self) -> Sequence[int] | None:
        """What positions differ by from indices; see `KVBatch`."""
        found = [batch.offsets for batch in self._batches]
        return None if any(one is None for one in found) else [one[0] for one in found if one is not None]

    @offsets.setter
    def offsets(self, values: Sequence[int] | None) -> None:
        for row, batch in enumerate(self._batches):
            batch.offsets = None if values is None else values[row : row + 1]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each sequence that are cached."""
        return [batch.lengths[0] for batch in self._batches]

    def feed(self, chunks: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Fed:
        """Feed one chunk per sequence. See `KVBatch.feed`. Cost: a forward for each chunk that is not empty."""
        given = zip(self._batches, chunks, wanted, strict=True)
        fed = [batch.feed([chunk], [indices]) if chunk else None for batch, chunk, indices in given]
        found = [one.logits[0] for one in fed if one is not None]
        lines = [one.logits[0].to(found[0].device) if one is not None else found[0][:0] for one in fed]
        logits = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        return Fed(logits, [one.columns[0] if one is not None else {} for one in fed], num_forwards=len(found))

    def rewind(self, lengths: Mapping[int, int]) -> None:
        """Remove the tokens of some sequences from an index on; see the batches for what must be fed again."""
        for row, length in lengths.items():
            self._batches[row].rewind({0: length})

    def release_all(self) -> list[RowKV | None]:
        """Return the keys and values, or snapshots, of all sequences; the batch cannot be used afterwards."""
        return [share for batch in self._batches for share in batch.release_all()]


AnyBatch = KVBatch | RecurrentBatch | SerialBatch


class ClosedBatch:
    """The keys and values of sequences between two batches, of which none is evicted meanwhile."""

    def __init__(self, shares: Sequence[RowKV | None]) -> None:
        """Take the keys and values, or snapshots, of the sequences; None for a sequence without any."""
        self._shares = list(shares)
        self._use()

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each sequence that are cached."""
        return [len(share) if share is not None else 0 for share in self._shares]

    def replace(self, row: int, share: RowKV | None) -> None:
        """Take other keys and values for one sequence."""
        before = self._shares
        self._shares = [*before[:row], share, *before[row + 1 :]]
        _discard(before, self)
        self._use()

    def release_all(self) -> list[RowKV | None]:
        """Return the keys and values of all sequences, which may be evicted from then on."""
        _discard(self._shares, self)
        return self._shares

    def _use(self) -> None:
        for share in self._shares:
            for buffer in share.buffers if share is not None else ():
                buffer.users.add(self)


def _discard(shares: Sequence[RowKV | None], user: ClosedBatch) -> None:
    for share in shares:
        for buffer in share.buffers if share is not None else ():
            buffer.users.discard(user)


def open_batch(model: LanguageModel, shares: Sequence[RowKV | None]) -> AnyBatch:
    """Return a batch of the kind that fits the model; None is a row without anything cached."""
    paging = model.kv_store.paging
    if paging is not None and paging.fits(model.device, model.dtype):
        paged: KVBatch = paging.open(model, shares)
        return paged
    kind = RecurrentBatch if model.is_recurrent else KVBatch
    if len(shares) > 1 and not model.can_stack:
        return SerialBatch([kind(model, [share]) for share in shares])
    return kind(model, shares)


def kv_layout(model: LanguageModel) -> list[Layer | None]:
    """Return keys and values of no tokens, (H, 0, D), for every layer, None for one without its own; no layers for a recurrent model.

    Cost: the first time one forward of one token, which no meter counts.
    """
    if model.is_recurrent:
        return []
    known: list[Layer | None] | None = model.memo.get("kv_layout")
    if known is None:
        with model.kv_store.lock, torch.inference_mode():
            batch = open_batch(model, [None])
            batch.feed([[0]], [[]])
            (row,) = batch.release_all()
        layers = row.layers() if row is not None else []
        known = model.memo["kv_layout"] = [(layer[0][:, :0], layer[1][:, :0]) if layer else None for layer in layers]
    return known


def _up_to(snapshots: Sequence[Snapshot], length: int) -> tuple[Snapshot, ...]:
    return tuple(snapshot for snapshot in snapshots if snapshot.length <= length)


def _tensor_bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(_tensor_bytes(item) for item in values)
