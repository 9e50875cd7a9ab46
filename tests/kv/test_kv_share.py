"""The plan by which rows share tokens: whatever it finds, every row is read from the columns where its tokens lie."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv.buffer import Buffer, KVStore
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.kv.share import Share, Sharing, plan, segments

# Rows of one buffer that part at any place: which columns each holds of two rows of a buffer, one part after the other.
_COLUMNS = st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True).map(sorted)
_PARTS = st.lists(st.tuples(st.integers(0, 1), _COLUMNS), min_size=1, max_size=3)


def _places(parts: tuple[KVPart, ...]) -> list[tuple[int, int]]:
    return [(part.row, column) for part in parts for column in part.columns.tolist()]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.none() | _PARTS, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([Sharing(1, 1), Sharing(3, 2), Sharing(1, 1000), Sharing(1000, 1000)]),
)
def test_a_row_is_read_where_its_tokens_lie(
    drawn: list[list[tuple[int, list[int]]] | None], cut: list[int], sharing: Sharing
) -> None:
    buffer = Buffer(KVStore().reserve, 2, 0)
    rows = [
        None if parts is None else RowKV(tuple(KVPart(buffer, row, np.array(columns)) for row, columns in parts))
        for parts in drawn
    ]
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


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 14),
    st.integers(1, 10),
)
def test_of_rows_cut_out_of_one_those_share_first_that_save_most(
    lengths: list[int], min_copies: int, min_view: int
) -> None:
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
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.sets(st.integers(0, 4), max_size=4), st.integers(1, 3)),
    min_size=1,
    max_size=7,
)


def _fits(shares: list[Share]) -> bool:
    """Whether one call of attention over these wastes no more than half of what it computes."""
    columns = [column for share in shares for column in share.part.columns.tolist()]
    cells = (max(columns) - min(columns) + 1) * len(shares) * max(len(share.rows) for share in shares)
    follows = all(b.part.row - a.part.row == 1 and a.part.buffer is b.part.buffer for a, b in pairwise(shares))
    return follows and cells <= 2 * sum(len(share.part) * len(share.rows) for share in shares)


@settings(max_examples=200, deadline=None)
@given(_SHARES)
def test_shares_of_neighbouring_rows_are_one_segment_where_that_wastes_little(
    drawn: list[tuple[int, int, set[int], int]],
) -> None:
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
