"""`NgramIndex`: a hash index of the n-grams (n = 1 to 3) of the tokens of a row: for each n-gram its last occurrence, and for each
occurrence the one before it, so that tokens can be appended and rolled back in O(1) each.
"""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (3, 2, 1)
"""How many tokens must be the same, the most first."""


class NgramIndex:
    """The positions behind all runs of 1 to 3 tokens of a row that grows, and may be cut.

    For every run of tokens it has the last position behind one, and for every such position the one before it; so after a cut
    the index is what it was when the row was as short.
    """

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[tuple[int | None, ...]] = []  # by the index of a token, for each size the place before it
        self._num_sure = 0

    def fork(self) -> NgramIndex:
        """Return an independent copy. Cost: O(tokens)."""
        other = NgramIndex()
        other._token_ids, other._num_sure = [*self._token_ids], self._num_sure
        other._last, other._before = {**self._last}, [*self._before]
        return other

    def cut(self, length: int) -> None:
        """Note that only the first `length` tokens are surely those of before; see `follow`."""
        self._num_sure = min(self._num_sure, length)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Update the index to that of `token_ids`. Cost: 2 us for each token that is new or was cut."""
        while len(self._token_ids) > self._num_sure:
            self._pop()
        for token_id in token_ids[self._num_sure :]:
            self._push(token_id)
        self._num_sure = len(self._token_ids)

    def find(self, context: Sequence[int], size: int) -> int | None:
        """Return the index of the token that came last behind what `context` ends in, `size` tokens; None where nothing did."""
        return self._last.get(tuple(context[-size:])) if len(context) >= size else None

    def is_only(self, place: int, size: int) -> bool:
        """Return whether the `size` tokens before a position that was found occur nowhere before."""
        return self._before[place][SIZES.index(size)] is None

    def _push(self, token_id: int) -> None:
        at, before = len(self._token_ids), []
        for size in SIZES:
            run = tuple(self._token_ids[at - size : at]) if at >= size else ()
            before.append(self._last.get(run))
            if run:
                self._last[run] = at
        self._before.append(tuple(before))
        self._token_ids.append(token_id)

    def _pop(self) -> None:
        self._token_ids.pop()
        at, places = len(self._token_ids), self._before.pop()
        for size, place in zip(SIZES, places, strict=True):
            run = tuple(self._token_ids[at - size : at]) if at >= size else ()
            if place is not None:
                self._last[run] = place
            elif run:
                del self._last[run]
