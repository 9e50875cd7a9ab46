"""Buffers and the budget that they share, against a plain list of who was used when; and buffers that grow against plain tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.buffer import Buffer, KVStore
from outlines_cont.kv.row import KVPart, RowKV

_STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "touch", "read", "leave", "reserve", "reserve"]), st.integers(0, 9)),
    min_size=1,
    max_size=14,
)


class _User:
    """Somebody who reads a buffer."""


def _layers(columns: int, value: float = 0.0, heads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((1, heads, columns, 2), value), torch.full((1, heads, columns, 3), -value)


@settings(max_examples=120, deadline=None)
@given(_STEPS, st.integers(0, 12))
def test_what_nobody_reads_is_evicted_by_last_use_and_no_more_than_is_needed(
    steps: list[tuple[str, int]], budget: int
) -> None:
    store, user = KVStore(), _User()
    buffers: list[Buffer] = []  # the one that was used longest ago first
    read: set[Buffer] = set()
    unit = 100
    for name, number in steps:
        if name == "new":
            buffer = Buffer(store.reserve, 1, 0)
            buffer.write(0, 0, *_layers(1 + number % 3))
            buffers.append(buffer)
        elif buffers:
            buffer = buffers[number % len(buffers)]
            if name == "touch":
                store.touch(buffer)
                buffers.remove(buffer)
                buffers.append(buffer)
            elif name == "read":
                buffer.users.add(user)
                read.add(buffer)
            elif name == "leave":
                buffer.users.discard(user)
                read.discard(buffer)
            else:
                needed = number * unit
                store.budget_bytes = budget * unit
                total = sum(one.nbytes for one in buffers) + needed
                gone = []
                for one in buffers:
                    if total > store.budget_bytes and one is not buffer and one not in read and one.is_live:
                        gone.append(one)
                        total -= one.nbytes
                live = {one for one in buffers if one.is_live} - set(gone)
                if total > store.budget_bytes:
                    with pytest.raises(KVBudgetError) as caught:
                        store.reserve(buffer, needed)
                    assert (total, store.budget_bytes) == (caught.value.needed, caught.value.budget)
                else:
                    store.reserve(buffer, needed)
                assert live == {one for one in buffers if one.is_live}
                store.budget_bytes = None
        assert sum(one.nbytes for one in buffers) == store.nbytes
        assert all(one.nbytes == 0 and one.token_bytes == 0 for one in buffers if not one.is_live)
        assert (4 * (2 + 3) if any(one.is_live for one in buffers) else 0) == store.token_bytes


def test_a_store_without_buffers_holds_nothing() -> None:
    store = KVStore()
    assert (store.nbytes, store.token_bytes) == (0, 0)
    buffer = Buffer(store.reserve, 3, 0)
    assert (store.nbytes, store.token_bytes, buffer.num_layers, buffer.layer(0)) == (0, 0, 0, None)
    assert buffer.device is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([(0,), (0, 2), (0, 1, 2)])), min_size=1, max_size=6))
def test_a_buffer_that_grows_holds_what_was_written(chunks: list[tuple[int, tuple[int, ...]]]) -> None:
    """Layers are those that the first chunk has; all of them grow together."""
    store = KVStore()
    buffer, (_, present) = Buffer(store.reserve, 1, 0), chunks[0]
    written: list[float] = []
    for number, (count, _) in enumerate(chunks, 1):
        start = len(written)
        written += [float(number)] * count
        for index in present:
            keys, values = buffer.write(index, start, *_layers(count, float(number), heads=2))
            assert [written] * 2 == keys[0, :, :, 1].tolist()
            assert [[-value for value in written]] * 2 == values[0, :, :, 2].tolist()
        assert len(written) == buffer.used
    assert present[-1] + 1 == buffer.num_layers
    for index in range(present[-1] + 2):
        layer = buffer.layer(index)
        assert (index in present) == (layer is not None)
        if layer is not None:
            assert layer[0].shape[2] == layer[1].shape[2] < len(written) * 9 / 8 + 17, "few spare columns"
    assert 2 * 4 * (2 + 3) * len(present) == buffer.token_bytes == store.token_bytes


@pytest.mark.parametrize("stop", [0, 2, 3])
def test_only_one_may_append_and_only_where_nobody_has_written(stop: int) -> None:
    buffer, one, other = Buffer(KVStore().reserve, 1, 0), _User(), _User()
    buffer.write(0, 0, *_layers(3))
    assert (stop == 3) == buffer.claim(one, stop)
    if stop == 3:
        assert not buffer.claim(other, 3)
        buffer.trim(other, 1)  # not its own
        assert buffer.used == 3
        buffer.write(0, 3, *_layers(2))
        buffer.trim(one, 4)
        assert buffer.used == 4
        buffer.release(one)
        buffer.trim(one, 1)
        assert buffer.used == 4
        assert buffer.claim(other, 4)
        buffer.release(other)
    buffer.evict()
    assert not buffer.claim(one, buffer.used)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 18), st.integers(0, 4))
def test_a_share_of_a_row_has_its_first_tokens_up_to_what_was_evicted(
    sizes: list[int], stop: int, evicted: int
) -> None:
    store, value, parts = KVStore(), 0, list[KVPart]()
    for size in sizes:
        tokens = torch.arange(value, value + size, dtype=torch.float32)
        line = tokens.view(1, 1, size, 1)
        buffer = Buffer(store.reserve, 1, 0)
        buffer.write(0, 0, line.expand(1, 1, size, 2), -line.expand(1, 1, size, 3))
        parts.append(KVPart(buffer, 0, np.arange(size)))
        value += size
    row = RowKV(tuple(parts))
    assert sum(sizes) == len(row)
    short = row[:stop]
    held = list(range(min(stop, value)))
    assert len(held) == len(short)
    if held:
        (layer,) = short.layers()
        assert layer is not None
        assert held == layer[0][0, :, 0].tolist() == (-layer[1][0, :, 0]).tolist()
        assert sum(part.buffer.nbytes for part in short.parts) == sum(short.storage.values())
    else:
        assert short.layers() == []
    for wrong in (slice(1, 2), slice(0, 4, 2)):
        with pytest.raises(ValueError, match="from the beginning"):
            row[wrong]
    if evicted < len(parts):
        parts[evicted].buffer.evict()
        assert sum(sizes[:evicted]) == len(row)
        assert sum(sizes[:evicted]) == sum(layer[0].shape[1] for layer in row.layers() if layer is not None)
        assert len(parts) - 1 == len(row.buffers)
