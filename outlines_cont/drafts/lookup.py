"""`Lookup`: prompt lookup decoding. The draft is what followed the last earlier occurrence of the last n tokens, in prompt or text.

Saxena 2023, "Prompt lookup decoding". A record repeats the names and numbers of a message, and code the names of its variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outlines_cont.drafts.ngram_index import SIZES, NgramIndex
from outlines_cont.engine.guessing.row_draft import Wish

_EXPECTED = {(3, True): 0.8, (3, False): 0.7, (2, True): 0.7, (2, False): 0.5, (1, True): 0.5, (1, False): 0.2}
"""Which share of the guesses is right, by the number of tokens that were the same, and whether they stood only at one place before."""


class Lookup:
    """Guesses by looking up the last tokens of a row."""

    def __init__(self) -> None:
        self.has_warned = False

    def __repr__(self) -> str:
        return "Lookup()"

    def memory(self) -> NgramIndex:
        """Return an empty index."""
        return NgramIndex()

    def keep(self, memories: Sequence[Any]) -> None:
        """Nothing is held but what belongs to rows."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push what stood behind the last tokens of each row, and go on where the constraint has put in a text of its own."""
        for wish in wishes:
            index = wish.draft.memory
            index.follow(wish.row.token_ids)
            _guess(wish, index)


def _guess(wish: Wish, index: NgramIndex) -> None:
    longest, is_new = 0, True
    while is_new:
        is_new = False
        for size in SIZES:
            place = index.find(wish.context, size)
            if place is None:
                continue
            kind = (size, index.is_only(place, size))
            longest = longest or wish.length(kind, _EXPECTED[kind])
            if not longest:
                return
            if wish.walk.push_all(_from(wish.context, place), longest, kind):
                is_new = True
                break


def _from(context: Sequence[int], place: int) -> Iterator[int]:
    """Return the ids from an index on, those included that are guessed meanwhile: what is repeated is repeated on."""
    while place < len(context):
        yield context[place]
        place += 1
