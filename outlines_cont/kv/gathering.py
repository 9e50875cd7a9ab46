"""`gather`: copies the keys and values of rows, each in several parts, into one new `Buffer`. Where a buffer has one tensor for all layers,
a copy takes one operator for each part, and on an accelerator two for all parts of a buffer; the plain way is one for each part and layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.row import KVPart

Tail = tuple[Buffer, list[NDArray[np.int64]]]
"""A buffer, and the columns of each row in it."""

_Move = tuple[KVPart, int, int]
"""A part, and the row and the first column that it is copied to."""


def gather(store: BufferStore, rows: Sequence[Sequence[KVPart]]) -> Tail:
    """Return a new buffer with a copy of every row's parts, flush right, and the columns of each row's tokens in it."""
    lengths = [sum(map(len, parts)) for parts in rows]
    width = max(lengths)
    buffer = Buffer(store.reserve, len(rows), store.epoch)
    moves: list[_Move] = []
    for row, parts in enumerate(rows):
        column = width - lengths[row]
        for part in parts:
            moves.append((part, row, column))
            column += len(part)
    if moves:
        buffer.epoch = min(part.buffer.epoch for part, _, _ in moves)
        buffer.allocate(moves[0][0].buffer, width)
        _fill(buffer, moves, [width - length for length in lengths])
    return buffer, [np.arange(width - length, width) for length in lengths]


def select(store: BufferStore, source: Buffer, rows: Sequence[int], start: int, stop: int) -> Buffer:
    """Return a new buffer with a copy of some rows, ascending, of another: their columns from `start` to `stop`.

    All of them must have been written. One operator, or one for each layer, copies a run of neighbouring rows.
    """
    buffer = Buffer(store.reserve, len(rows), source.epoch)
    buffer.allocate(source, stop - start)
    pairs = [
        pair
        for i in range(buffer.num_layers)
        for pair in zip(source.layer(i) or (), buffer.layer(i) or (), strict=True)
    ]
    if source.whole is not None and buffer.whole is not None:
        pairs = [(source.whole, buffer.whole)]
    for _, run in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        (first, old), *others = run
        count = len(others) + 1
        for before, after in pairs:
            target = after.narrow(-4, first, count).narrow(-2, 0, stop - start)
            target.copy_(before.narrow(-4, old, count).narrow(-2, start, stop - start))
    return buffer


def _fill(buffer: Buffer, moves: Sequence[_Move], spare: Sequence[int]) -> None:
    """Copy parts to a buffer that is allocated, and clear the first `spare` columns of each row."""
    # Memory that was never written may contain NaN, and NaN times a weight of zero is NaN.
    if buffer.whole is None:
        for row, stop in enumerate(spare):
            for index in range(buffer.num_layers):
                for tensor in buffer.layer(index) or ():
                    tensor[row, :, :stop] = 0
        copy_by_layer(buffer, moves)
        return
    if any(spare):
        buffer.whole[:, :, :, : max(spare)].zero_()
    others = [move for move in moves if move[0].buffer.whole is None]
    copy_by_layer(buffer, others)
    copy = copy_by_part if buffer.whole.device.type == "cpu" else copy_at_once
    copy(buffer, [move for move in moves if move[0].buffer.whole is not None])


def copy_by_layer(buffer: Buffer, moves: Iterable[_Move]) -> None:
    """Copy parts to a buffer, layer by layer: the plain way."""
    for part, row, column in moves:
        places = part.index()
        for index in range(buffer.num_layers):
            source, target = part.buffer.layer(index), buffer.layer(index)
            if source is not None and target is not None:
                for old, new in zip(source, target, strict=True):
                    new[row, :, column : column + len(part)] = part.read(old, places)


def copy_by_part(buffer: Buffer, moves: Iterable[_Move]) -> None:
    """The same for buffers with one tensor for all layers, all layers of a part together: 2 to 8 times as fast on a CPU."""
    assert buffer.whole is not None
    for part, row, column in moves:
        assert part.buffer.whole is not None
        buffer.whole[:, row, :, column : column + len(part)] = part.read(part.buffer.whole, part.index())


def copy_at_once(buffer: Buffer, moves: Iterable[_Move]) -> None:
    """The same, all parts of a buffer together: two operators, where copies take less time than their launches."""
    assert buffer.whole is not None
    by_source: dict[Buffer, list[NDArray[np.int64]]] = {}
    for part, row, column in moves:
        size = len(part)
        places = np.stack([np.full(size, row), np.arange(column, column + size), np.full(size, part.row), part.columns])
        by_source.setdefault(part.buffer, []).append(places)
    for source, found in by_source.items():
        assert source.whole is not None
        rows, columns, old_rows, old_columns = upload(np.concatenate(found, axis=1), buffer.whole.device)
        buffer.whole[:, rows, :, columns] = source.whole[:, old_rows, :, old_columns]
