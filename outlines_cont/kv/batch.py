"""`KVBatch`: the keys and values of the rows that run together, ragged, behind one `DynamicCache`.

Row r has a token in column c of the cache where `mask[r, c]`. Rows may be of any length: columns that are no token of a
row are masked. A model that counts columns instead of positions (sliding windows, ALiBi) stands masked columns only on the
left of a row; for it the rows are packed to the right again after every ragged step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.block import KVBlock, RowKV, stack

# Rows are packed when more columns than this, and more than a quarter of all, hold no token even of the longest row.
_SPARE_COLUMNS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """Logits of one forward: those after token j of row r's chunk are `logits[r, places[r][j]]`.

    Attributes:
        logits: (R, K, V), float32 or float64.
        places: for each row, from an index into its chunk to an index into K; only what was asked for.
    """

    logits: torch.Tensor
    places: list[dict[int, int]]


class KVBatch:
    """The keys and values of R rows that run together.

    Attributes:
        mask: bool, (R, C): where a column of the cache is a token of the row.
        lengths: the number of tokens of each row that are in the cache.
    """

    def __init__(self, model: LanguageModel, shares: Sequence[RowKV | None]) -> None:
        """Take the shares of R rows; None is a row of which nothing is cached. Cost: see `_join`."""
        self._model = model
        self.lengths = [len(share) if share is not None else 0 for share in shares]
        self._cache, self.mask = _join(shares, model.can_skip)

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.lengths)

    def feed(self, chunks: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Fed:
        """Feed one chunk of token ids per row (empty for a row that waits) in one forward.

        Args:
            chunks: R lists of ids, at least one of them not empty.
            wanted: R lists of indices into the row's chunk, after which the logits are wanted; at least one in all.

        Cost: one forward, a concatenation of the cache, and a copy of it where ragged chunks must be packed.
        """
        width = max(map(len, chunks))
        ids = np.zeros((self.num_rows, width), dtype=np.int64)
        positions = np.zeros_like(ids)
        new = np.zeros(ids.shape, dtype=bool)
        starts = []
        for row, chunk in enumerate(chunks):
            start = self._chunk_start(row, width - len(chunk))
            stop = start + len(chunk)
            ids[row, start:stop] = chunk
            positions[row, start:stop] = np.arange(self.lengths[row], self.lengths[row] + len(chunk))
            new[row, start:stop] = True
            starts.append(start)
        columns = sorted({start + index for start, indices in zip(starts, wanted, strict=True) for index in indices})
        place = {column: at for at, column in enumerate(columns)}
        self.mask = np.concatenate([self.mask, new], axis=1)
        device = self._model.device
        logits = self._model.forward(
            torch.from_numpy(ids).to(device),
            torch.from_numpy(self.mask.astype(np.int64)).to(device),
            torch.from_numpy(positions).to(device),
            self._cache,
            columns,
        )
        self.lengths = [length + len(chunk) for length, chunk in zip(self.lengths, chunks, strict=True)]
        self._tidy()
        places = [{i: place[start + i] for i in indices} for start, indices in zip(starts, wanted, strict=True)]
        return Fed(logits, places)

    def rewind(self, row: int, length: int) -> None:
        """Forget the tokens of `row` from index `length` on; no tensor is written."""
        columns = np.flatnonzero(self.mask[row])
        self.mask = self.mask.copy()
        self.mask[row, columns[length:]] = False
        self.lengths[row] = length
        self._tidy()

    def release(self, row: int) -> RowKV | None:
        """Return a copy of one row's keys and values, for a row that leaves before the others."""
        columns = np.flatnonzero(self.mask[row])
        if not len(columns):
            return None
        block = KVBlock.of_cache(self._cache).gather(np.array([row]), columns[None])
        return RowKV(block, 0, _locked(np.arange(len(columns))))

    def release_all(self) -> list[RowKV | None]:
        """Return the shares of all rows, in one block and without a copy; the batch is over."""
        block = KVBlock.of_cache(self._cache)
        columns = [np.flatnonzero(row_mask) for row_mask in self.mask]
        return [RowKV(block, row, _locked(cols)) if len(cols) else None for row, cols in enumerate(columns)]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only `rows`, in this order. Cost: one copy of what stays."""
        self.lengths = [self.lengths[row] for row in rows]
        self.mask = self.mask[list(rows)]
        if self.mask.shape[1]:
            self._pack(np.array(rows, dtype=np.int64))

    def _chunk_start(self, row: int, spare: int) -> int:
        # Padding goes to the left of a row's first tokens, where it is outside of the row. Later it would lie between
        # tokens; for a model that cannot skip columns it goes behind them, and is packed away after the forward.
        return spare if self._model.can_skip or not self.lengths[row] else 0

    def _tidy(self) -> None:
        columns = self.mask.shape[1]
        if self._model.can_skip:
            spare = columns - max(self.lengths)
            if spare > _SPARE_COLUMNS and spare * 4 > columns:
                self._pack(np.arange(self.num_rows))
        elif not _is_packed(self.mask, self.lengths):
            self._pack(np.arange(self.num_rows))

    def _pack(self, rows: NDArray[np.int64]) -> None:
        """Make the cache that of `rows`, to which `mask` and `lengths` belong already, flush right."""
        width = max(self.lengths)
        columns = np.zeros((len(rows), width), dtype=np.int64)
        for index, length in enumerate(self.lengths):
            columns[index, width - length :] = np.flatnonzero(self.mask[index])
        self._cache = KVBlock.of_cache(self._cache).gather(rows, columns).to_cache()
        self.mask = _right_mask(self.lengths, width)


def _join(shares: Sequence[RowKV | None], can_skip: bool) -> tuple[DynamicCache, NDArray[np.bool_]]:
    """Return a cache of R rows and its mask.

    Cost: nothing where the shares are all the rows of one block and lie as the model needs them; else one copy.
    """
    present = [share for share in shares if share is not None and len(share)]
    lengths = [len(share) if share is not None else 0 for share in shares]
    if not present:
        return DynamicCache(), np.zeros((len(shares), 0), dtype=bool)
    width = max(lengths)
    block = present[0].block
    if len(present) == len(shares) and all(share.block is block for share in present):
        rows = np.array([share.row for share in present], dtype=np.int64)
        if len(rows) == block.num_rows and np.array_equal(rows, np.arange(len(rows))):
            stop = max(int(share.columns[-1]) for share in present) + 1
            mask = np.zeros((len(rows), stop), dtype=bool)
            for index, share in enumerate(present):
                mask[index, share.columns] = True
            if (can_skip and (stop - width) * 4 <= stop) or _is_packed(mask, lengths):
                return block.narrow(0, stop).to_cache(), mask
        columns = np.zeros((len(rows), width), dtype=np.int64)
        for index, share in enumerate(present):
            columns[index, width - len(share) :] = share.columns
        return block.gather(rows, columns).to_cache(), _right_mask(lengths, width)
    parts = [_share_block(share, present[0]) for share in shares]
    return stack(parts).to_cache(), _right_mask(lengths, width)


def _share_block(share: RowKV | None, like: RowKV) -> KVBlock:
    if share is None or not len(share):
        return like.block.gather(np.array([like.row]), np.zeros((1, 0), dtype=np.int64))
    return share.block.gather(np.array([share.row]), share.columns[None])


def _is_packed(mask: NDArray[np.bool_], lengths: Sequence[int]) -> bool:
    """Return whether the tokens of every row lie side by side and end in the last column."""
    columns = mask.shape[1]
    return all(bool(row[columns - length :].all()) for row, length in zip(mask, lengths, strict=True))


def _right_mask(lengths: Sequence[int], width: int) -> NDArray[np.bool_]:
    return np.arange(width)[None, :] >= width - np.array(lengths)[:, None]


def _locked(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    columns.flags.writeable = False
    return columns
