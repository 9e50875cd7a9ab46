"""`Lookup`: guesses that the text goes on as it went on where its last tokens stood before, in the prompt or in what was written.

Saxena 2023, "Prompt lookup decoding". A record repeats the names and numbers of a message, and code the names of its variables.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlines_cont.drafts.ngram_index import SIZES, NgramIndex
from outlines_cont.engine.row_draft import Memory, Wish

_EXPECTED = {3: 0.7, 2: 0.5, 1: 0.3}
"""Which share of the guesses is right, by the number of tokens that were the same, as long as nothing is known of a row."""


class Lookup:
    """Guesses by looking up the last tokens of a row."""

    def __repr__(self) -> str:
        return "Lookup()"

    def memory(self) -> NgramIndex:
        """Return an empty index."""
        return NgramIndex()

    def keep(self, memories: Sequence[Memory]) -> None:
        """Nothing is held but what belongs to rows."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push what stood behind the last tokens of each row, and go on where the constraint has put in a text of its own."""
        for wish in wishes:
            index = wish.draft.memory
            assert isinstance(index, NgramIndex)
            index.follow(wish.row.token_ids)
            _guess(wish, index)


def _guess(wish: Wish, index: NgramIndex) -> None:
    walk, longest = wish.walk, None
    while walk.mask is not None and (longest is None or walk.num_drafted < longest):
        for size in SIZES:
            place = index.find(walk.context, size)
            if place is None:
                continue
            if longest is None:
                longest = wish.length(size, _EXPECTED[size])
            if _copy(wish, place, longest):
                break
        else:
            return


def _copy(wish: Wish, place: int, longest: int) -> bool:
    """Push the tokens of a row from an index on, up to where the text goes on otherwise; return whether there were any."""
    walk, pushed = wish.walk, False
    while walk.num_drafted < longest and place < len(walk.context):
        length = len(walk.context)
        if not walk.push(walk.context[place]):
            return pushed
        pushed = True
        added = walk.context[length:]
        if walk.context[place : place + len(added)] != added:
            return True
        place += len(added)
    return pushed
