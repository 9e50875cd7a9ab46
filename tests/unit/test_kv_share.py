"""The plan by which rows share tokens: whatever it finds, every row is read from the columns where its tokens lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv import KVStore, RowKV
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.row import Part
from outlines_cont.kv.share import Sharing, plan

# Rows of one buffer that part at any place: which columns each holds of two rows of a buffer, one part after the other.
_COLUMNS = st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True).map(sorted)
_PARTS = st.lists(st.tuples(st.integers(0, 1), _COLUMNS), min_size=1, max_size=3)


def _places(parts: tuple[Part, ...]) -> list[tuple[int, int]]:
    return [(part.row, column) for part in parts for column in part.columns.tolist()]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.none() | _PARTS, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([Sharing(1, 1), Sharing(3, 2), Sharing(1, 1000), Sharing(1000, 1000)]),
)
def test_a_row_is_read_where_its_tokens_lie(
    drawn: list[list[tuple[int, list[int]]] | None], cut: list[int], sharing: Sharing
) -> None:
    buffer = Buffer(KVStore(), 2)
    rows = [
        None if parts is None else RowKV(tuple(Part(buffer, row, np.array(columns)) for row, columns in parts))
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
    buffer = Buffer(KVStore(), 1)
    columns = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 10, 11, 12, 13, 14], [0, 1, 2, 3, 4, 5, 6]]
    shares, _ = plan([RowKV((Part(buffer, 0, np.array(row)),)) for row in columns], Sharing(1, 1))
    for share in shares:
        for row in share.rows:
            assert set(share.part.columns.tolist()) <= set(columns[row])
