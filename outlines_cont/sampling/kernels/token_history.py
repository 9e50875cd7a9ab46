"""`TokenHistory`: the tokens of a running row in their order, and how surprising those were that were drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """What `DRY` and `Mirostat` read of one running row.

    Attributes:
        mirostat_start: index of the first token that `Mirostat` counts; None where it has not begun.
    """

    def __init__(
        self, token_ids: Sequence[int], drawn: Sequence[float | None] | None = None, mirostat_start: int | None = None
    ) -> None:
        """Take a row.

        Args:
            token_ids: T ids, those of the prompt included.
            drawn: T log-probabilities with which the tokens were drawn, None for a token that was not; None where no token was.
            mirostat_start: see above.
        """
        self._num = len(token_ids)
        self._ids = np.array(token_ids, dtype=np.int64)
        self.mirostat_start = mirostat_start
        # (bits, tokens): the surprise of all tokens that were drawn before each place, and their number.
        self._sums: list[tuple[float, int]] = [(0.0, 0)]
        for logprob in drawn if drawn is not None else (None,) * self._num:
            self._sums.append(_plus(self._sums[-1], logprob))

    def add(self, token_id: int, logprob: float | None) -> None:
        """Note a token that was appended; `logprob` is None where it was not drawn. Cost: O(1), amortised."""
        if self._num == len(self._ids):
            self._ids = np.pad(self._ids, (0, max(self._num, 64)))
        self._ids[self._num] = token_id
        self._num += 1
        self._sums.append(_plus(self._sums[-1], logprob))

    def remove_last(self) -> None:
        """Note that the last token was given back. Cost: O(1)."""
        self._num -= 1
        self._sums.pop()
        if self.mirostat_start is not None:
            self.mirostat_start = min(self.mirostat_start, self._num)

    def fork(self) -> TokenHistory:
        """Return a second history that goes on from here by itself. Cost: O(T)."""
        fork = copy(self)
        fork._ids, fork._sums = self._ids.copy(), [*self._sums]
        return fork

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """(T,) int64: all ids in their order; a view."""
        return self._ids[: self._num]

    @property
    def surprise(self) -> tuple[float, int]:
        """The surprise, in bits, of all tokens that were drawn since `mirostat_start`, and their number."""
        if self.mirostat_start is None:
            return 0.0, 0
        (bits, count), (before, first) = self._sums[-1], self._sums[self.mirostat_start]
        return bits - before, count - first


def _plus(total: tuple[float, int], logprob: float | None) -> tuple[float, int]:
    return total if logprob is None else (total[0] - logprob / math.log(2), total[1] + 1)
