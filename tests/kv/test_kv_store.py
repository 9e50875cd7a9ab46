"""Buffers and their budget against a plain list of who was used when, and the plan by which rows share tokens (inner laws)."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.errors import KVBudgetError
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.kv.share import Share, Sharing, plan, segments
from outlines_cont.kv.store import KVStore
from tests.examples import examples

_STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "touch", "read", "leave", "reserve", "reserve"]), st.integers(0, 9)), min_size=1, max_size=14
)


class _User:
    """Somebody who reads a buffer."""


def _layers(columns: int, value: float = 0.0, heads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((1, heads, columns, 2), value), torch.full((1, heads, columns, 3), -value)


@settings(max_examples=examples(120), deadline=None)
@given(_STEPS, st.integers(0, 12))
def test_what_nobody_reads_is_evicted_by_last_use_and_no_more_than_is_needed(steps: list[tuple[str, int]], budget: int) -> None:
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


@settings(max_examples=examples(60), deadline=None)
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
def test_a_share_of_a_row_has_its_first_tokens_up_to_what_was_evicted(sizes: list[int], stop: int, evicted: int) -> None:
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


# Rows of one buffer that part at any place: which columns each holds of two rows of a buffer, one part after the other.
_COLUMNS = st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True).map(sorted)
_PARTS = st.lists(st.tuples(st.integers(0, 1), _COLUMNS), min_size=1, max_size=3)


def _places(parts: tuple[KVPart, ...]) -> list[tuple[int, int]]:
    return [(part.row, column) for part in parts for column in part.columns.tolist()]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.none() | _PARTS, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([Sharing(1, 1), Sharing(3, 2), Sharing(1, 1000), Sharing(1000, 1000)]),
)
def test_a_row_is_read_where_its_tokens_lie(drawn: list[list[tuple[int, list[int]]] | None], cut: list[int], sharing: Sharing) -> None:
    buffer = Buffer(KVStore().reserve, 2, 0)
    rows = [None if parts is None else RowKV(tuple(KVPart(buffer, row, np.array(columns)) for row, columns in parts)) for parts in drawn]
    rows += [rows[at % len(rows)] for at in cut]
    rows += [row[: len(row) // 2] for row in rows if row is not None and len(row) > 1]
    shares, copied = plan(rows, sharing)
    for number, row in enumerate(rows):
        read = [place for share in shares if number in share.rows for place in _places((share.part,))]
        assert (_places(row.parts) if row is not None else []) == read + _places(copied[number])


def test_rows_with_shorter_beginnings_in_common_share_no_more_than_these() -> None:
    """The second longest row has least in common with the longest."""
    buffer = Buffer(KVStore().reserve, 1, 0)
    columns = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 10, 11, 12, 13, 14], [0, 1, 2, 3, 4, 5, 6]]
    shares, _ = plan([RowKV((KVPart(buffer, 0, np.array(row)),)) for row in columns], Sharing(1, 1))
    assert {0, 1, 2} == {row for share in shares for row in share.rows}
    for share in shares:
        for row in share.rows:
            assert set(share.part.columns.tolist()) <= set(columns[row])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 14), st.integers(1, 10))
def test_of_rows_cut_out_of_one_those_share_first_that_save_most(lengths: list[int], min_copies: int, min_view: int) -> None:
    """Each row but one saves a copy of every token that all of them have in common; what saves too little is copied."""
    buffer = Buffer(KVStore().reserve, 1, 0)
    columns = np.cumsum([2, 1, 1, 3, 1, 1, 1, 2, 1])
    rows = [RowKV((KVPart(buffer, 0, columns[:length]),)) for length in lengths]
    shares, copied = plan(rows, Sharing(min_copies, min_view))
    most = max(((len(group) - 1) * min(group) for n in range(1, 7) for group in combinations(lengths, n)), default=0)
    if most >= min_copies:
        assert most == (len(shares[0].rows) - 1) * len(shares[0].part)
    elif max(lengths) >= min_view:
        assert (1, max(lengths)) == (len(shares[0].rows), len(shares[0].part))
    else:
        assert shares == []
    assert all(sum(map(len, parts)) < min_view for parts in copied)


# Shares of neighbouring rows of one of two buffers: where each begins, its columns from there on, and how many rows of the batch have it.
_SHARES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.sets(st.integers(0, 4), max_size=4), st.integers(1, 3)), min_size=1, max_size=7
)


def _fits(shares: list[Share]) -> bool:
    """Whether one call of attention over these wastes no more than half of what it computes."""
    columns = [column for share in shares for column in share.part.columns.tolist()]
    cells = (max(columns) - min(columns) + 1) * len(shares) * max(len(share.rows) for share in shares)
    follows = all(b.part.row - a.part.row == 1 and a.part.buffer is b.part.buffer for a, b in pairwise(shares))
    return follows and cells <= 2 * sum(len(share.part) * len(share.rows) for share in shares)


@settings(max_examples=examples(200), deadline=None)
@given(_SHARES)
def test_shares_of_neighbouring_rows_are_one_segment_where_that_wastes_little(drawn: list[tuple[int, int, set[int], int]]) -> None:
    buffers, shares, num_rows = [Buffer(KVStore().reserve, 7, 0), Buffer(KVStore().reserve, 7, 0)], [], 0
    for row, (buffer, start, more, count) in enumerate(drawn):
        columns = np.array(sorted({start} | {start + 1 + column for column in more}))
        shares.append(Share(KVPart(buffers[buffer], row, columns), tuple(range(num_rows, num_rows + count))))
        num_rows += count
    found = segments(shares, num_rows)
    # In the order of buffers, first columns and rows, no segment could take in the first share of the next one.
    key = lambda share: (id(share.part.buffer), int(share.part.columns[0]), share.part.row)  # noqa: E731
    assert sorted(shares, key=key) == [share for segment in found for share in segment.shares]
    for segment in found:
        assert segment.buffer is segment.shares[0].part.buffer
        assert len(segment.shares) == 1 or _fits(segment.shares)
    for one, other in pairwise(found):
        assert not _fits([*one.shares, other.shares[0]])
    assert segments([], 3) == []
