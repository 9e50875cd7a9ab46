"""`TokenCounts`: how often each token stands in a row, and in which order, kept up token by token."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from outlines_cont.sampling.kernels.token_history import TokenHistory


class TokenCounts:
    """How often each token stands in one running row: anywhere, and among what was generated.

    A token that was met once keeps its place in the arrays, with a count of 0 when it is given back.

    Attributes:
        history: the same tokens in their order.
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
            drawn, mirostat_start: see `TokenHistory`.

        Cost: O(T log T), in numpy; once per row.
        """
        self.history = TokenHistory(token_ids, drawn, mirostat_start)
        ids, places = np.unique(np.asarray(token_ids, dtype=np.int64), return_inverse=True)
        self._num = len(ids)
        self._ids = ids
        # Line 0: in the whole row. Line 1: generated.
        self._counts = np.stack(
            [np.bincount(places, minlength=len(ids)), np.bincount(places, np.asarray(is_generated, float), len(ids))]
        ).astype(np.int64)
        self._place = {token_id: place for place, token_id in enumerate(ids.tolist())}

    def add(self, token_id: int, is_generated: bool, logprob: float | None = None) -> None:
        """Count a token that was appended; `logprob` is that with which it was drawn. Cost: O(1), amortised."""
        self.history.add(token_id, logprob)
        place = self._place.setdefault(token_id, self._num)
        if place == self._num:
            self._grow()
            self._ids[place], self._num = token_id, place + 1
        self._counts[: 1 + is_generated, place] += 1

    def remove(self, token_id: int, is_generated: bool) -> None:
        """Count one of the last tokens, which are given back, in whatever order. Cost: O(1)."""
        self.history.remove_last()
        self._counts[: 1 + is_generated, self._place[token_id]] -= 1

    def fork(self) -> TokenCounts:
        """Return a second record that goes on from here by itself. Cost: O(T)."""
        fork = copy(self)
        fork.history = self.history.fork()
        fork._ids, fork._counts, fork._place = self._ids.copy(), self._counts.copy(), {**self._place}
        return fork

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """(D,) int64: the distinct tokens ever met, in no order; a view."""
        return self._ids[: self._num]

    @property
    def in_row(self) -> NDArray[np.int64]:
        """(D,) int64: how often each stands in the row; a view."""
        return self._counts[0, : self._num]

    @property
    def generated(self) -> NDArray[np.int64]:
        """(D,) int64: how often each was generated; a view."""
        return self._counts[1, : self._num]

    def _grow(self) -> None:
        """Make room for one more token: twice the room, when there is none."""
        if self._num == len(self._ids):
            more = max(self._num, 64)
            self._ids = np.pad(self._ids, (0, more))
            self._counts = np.pad(self._counts, ((0, 0), (0, more)))
