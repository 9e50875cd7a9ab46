"""`NgramIndex`: a hash index of the n-grams (n = 1 to 3) of the tokens of a row: for each n-gram its last occurrence, and for each
occurrence the one before it, so that tokens can be appended and rolled back in O(1) each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SIZES = (3, 2, 1)
"""The lengths n of the n-grams, the longest first."""


class NgramIndex:
    """The positions behind all n-grams of a row that grows, and may be rewound."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[tuple[int | None, ...]] = []  # by position, for each size the one before
        self._num_same = 0

    def fork(self) -> NgramIndex:
        """Return an independent copy. Cost: O(tokens)."""
        other = NgramIndex()
        other._token_ids, other._num_same = [*self._token_ids], self._num_same
        other._last, other._before = {**self._last}, [*self._before]
        return other

    def cut(self, length: int) -> None:
        """Note that the row was rewound to its first `length` tokens."""
        self._num_same = min(self._num_same, length)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Update the index to that of `token_ids`. Cost: 2 us for each token that is new or was rewound."""
        while len(self._token_ids) > self._num_same:
            self._pop()
        for token_id in token_ids[self._num_same :]:
            self._push(token_id)
        self._num_same = len(self._token_ids)

    def find(self, context: Sequence[int], size: int) -> int | None:
        """Return the position behind the last occurrence of the last `size` tokens of `context`; None if there is none."""
        return self._last.get(tuple(context[-size:])) if len(context) >= size else None

    def is_only(self, position: int, size: int) -> bool:
        """Return whether the n-gram of `size` tokens before a position is its first occurrence."""
        return self._before[position][SIZES.index(size)] is None

    def _push(self, token_id: int) -> None:
        before = []
        for run in self._runs():
            before.append(self._last.get(run))
            if run:
                self._last[run] = len(self._token_ids)
        self._before.append(tuple(before))
        self._token_ids.append(token_id)

    def _pop(self) -> None:
        self._token_ids.pop()
        for run, position in zip(self._runs(), self._before.pop(), strict=True):
            if position is not None:
                self._last[run] = position
            elif run:
                del self._last[run]

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """Yield the last n-gram of each size; the empty tuple if there are fewer tokens."""
        at = len(self._token_ids)
        return (tuple(self._token_ids[at - size : at]) if at >= size else () for size in SIZES)
