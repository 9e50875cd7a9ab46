"""`PagedBatch`: a `KVBatch` whose tokens are in slots of a pool. Rows share what they have in common by naming the same slots; a row that
goes on where its lease ends takes more slots of that, another takes a new lease; to cut a row, to fork it or to let it go copies nothing.
What is elsewhere, such as rows of a file, is copied into slots when a batch begins, once for all rows that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload, upload_together
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.paged.cache import PagedCache, PagedTails
from outlines_cont.kv.paged.lease import Lease
from outlines_cont.kv.paged.pool import Pool
from outlines_cont.kv.row import KVPart, RowKV

# A row that needs slots takes so many more than it needs, or an eighth of what it has fed.
_SPARE = 16
_GROWTH = 8


class PagedBatch(KVBatch):
    """The keys and values of R rows that run together, in a pool. `heads` are the tokens that rows had when they joined.

    The table (R, W) int32 has the slots of all tokens of a row, and then those of its lease that are free: `room` tells how many.
    """

    def __init__(self, model: LanguageModel, shares: Sequence[RowKV | None], pool: Pool) -> None:
        """Take the cached keys and values of R rows; None for a row without any."""
        self._pool = pool
        self._spare = _SPARE
        super().__init__(model, shares)

    def allocate_exactly(self, num_columns: int) -> None:
        """Take no spare slots, as there is no room for these."""
        self._spare = 0

    def rewind(self, lengths: Mapping[int, int]) -> None:
        """Remove the tokens of some rows from an index on. Cost: none; a row that is cut where it had begun takes a new lease."""
        for row, length in lengths.items():
            tail = length - self._head_lengths[row]
            if tail < 0:
                self.heads[row] = [*RowKV(tuple(self.heads[row]))[:length].parts]
                self._head_lengths[row], self._room[row] = length, length
                self._end(row)
                tail = 0
            self._tail_lengths[row] = tail

    def release(self, rows: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of rows that end before the others, without a copy."""
        return [self._released(row) for row in rows]

    def release_all(self) -> list[RowKV | None]:
        """Return the keys and values of all rows without a copy; the batch cannot be used afterwards."""
        return self.release_only(range(self.num_rows))

    def release_only(self, rows: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of some rows alone, without a copy; the batch cannot be used afterwards."""
        found = self.release(rows)
        self._close()
        return found

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with `rows` only, in this order; a row that is named several times is forked. Cost: that of a new batch."""
        shares = self.release_all()
        self._open([shares[row] for row in rows])

    @property
    def _pads_left(self) -> bool:
        return True

    def _open(self, shares: Sequence[RowKV | None]) -> None:
        held = [share[: len(share)] if share is not None else RowKV(()) for share in shares]
        self._read = {buffer for kv in held for buffer in kv.buffers}
        for buffer in self._read:
            buffer.users.add(self)
            self._store.touch(buffer)
        self.heads = [list(parts) for parts in self._in_pool(held)]
        self._head_lengths = [sum(map(len, parts)) for parts in self.heads]
        self._tail_lengths = [0] * len(shares)
        used = {part.buffer for parts in self.heads for part in parts}
        for buffer in self._read - used:
            buffer.users.discard(self)
        self._read = used
        for buffer in used:
            buffer.is_spare = False
        self._leases = [self._continued(parts) for parts in self.heads]
        self._floors = [lease.used if lease is not None else 0 for lease in self._leases]
        self._room = np.array(self._head_lengths)
        self._table = np.zeros((len(shares), int(self._room.max()) + _SPARE), dtype=np.int32)
        for row, parts in enumerate(self.heads):
            if parts:
                self._table[row, : self._room[row]] = np.concatenate([part.columns for part in parts])
        self._moved_table: torch.Tensor | None = None
        self._cache = PagedCache(self._pool)

    def _in_pool(self, rows: Sequence[RowKV]) -> list[list[KVPart]]:
        """Return the parts of rows, those that are not in the pool as copies."""
        foreign: dict[tuple[Buffer, int], list[KVPart]] = {}
        for part in chain.from_iterable(kv.parts for kv in rows):
            if not self._is_here(part):
                foreign.setdefault((part.buffer, part.row), []).append(part)
        copies = {}
        for (buffer, row), parts in foreign.items():
            union = np.unique(np.concatenate([part.columns for part in parts]))
            layers = RowKV((KVPart(buffer, row, union),)).layers()
            lease = Lease.holding(self._pool, self._store, buffer.epoch, layers)
            lease.users.add(self)  # so that it is not evicted for the next one
            copies[buffer, row] = union, lease
        found = []
        for kv in rows:
            parts = []
            for part in kv.parts:
                if not self._is_here(part):
                    union, lease = copies[part.buffer, part.row]
                    part = KVPart(lease, 0, lease.owned[np.searchsorted(union, part.columns)])
                parts.append(part)
            found.append(parts)
        return found

    def _is_here(self, part: KVPart) -> bool:
        return isinstance(part.buffer, Lease) and part.buffer.pool is self._pool

    def _continued(self, parts: Sequence[KVPart]) -> Lease | None:
        """Return the lease of the last part, if it ends there and nobody else continues it; it is claimed."""
        last = parts[-1] if parts else None
        if last is None or not isinstance(lease := last.buffer, Lease) or not lease.used:
            return None
        ends = last.columns[-1] == lease.owned[lease.used - 1]
        return lease if ends and lease.begin(self) else None

    def _released(self, row: int) -> RowKV | None:
        """Return the keys and values of a row, whose slots the batch does not write again from then on."""
        parts, lease, floor = self.heads[row], self._leases[row], self._floors[row]
        if lease is not None and self._tail_lengths[row]:
            stop = lease.used = floor + self._tail_lengths[row]
            # One part for all that ascends, so that a text of many calls has few.
            last = parts.pop() if parts and parts[-1].buffer is lease else None
            parts += lease.parts(floor - len(last) if last is not None else floor, stop)
            self._head_lengths[row] += self._tail_lengths[row]
            self._tail_lengths[row], self._floors[row] = 0, stop
        return RowKV(tuple(parts)) if parts else None

    def _close(self) -> None:
        for row in range(self.num_rows):
            self._end(row)
        for buffer in self._read:
            buffer.users.discard(self)

    def _end(self, row: int) -> None:
        """Let the lease of a row go, with the slots that it does not use."""
        lease = self._leases[row]
        if lease is not None:
            lease.shrink()
            lease.release(self)
            if lease not in self._read:
                lease.users.discard(self)
            self._leases[row] = None

    def _make_room(self, row: int, count: int) -> None:
        """Take slots for `count` more tokens of a row, and some more."""
        lease, tail = self._leases[row], self._tail_lengths[row]
        if lease is None:
            lease = self._leases[row] = Lease(self._pool, self._store, self._store.epoch)
            lease.users.add(self)
            lease.begin(self)
            self._floors[row] = 0
        spare = max(self._spare, (tail + count) // _GROWTH) if self._spare else 0
        lease.extend(self._floors[row] + tail + count + spare)
        start = self._head_lengths[row]
        more = lease.owned[self._floors[row] :]
        stop = start + len(more)
        if stop > self._table.shape[1]:
            self._table = np.pad(self._table, ((0, 0), (0, stop + stop // _GROWTH - self._table.shape[1])))
        self._table[row, start:stop] = more
        self._room[row] = stop
        self._moved_table = None

    def _forward(self, fed: NDArray[np.int64], new: NDArray[np.bool_] | None, columns: list[int]) -> torch.Tensor:
        """Feed ids and their positions, (2, R, Q), of which `new` (R, Q) are tokens, the last ones of a row; None for all."""
        width = fed.shape[2]
        lengths = np.array(self.lengths)
        counts = np.full(self.num_rows, width) if new is None else new.sum(axis=1)
        if (lengths + counts > self._room).any():
            # Those that will need slots soon take them now, as the table is moved for all rows.
            for row in np.flatnonzero((counts > 0) & (lengths + counts + self._spare // 2 > self._room)):
                self._make_room(int(row), int(counts[row]))
        stops = np.where(counts > 0, lengths + counts, 0)
        at = stops[:, None] + np.arange(-width, 0)
        slots = np.take_along_axis(self._table, np.maximum(at, 0), axis=1)
        slots = np.where(np.arange(width) >= width - counts[:, None], slots, 0)
        stop = max(int(stops.max()), width)
        given = np.concatenate([fed, slots[None]]), stops.astype(np.int32)
        moved, moved_lengths = upload_together(given, self._model.device)
        if self._moved_table is None:
            self._moved_table = upload(
                np.pad(self._table, ((0, 0), (0, max(width - self._table.shape[1], 0)))), self._model.device
            )
        tails = self._cache.tails
        assert isinstance(tails, PagedTails)
        tails.aim(moved, moved_lengths, self._moved_table[:, :stop], self._moved_table)
        return self._model.forward(moved[0], None, moved[1], self._cache, columns)

    def _tidy(self) -> None:
        """Do nothing: rows of a table have no gaps."""
