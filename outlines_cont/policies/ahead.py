"""`row_ahead`: a view of a row as it would be some tokens later, for policies that are asked about hypothetical tokens."""

from __future__ import annotations

from typing import Any, cast

from outlines_cont.policies.policy import RowView


def row_ahead(token_ids: list[int], row: RowView) -> RowView:
    """Return a view of a row with other tokens.

    Args:
        token_ids: all ids, those of the row and those that are not written yet; whoever asks appends to them.
        row: the row as it is. All that is known of written tokens is its own.
    """
    return cast(RowView, _RowAhead(token_ids, row))


class _RowAhead:
    __slots__ = ("_row", "token_ids")

    def __init__(self, token_ids: list[int], row: RowView) -> None:
        self.token_ids, self._row = token_ids, row

    def was_drawn(self, index: int) -> bool:
        return index < len(self._row.token_ids) and self._row.was_drawn(index)

    def was_given(self, index: int) -> bool:
        return index < len(self._row.token_ids) and self._row.was_given(index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)
