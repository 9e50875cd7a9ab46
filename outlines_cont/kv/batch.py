"""`KVBatch`: the ragged KV cache of rows that run together: prefixes that rows share are read in place where that pays (`share.plan`), and
each row has the rest as a tail in one left-padded, growing cache (`mask`: its tokens), that of their last run if it had the same rows. A
rewind within the tail only masks columns, one before it sets the batch up anew; tails with many unused columns are copied to a new buffer.
For models that count columns, not positions (sliding windows, ALiBi), a copy removes gaps after each ragged step, and nothing is shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import lt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload_together
from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.attention import additive_mask
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.gathering import Tail, gather, select
from outlines_cont.kv.growing import GrowingCache, Tails
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.kv.share import SHARING, Segment, Share, Sharing, plan, segments, sharing_on

_ONLY = {0: 0}  # the columns of a chunk of one token
# Rows are packed when more columns than this, and more than a quarter of all, hold no token even of the longest row.
_SPARE_COLUMNS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """(R, K, V) logits of the tokens that were fed, float32 or float64; those after token j of row r are `logits[r, columns[r][j]]`.

    `columns` has only the positions that were requested; `num_forwards` is the number of forwards.
    """

    logits: torch.Tensor
    columns: list[dict[int, int]]
    num_forwards: int = 1


class KVBatch:
    """The keys and values of R rows that run together.

    Attributes:
        heads: for each row, the parts before its tail, which it may share with other rows.
        offsets: by how much the positions of the next tokens of each row differ from their indices; None if they do not.
    """

    _mask: NDArray[np.bool_]  # without the columns that were fed since it was set, all of which are tokens
    _has_gaps: bool

    def __init__(self, model: LanguageModel, shares: Sequence[RowKV | None], *, sharing: Sharing | None = None) -> None:
        """Take the cached keys and values of R rows; None for a row without any.

        `sharing` gives the thresholds for reading tokens in place; None for those of the device, or never where the model cannot branch.

        Cost: a copy of the short parts in buffers to which the batch may not append; for a model that cannot branch, of everything that is
        not laid out as the batch needs it.
        """
        self._model = model
        self._store = model.kv_store
        self.heads: list[list[KVPart]] = []
        self.offsets: Sequence[int] | None = None
        self._head_lengths: list[int] = []
        self._tail_lengths: list[int] = []
        is_fixed = sharing is not None or not model.can_branch
        self._sharing = sharing if is_fixed else sharing_on(model.device, model.dtype)
        self._is_ours = model.device.type == "cuda" and model.can_branch
        self._open([share.to(model.device, model.kv_store) if share is not None else None for share in shares])

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.heads)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(R, C) bool, read-only: where a column of the tails is a token of the row."""
        missing = self._tails.length - self._mask.shape[1]
        if missing:
            self._mask = np.concatenate([self._mask, np.ones((self.num_rows, missing), dtype=bool)], axis=1)
        return self._mask

    def _set_mask(self, mask: NDArray[np.bool_]) -> None:
        """Set the mask; columns that are fed behind it later are tokens of every row, until it is set again."""
        self._mask, self._has_gaps = mask, not mask.all()

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each row that are cached."""
        return [head + tail for head, tail in zip(self._head_lengths, self._tail_lengths, strict=True)]

    def feed(self, chunks: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Fed:
        """Feed one chunk of token ids per row (empty for a row that waits) in one forward.

        Args:
            chunks: R lists of ids, at least one of them not empty.
            wanted: R lists of indices into the row's chunk, after which logits are returned; empty for parts of prompts.

        Raises `KVBudgetError` if there is no room for the new keys and values; the batch cannot be used afterwards.

        Cost: one forward, and a copy of the tails where ragged chunks must be packed.
        """
        sizes = [*map(len, chunks)]
        width = max(sizes)
        is_ragged = min(sizes) < width
        # Padding goes to the left of a row's first tokens, where it is outside of the row. Later it would be between tokens; for a
        # model that cannot skip columns it goes behind them, and is packed away after the forward.
        can_skip = is_ragged and self._pads_left
        starts = [
            width - size if can_skip or not tail else 0 for size, tail in zip(sizes, self._tail_lengths, strict=True)
        ]
        fed = np.zeros((2, len(chunks), width), dtype=np.int64)
        positions = np.arange(width) + np.array(self.lengths)[:, None]
        if self.offsets is not None:
            positions += np.array(self.offsets)[:, None]
        if is_ragged:
            spans = np.arange(width) - np.array(starts)[:, None]  # the index of each column in the chunk of the row
            new = (spans >= 0) & (spans < np.array(sizes)[:, None])
            fed[0][new] = [*chain.from_iterable(chunks)]
            fed[1] = np.where(new, positions - np.array(starts)[:, None], 0)
        else:
            new = None
            fed[:] = chunks, positions
        # A forward has some logits, even where none are wanted yet.
        columns = sorted({at + i for at, indices in zip(starts, wanted, strict=True) for i in indices}) or [width - 1]
        logits = self._forward(fed, new, columns)
        self._tail_lengths = [length + size for length, size in zip(self._tail_lengths, sizes, strict=True)]
        if is_ragged:
            self._tidy()
        if width == 1:
            return Fed(logits, [_ONLY if indices else {} for indices in wanted])
        at = {column: index for index, column in enumerate(columns)}
        return Fed(logits, [{i: at[start + i] for i in indices} for start, indices in zip(starts, wanted, strict=True)])

    def feed_next(self, token_ids: Sequence[int], lengths: Sequence[int] | None = None) -> torch.Tensor:
        """Feed one token id per row in one forward, and return the (R, V) logits after these; `feed` in short, with the same errors.

        `lengths` are those of the rows, where the caller has read them.
        """
        fed = np.array([token_ids, self.lengths if lengths is None else lengths])[..., None]
        if self.offsets is not None:
            fed[1, :, 0] += np.array(self.offsets)
        logits = self._forward(fed, None, [0])
        self._tail_lengths = [length + 1 for length in self._tail_lengths]
        return logits[:, 0]

    def allocate_exactly(self, num_columns: int) -> None:
        """Let the tails, which are empty, have this number of columns and no spare ones, as there is no room for these."""
        self._tails.buffer.num_exact = num_columns

    def rewind(self, lengths: Mapping[int, int]) -> None:
        """Remove the tokens of some rows from an index on: mask them, or set the batch up anew where one of these is in a head."""
        if any(length < self._head_lengths[row] for row, length in lengths.items()):
            shares = self.release_all()
            for row, length in lengths.items():
                share = shares[row]
                shares[row] = share[:length] if share is not None and length else None
            self._open(shares)
            return
        mask = self.mask.copy()
        for row, length in lengths.items():
            tail = self._tail_lengths[row] = length - self._head_lengths[row]
            mask[row, np.flatnonzero(mask[row])[tail:]] = False
        self._set_mask(mask)
        self._tidy()

    def release(self, rows: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of rows that end before the others. Short tails are copied, to one buffer."""
        tails = [self._tail_of(row) for row in rows]
        short = [i for i, tail in enumerate(tails) if tail and len(tail[0]) < SHARING.min_view]
        if short and self.num_rows > 1:
            buffer, columns = gather(self._store, [tails[i] for i in short])
            for at, i in enumerate(short):
                tails[i] = (KVPart(buffer, at, columns[at]),)
        found = [(*self.heads[row], *tail) for row, tail in zip(rows, tails, strict=True)]
        return [RowKV(parts) if parts else None for parts in found]

    def release_all(self) -> list[RowKV | None]:
        """Return the keys and values of all rows without a copy; the batch cannot be used afterwards."""
        found = [(*self.heads[row], *self._tail_of(row)) for row in range(self.num_rows)]
        self._close()
        return [RowKV(parts) if parts else None for parts in found]

    def release_only(self, rows: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of some rows alone; the batch cannot be used afterwards. Cost: a copy of their tails.

        Raises `KVBudgetError` if there is no room for the copy; the batch is unchanged.
        """
        buffer, columns = gather(self._store, [self._tail_of(row) for row in rows])
        copies = [(KVPart(buffer, at, line),) if len(line) else () for at, line in enumerate(columns)]
        shares = [(*self.heads[row], *copy) for row, copy in zip(rows, copies, strict=True)]
        self._close()
        return [RowKV(parts) if parts else None for parts in shares]

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with `rows` only, in this order; a row that is named several times is forked.

        Cost: that of a new batch; of short tails without heads, in their old order, one copy for each run of neighbouring rows.
        """
        columns = np.flatnonzero(self.mask[list(rows)].any(axis=0))
        is_ordered = all(map(lt, rows, rows[1:])) and len(columns) > 0
        if not is_ordered or any(self.heads) or columns[-1] - columns[0] >= SHARING.min_view:
            shares = self.release_all()
            self._open([shares[row] for row in rows])
            return
        start, stop = int(columns[0]), int(columns[-1]) + 1
        old = self._tails.buffer
        buffer, mask = select(self._store, old, rows, start, stop), self.mask[list(rows), start:stop]
        self._close()
        self._set_heads([], len(rows))
        self._set_tails(buffer, [np.flatnonzero(line) for line in mask], [])
        self._tidy()

    @property
    def _pads_left(self) -> bool:
        """Whether what pads a chunk is before it, also if the row has tokens before."""
        return self._model.can_skip

    def _open(self, shares: Sequence[RowKV | None]) -> None:
        sources = [buffer for share in shares if share is not None for buffer in share.buffers]
        for buffer in sources:
            buffer.users.add(self)
            self._store.touch(buffer)
        shared, (tail, columns) = self._appended(shares) or self._planned(shares)
        self._set_heads(shared, len(shares))
        self._set_tails(tail, columns, segments(shared, len(shares)))
        for buffer in sources:
            if buffer is not tail and buffer not in self._read:
                buffer.users.discard(self)

    def _set_heads(self, shared: Sequence[Share], num_rows: int) -> None:
        self.heads = [[] for _ in range(num_rows)]
        for share in shared:
            for row in share.rows:
                self.heads[row].append(share.part)
        self._head_lengths = [sum(map(len, parts)) for parts in self.heads]
        self._read = {share.part.buffer for share in shared}
        for buffer in self._read:
            buffer.is_spare = False

    def _set_tails(self, buffer: Buffer, columns: Sequence[NDArray[np.int64]], shared: Sequence[Segment]) -> None:
        buffer.users.add(self)
        buffer.claim(self, buffer.used)
        # Columns before this one may belong to others, too.
        self._floor = max((int(line[-1]) + 1 for line in columns if len(line)), default=0)
        self._tail_lengths = [len(line) for line in columns]
        self._cache = GrowingCache(buffer, self._floor, shared, is_ours=self._is_ours)
        self._set_mask(_mask(columns, self._floor))

    def _close(self) -> None:
        self._tails.buffer.release(self)
        for buffer in (self._tails.buffer, *self._read):
            buffer.users.discard(self)

    def _appended(self, shares: Sequence[RowKV | None]) -> tuple[list[Share], Tail] | None:
        """Return the plan by which the batch appends to the buffer in which its rows end; None if it may not."""
        present = [share for share in shares if share is not None and share.parts]
        if len(present) < len(shares) or not all(part.buffer.is_live for share in present for part in share.parts):
            return None
        lasts = [share.parts[-1] for share in present]
        buffer = lasts[0].buffer
        if buffer.num_rows != len(shares) or any(
            last.buffer is not buffer or last.row != i for i, last in enumerate(lasts)
        ):
            return None
        columns = [last.columns for last in lasts]
        stop = max(int(line[-1]) for line in columns) + 1
        lengths = [len(line) for line in columns]
        has_few_spare = self._model.can_skip and (stop - max(lengths)) * 4 <= stop
        if not has_few_spare and not _is_packed(_mask(columns, stop), lengths):
            return None
        heads = [share.parts[:-1] for share in present]
        if (any(heads) and self._sharing is None) or not buffer.claim(self, stop):
            return None
        return _shares_of(heads), (buffer, columns)

    def _planned(self, shares: Sequence[RowKV | None]) -> tuple[list[Share], Tail]:
        if self._sharing is not None:
            shared, rests = plan(shares, self._sharing)
        else:
            shared, rests = [], [share[: len(share)].parts if share is not None else () for share in shares]
        return shared, gather(self._store, rests)

    @property
    def _tails(self) -> Tails:
        return self._cache.tails

    def _tail_of(self, row: int) -> tuple[KVPart, ...]:
        columns = np.flatnonzero(self.mask[row])
        columns.flags.writeable = False
        return (KVPart(self._tails.buffer, row, columns),) if len(columns) else ()

    def _forward(self, fed: NDArray[np.int64], new: NDArray[np.bool_] | None, columns: list[int]) -> torch.Tensor:
        """Feed ids and their positions, (2, R, Q), of which `new` (R, Q) are tokens; None for all."""
        width = fed.shape[2]
        seen = None if new is None and not self._has_gaps else self._seen(new, width)
        shown = self._shown(seen, width)
        moved, *masks = upload_together([fed] if shown is None else [fed, shown], self._model.device)
        ids, positions = moved.unbind()
        mask = self._attention_mask(masks[0], width) if masks else None
        logits = self._model.forward(ids, mask, positions, self._cache, columns)
        tails = self._tails
        if not tails.were_read():
            raise UnsupportedModel(
                f"expected {self._model!r} to attend to the keys that its cache returns, but it has not read the shared "
                "part of them. Pass `share=False` when the model is wrapped."
            )
        tails.length += width
        if seen is not None:
            self._set_mask(seen)
        return logits

    def _seen(self, new: NDArray[np.bool_] | None, width: int) -> NDArray[np.bool_]:
        """Return (R, C + Q) bool: where a column is a token, the new ones included."""
        new = np.ones((self.num_rows, width), dtype=bool) if new is None else new
        return np.concatenate([self.mask, new], axis=1)

    def _shown(self, seen: NDArray[np.bool_] | None, width: int) -> NDArray[Any] | None:
        """Return what the mask of a forward of Q columns is made of, (R, C + Q): where there is a token, bool; int64 if the model makes it.

        None for no mask: every column has a token, as `seen` is None, and a single query sees all of its tail, or the model makes its own,
        or all queries are the first; on CUDA also where several queries are the last tokens of their tails.
        """
        if seen is None and width == 1:
            return None
        is_ours = self._tails.is_ours
        is_first = not self._tails.length and not self._tails.segments
        if seen is None and (is_first or not is_ours or self._model.device.type == "cuda"):
            return None
        seen = self._seen(None, width) if seen is None else seen
        if not is_ours:
            return seen.astype(np.int64)
        return _with_itself(seen) if width == 1 else seen

    def _attention_mask(self, shown: torch.Tensor, width: int) -> torch.Tensor:
        """Return the mask of a forward of Q columns: (R, C + Q) int64, from which the model makes its own.

        With shared segments, and on CUDA (where a model would wait for the device to read the mask, and `prefix_attention` takes no other),
        it is (R, 1, Q, C + Q), additive over the tails.
        """
        return additive_mask(_visible(shown, width), self._model.dtype) if self._tails.is_ours else shown

    def _tidy(self) -> None:
        self._trim()
        columns = self.mask.shape[1]
        if self._model.can_skip:
            spare = columns - max(self._tail_lengths)
            if spare > _SPARE_COLUMNS and spare * 4 > columns:
                self._pack()
        elif not _is_packed(self.mask, self._tail_lengths):
            self._pack()

    def _trim(self) -> None:
        """Free the last columns without a token, as far as this batch has written them."""
        used = np.flatnonzero(self.mask.any(axis=0))
        stop = max(int(used[-1]) + 1 if len(used) else 0, self._floor)
        if stop < self.mask.shape[1]:
            self._set_mask(self.mask[:, :stop])
            self._tails.length = stop
            self._tails.buffer.trim(self, stop)

    def _pack(self) -> None:
        """Copy the tails to a new buffer, flush right."""
        buffer, columns = gather(self._store, [self._tail_of(row) for row in range(self.num_rows)])
        old = self._tails.buffer
        old.release(self)
        if old not in self._read:
            old.users.discard(self)
        self._set_tails(buffer, columns, self._tails.segments)


def _with_itself(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where there are tokens, with the last column, in which a query that is only padding sees itself: its attention is a number."""
    if seen[:, -1].all():
        return seen
    seen = seen.copy()
    seen[:, -1] = True
    return seen


def _visible(seen: torch.Tensor, width: int) -> torch.Tensor:
    """Return (R, 1, Q, C + Q) bool: the columns that each of the last `width` sees, among those with a token, (R, C + Q).

    A query that is only padding sees itself, so that its attention is a number; a single one does by `_with_itself`.
    """
    seen = seen[:, None, None]
    if width == 1:
        return seen
    before = seen.shape[3] - width
    causal = torch.ones((width, seen.shape[3]), dtype=torch.bool, device=seen.device).tril_(before)
    return (seen & causal) | causal.triu(before)


def _shares_of(heads: Sequence[Sequence[KVPart]]) -> list[Share]:
    """Return the shares of rows that ran together before: rows that share a prefix have the same part object."""
    rows: dict[int, list[int]] = {}
    parts = {id(part): part for head in heads for part in head}
    for row, head in enumerate(heads):
        for part in head:
            rows.setdefault(id(part), []).append(row)
    return [Share(part, tuple(rows[key])) for key, part in parts.items()]


def _mask(columns: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.bool_]:
    mask = np.zeros((len(columns), width), dtype=bool)
    for row, line in enumerate(columns):
        mask[row, line] = True
    return mask


def _is_packed(mask: NDArray[np.bool_], lengths: Sequence[int]) -> bool:
    """Return whether the tokens of every row are in adjacent columns that end with the last one."""
    columns = mask.shape[1]
    return all(bool(row[columns - length :].all()) for row, length in zip(mask, lengths, strict=True))
