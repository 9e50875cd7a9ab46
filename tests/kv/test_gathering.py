"""Copies of all layers together, against those layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.gathering import copy_at_once, copy_by_layer, copy_by_part, gather
from outlines_cont.kv.row import KVPart
from outlines_cont.kv.store import KVStore

_LAYERS, _HEADS, _SIZE, _COLUMNS = 3, 2, 4, 12
_PARTS = st.tuples(st.integers(0, 1), st.integers(0, 1), st.sets(st.integers(0, _COLUMNS - 1), min_size=1))
_ROWS = st.lists(st.lists(_PARTS, max_size=3), min_size=1, max_size=4)


def _written(store: KVStore, seed: int, *, is_whole: bool) -> Buffer:
    buffer = Buffer(store.reserve, 2, 0)
    buffer.num_equal = _LAYERS if is_whole else 0
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, _COLUMNS, 3):  # so that it grows
        for index in range(_LAYERS):
            buffer.write(index, start, *torch.randn(2, 2, _HEADS, 3, _SIZE, generator=generator))
    assert (buffer.whole is not None) is is_whole
    return buffer


def _parts(rows: list[list[tuple[int, int, set[int]]]], buffers: list[Buffer]) -> list[list[KVPart]]:
    return [[KVPart(buffers[at], row, np.array(sorted(columns))) for at, row, columns in parts] for parts in rows]


def _all(buffer: Buffer, width: int) -> list[torch.Tensor]:
    return [tensor[:, :, :width] for index in range(buffer.num_layers) for tensor in buffer.layer(index) or ()]


@settings(max_examples=60, deadline=None)
@given(_ROWS, st.lists(st.booleans(), min_size=2, max_size=2))
def test_rows_of_buffers_with_one_tensor_for_all_layers_are_copied_as_those_of_others(
    rows: list[list[tuple[int, int, set[int]]]], are_whole: list[bool]
) -> None:
    store = KVStore()
    plain = [_written(store, seed, is_whole=False) for seed in (0, 1)]
    mixed = [_written(store, seed, is_whole=is_whole) for seed, is_whole in enumerate(are_whole)]
    for one, other in zip(plain, mixed, strict=True):
        assert (one.used, one.token_bytes, one.nbytes) == (other.used, other.token_bytes, other.nbytes)
    (wanted, columns), (found, others) = gather(store, _parts(rows, plain)), gather(store, _parts(rows, mixed))
    assert [line.tolist() for line in columns] == [line.tolist() for line in others]
    width = max(sum(len(columns) for _, _, columns in parts) for parts in rows)
    assert all(map(torch.equal, _all(wanted, width), _all(found, width)))


@pytest.mark.parametrize("copy", [copy_by_part, copy_at_once])
@settings(max_examples=40, deadline=None)
@given(rows=_ROWS.filter(lambda rows: any(rows)))
def test_each_way_to_copy_gives_what_the_plain_one_does(copy: Callable[..., None], rows: list[list[tuple[int, int, set[int]]]]) -> None:
    store = KVStore()
    buffers = [_written(store, seed, is_whole=True) for seed in (0, 1)]
    moves = []
    for row, parts in enumerate(_parts(rows, buffers)):
        stop = 0
        for part in parts:
            moves.append((part, row, stop))
            stop += len(part)
    found = []
    for one in (copy_by_layer, copy):
        target = Buffer(store.reserve, len(rows), 0)
        target.allocate(buffers[0], 3 * _COLUMNS)
        assert target.whole is not None
        target.whole.zero_()
        one(target, moves)
        found.append(target.whole)
    assert torch.equal(*found)


def test_one_tensor_for_all_layers_becomes_several_when_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    store = KVStore()
    wanted = _written(store, 0, is_whole=False)
    monkeypatch.setattr("outlines_cont.kv.buffer._LARGEST_WHOLE", 8 * 1024)
    buffer, source = Buffer(store.reserve, 2, 0), torch.Generator().manual_seed(0)
    buffer.num_equal = _LAYERS
    were_whole = []
    for start in range(0, _COLUMNS, 3):
        for index in range(_LAYERS):
            buffer.write(index, start, *torch.randn(2, 2, _HEADS, 3, _SIZE, generator=source))
        were_whole.append(buffer.whole is not None)
    for start in range(_COLUMNS, 60, 16):
        for index in range(_LAYERS):
            buffer.write(index, start, *torch.ones(2, 2, _HEADS, 16, _SIZE))
        were_whole.append(buffer.whole is not None)
    assert (were_whole[0], were_whole[-1]) == (True, False)
    assert all(map(torch.equal, _all(wanted, _COLUMNS), _all(buffer, _COLUMNS)))
    assert buffer.nbytes == sum(tensor.nbytes for index in range(_LAYERS) for tensor in buffer.layer(index) or ())
