"""`TokenCounts`: incremental statistics of one sequence for samplers: token histograms of the whole row and of its generated part for
penalties, the ids in order for `DRY`, and prefix sums of the surprisal for `Mirostat`. Appending and removing a token is O(1), on the
host, in numpy; a fork is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """The token counts of one running row for penalties, `DRY` and `Mirostat`, updated token by token.

    A distinct token keeps its column in the arrays of counts, with a count of 0, after it was removed.

    Attributes:
        mirostat_start: index of the first token that `Mirostat` counts; None if it has not begun.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        is_generated: Sequence[bool],
        drawn: Sequence[float | None] | None = None,
        mirostat_start: int | None = None,
    ) -> None:
        """Count a row.

        Args:
            token_ids: T ids, those of the prompt included.
            is_generated: T flags: whether the token counts as generated.
            drawn: T log-probabilities with which the tokens were drawn, None for a token that was not; None if no token was.
            mirostat_start: see above.

        Cost: O(T log T), in numpy; once per row.
        """
        self.mirostat_start = mirostat_start
        self._row, self._length = np.array(token_ids, dtype=np.int64), len(token_ids)
        # (bits, tokens): the surprisal of all tokens that were drawn before each index, and their number.
        self._sums: list[tuple[float, int]] = [(0.0, 0)]
        for logprob in drawn if drawn is not None else (None,) * self._length:
            self._sums.append(_plus(self._sums[-1], logprob))
        self._ids, columns = np.unique(self._row, return_inverse=True)
        self._num = len(self._ids)
        # Row 0: in the whole sequence. Row 1: generated.
        generated = np.bincount(columns, np.asarray(is_generated, float), self._num)
        self._counts = np.stack([np.bincount(columns, minlength=self._num), generated]).astype(np.int64)
        self._column = {token_id: column for column, token_id in enumerate(self._ids.tolist())}

    def add(self, token_id: int, is_generated: bool, logprob: float | None = None) -> None:
        """Count an appended token; `logprob` is None if it was not drawn. Cost: O(1), amortised."""
        self._row = _with_room(self._row, self._length)
        self._row[self._length] = token_id
        self._length += 1
        self._sums.append(_plus(self._sums[-1], logprob))
        column = self._column.setdefault(token_id, self._num)
        if column == self._num:
            self._ids, self._counts = _with_room(self._ids, column), _with_room(self._counts, column)
            self._ids[column], self._num = token_id, column + 1
        self._counts[: 1 + is_generated, column] += 1

    def remove(self, token_id: int, is_generated: bool) -> None:
        """Uncount one of the last tokens, which are removed; they may be passed in any order. Cost: O(1)."""
        self._length -= 1
        self._sums.pop()
        if self.mirostat_start is not None:
            self.mirostat_start = min(self.mirostat_start, self._length)
        self._counts[: 1 + is_generated, self._column[token_id]] -= 1

    def fork(self) -> TokenCounts:
        """Return an independent copy. Cost: O(T)."""
        fork = copy(self)
        fork._row, fork._sums = self._row.copy(), [*self._sums]
        fork._ids, fork._counts, fork._column = self._ids.copy(), self._counts.copy(), {**self._column}
        return fork

    @property
    def row(self) -> NDArray[np.int64]:
        """(T,) int64: all ids in order; a view."""
        return self._row[: self._length]

    @property
    def surprise(self) -> tuple[float, int]:
        """The surprisal, in bits, of all tokens that were drawn since `mirostat_start`, and their number."""
        if self.mirostat_start is None:
            return 0.0, 0
        (bits, count), (before, first) = self._sums[-1], self._sums[self.mirostat_start]
        return bits - before, count - first

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """(D,) int64: the distinct tokens that ever occurred, unordered; a view."""
        return self._ids[: self._num]

    @property
    def in_row(self) -> NDArray[np.int64]:
        """(D,) int64: the number of occurrences of each in the row; a view."""
        return self._counts[0, : self._num]

    @property
    def generated(self) -> NDArray[np.int64]:
        """(D,) int64: the number of times that each was generated; a view."""
        return self._counts[1, : self._num]


def counts_of_row(counts: Sequence[TokenCounts | None] | None, row: int, warper: object = None) -> TokenCounts:
    """Return the counts of row number `row`, which `warper` needs, or the penalties of the row if that is None.

    Raises:
        TypeError: they are missing.
    """
    found = None if counts is None else counts[row]
    if found is None:
        who = "its penalties need" if warper is None else f"{warper!r} needs"
        raise TypeError(f"expected the token counts of row {row} as `counts`, which {who}, got None")
    return found


def _with_room(array: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return an array with room for one more column after the first `length`; it is doubled if there is none."""
    if length < array.shape[-1]:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, max(length, 64))])


def _plus(total: tuple[float, int], logprob: float | None) -> tuple[float, int]:
    return total if logprob is None else (total[0] - logprob / math.log(2), total[1] + 1)
