"""Copies of all layers together, against those layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.device_proxy import Proxy
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.gathering import copy_at_once, copy_by_layer, copy_by_part, gather
from outlines_cont.kv.row import KVPart
from outlines_cont.kv.store import KVStore
from tests.examples import examples

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
    assert bool(buffer.stacks) is is_whole
    return buffer


def _parts(rows: list[list[tuple[int, int, set[int]]]], buffers: list[Buffer]) -> list[list[KVPart]]:
    return [[KVPart(buffers[at], row, np.array(sorted(columns))) for at, row, columns in parts] for parts in rows]


def _all(buffer: Buffer, width: int) -> list[torch.Tensor]:
    return [tensor[:, :, :width].cpu() for index in range(buffer.num_layers) for tensor in buffer.layer(index) or ()]


@settings(max_examples=examples(60), deadline=None)
@given(_ROWS, st.lists(st.booleans(), min_size=2, max_size=2))
def test_rows_of_buffers_with_a_stack_of_layers_are_copied_as_those_of_others(
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
@settings(max_examples=examples(40), deadline=None)
@given(rows=_ROWS.filter(lambda rows: any(rows)), sizes=st.tuples(*[st.integers(1, 3)] * 3))
def test_each_way_to_copy_gives_what_the_plain_one_does(
    copy: Callable[..., None], rows: list[list[tuple[int, int, set[int]]]], sizes: tuple[int, int, int]
) -> None:
    store = KVStore()
    buffers = [_restacked(_written(store, seed, is_whole=True), size) for seed, size in enumerate(sizes[:2])]
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
        _restacked(target, sizes[2])
        for stack in target.stacks:
            stack.zero_()
        one(target, moves)
        found.append(torch.cat(target.stacks))
    assert torch.equal(*found)


def _restacked(buffer: Buffer, size: int) -> Buffer:
    """The same buffer in stacks of at most `size` layers."""
    whole = torch.cat(buffer.stacks)
    buffer.stacks = [part.clone() for part in whole.split(2 * size)]
    tensors = [tensor for stack in buffer.stacks for tensor in stack.unbind()]
    buffer._layers = list(zip(tensors[::2], tensors[1::2], strict=True))
    return buffer


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_copy_on_a_device_takes_as_many_operators_for_many_rows_as_for_one(is_stacked: bool) -> None:
    store, counts = KVStore(), []
    with torch.inference_mode(), Proxy() as proxy:
        source = _written(store, 0, is_whole=is_stacked)
        for index in range(_LAYERS):
            proxy.place(source.layer(index))
        for rows in ([[(0, 0, {1, 2, 5})]], [[(0, row % 2, set(range(row, 9)))] for row in range(6)]):
            proxy.restart()
            wanted = gather(store, _parts(rows, [source]))[0]
            counts.append(proxy.steps[-1].outside)
            width = max(len(columns) for ((_, _, columns),) in rows)
            plain = gather(store, _parts(rows, [_written(store, 0, is_whole=False)]))[0]
            assert all(map(torch.equal, _all(wanted, width), _all(plain, width)))
    num_stacks = 1 if is_stacked else 2 * _LAYERS
    assert counts == [2 * num_stacks, 3 * num_stacks], "two for the copy, one for the padding of short rows"


@settings(max_examples=examples(24), deadline=None)
@given(limit=st.integers(1, 40 * 1024), chunks=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_a_device_has_layers_in_as_many_stacks_as_are_needed_and_their_columns_stay(limit: int, chunks: list[int]) -> None:
    store, draw = KVStore(), torch.Generator().manual_seed(0)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode(), Proxy() as proxy:
        patch.setattr("outlines_cont.kv.buffer._LARGEST_DEVICE_STACK", limit)
        plain, buffer, start = Buffer(store.reserve, 2, 0), Buffer(store.reserve, 2, 0), 0
        buffer.num_equal = _LAYERS
        for count in chunks:
            pairs = torch.randn(_LAYERS, 2, 2, _HEADS, count, _SIZE, generator=draw)
            for index in range(_LAYERS):
                plain.write(index, start, *pairs[index])
            slots = buffer.slots(start, proxy.place(pairs[0, 0].clone()))
            assert slots is not None
            for slot, pair in zip(slots.new, pairs, strict=True):
                slot.copy_(proxy.place(pair.clone()))
            start += count
            assert all(map(torch.equal, _all(plain, start), _all(buffer, start)))
            seen = [tensor.cpu() for pair in zip(slots.keys, slots.values, strict=True) for tensor in pair]
            assert all(map(torch.equal, seen, _all(plain, start)))
            layers = [len(stack) // 2 for stack in buffer.stacks]
            assert sum(layers) == _LAYERS
            assert all(stack.nbytes <= limit or count == 1 for stack, count in zip(buffer.stacks, layers, strict=True))
            assert buffer.nbytes == plain.nbytes == sum(stack.nbytes for stack in buffer.stacks)


def test_a_stack_of_all_layers_becomes_single_layers_when_it_is_large_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    store = KVStore()
    wanted = _written(store, 0, is_whole=False)
    monkeypatch.setattr("outlines_cont.kv.buffer._LARGEST_STACK", 8 * 1024)
    buffer, source = Buffer(store.reserve, 2, 0), torch.Generator().manual_seed(0)
    buffer.num_equal = _LAYERS
    were_stacked = []
    for start in range(0, _COLUMNS, 3):
        for index in range(_LAYERS):
            buffer.write(index, start, *torch.randn(2, 2, _HEADS, 3, _SIZE, generator=source))
        were_stacked.append(bool(buffer.stacks))
    for start in range(_COLUMNS, 60, 16):
        for index in range(_LAYERS):
            buffer.write(index, start, *torch.ones(2, 2, _HEADS, 16, _SIZE))
        were_stacked.append(bool(buffer.stacks))
    assert (were_stacked[0], were_stacked[-1]) == (True, False)
    assert all(map(torch.equal, _all(wanted, _COLUMNS), _all(buffer, _COLUMNS)))
    assert buffer.nbytes == sum(tensor.nbytes for index in range(_LAYERS) for tensor in buffer.layer(index) or ())
