"""`Lookup`: prompt lookup decoding (Saxena 2023): drafts what followed the last earlier occurrence of the last 3, 2 or 1 tokens, in
prompt or output, by a hash index of n-grams. Beyond the end of a copy it continues with the tokens that usually end copies, and the next
value (`copying`).

A record repeats the names and numbers of a message, and code the names of its variables. The occurrence whose kind had the highest
acceptance rate is tried first, and forced tokens of the constraint are skipped over.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from typing import Any

from outlines_cont.drafts.copying import CopyHabits, CopyTrail
from outlines_cont.drafts.ngram_index import SIZES, NgramIndex
from outlines_cont.engine.guessing.row_draft import Wish

_EXPECTED = {(3, True): 0.8, (3, False): 0.7, (2, True): 0.7, (2, False): 0.5, (1, True): 0.5, (1, False): 0.2}
"""Which share of the guesses is right, by the number of tokens that were the same, and whether they stood only at one place before."""
_END, _NEXT = "the end of a copy", "the next copy"
_EXPECTED_NEXT = 0.3
_GAP = 3
"""How many tokens behind the end of a copy the next one may begin."""


class LookupMemory:
    """What is known of one row: the index of its n-grams, and where it copies from."""

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.trail = CopyTrail()
        self.prompt_length = 0

    def cut(self, length: int) -> None:
        """Note that of the tokens of the row only the first `length` are surely those of before."""
        self.index.cut(length)
        self.trail.cut(length)

    def fork(self) -> LookupMemory:
        """Return the same for a fork of the row. Cost: a copy."""
        other = LookupMemory()
        other.index, other.trail, other.prompt_length = self.index.fork(), copy(self.trail), self.prompt_length
        return other

    def follow(self, token_ids: Sequence[int], habits: CopyHabits) -> None:
        """Be what is remembered of `token_ids`, and learn from those that are new."""
        self.prompt_length = self.prompt_length or len(token_ids)
        self.trail.follow(token_ids, habits)
        self.index.follow(token_ids)


class Lookup:
    """A drafter that looks up the last tokens of a row in the row itself; for all rows of one model."""

    def __init__(self) -> None:
        self.has_warned = False
        self._habits = CopyHabits()

    def __repr__(self) -> str:
        return "Lookup()"

    def memory(self) -> LookupMemory:
        """Return an empty memory."""
        return LookupMemory()

    def keep(self, memories: Sequence[Any]) -> None:
        """Nothing is held but what belongs to rows."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push what followed the last tokens of each row earlier, also behind tokens that the constraint forces."""
        for wish in wishes:
            memory = wish.draft.memory
            memory.follow(wish.row.token_ids, self._habits)
            _Guess(wish, memory, self._habits).make()


class _Guess:
    """One guess for one row, in the making."""

    def __init__(self, wish: Wish, memory: LookupMemory, habits: CopyHabits) -> None:
        self._wish, self._memory, self._habits = wish, memory, habits
        self._stopped = memory.trail.stopped if memory.trail.at is None else None
        self._longest = 0

    def make(self) -> None:
        """Push copies, one behind the other."""
        while any(self._copy(place, kind) for place, kind in self._places()):
            pass

    def _places(self) -> Iterator[tuple[int, Hashable]]:
        """Return where the text may go on as it did there, the likeliest first, and how each place was found."""
        index, context, share = self._memory.index, self._wish.context, self._wish.draft.share
        found: list[tuple[float, int, Hashable]] = []
        for size in SIZES:
            place = index.find(context, size)
            if place is not None:
                is_only, is_in_prompt = index.is_only(place, size), place < self._memory.prompt_length
                kind = (size, is_only, is_in_prompt)
                found.append((share(kind, _EXPECTED[size, is_only]), place, kind))
        if (place := self._next_place()) is not None:
            found.append((share(_NEXT, _EXPECTED_NEXT), place, _NEXT))
        return ((place, how) for _, place, how in sorted(found, key=lambda entry: -entry[0]))

    def _next_place(self) -> int | None:
        """Return the first place a little behind the end of the last copy whose token may come; None where there is none."""
        if self._stopped is None:
            return None
        context, last = self._wish.context, min(self._stopped + 1 + _GAP, self._memory.prompt_length)
        return next((place for place in range(self._stopped + 1, last) if self._may_come(context[place])), None)

    def _may_come(self, token_id: int) -> bool:
        mask = self._wish.walk.mask
        return mask is None or not mask.is_made or token_id in mask

    def _copy(self, place: int, kind: Hashable) -> bool:
        """Push what stands from `place` on, up to where a copy would end; return whether anything was pushed."""
        wish, share = self._wish, self._wish.draft.share(kind, _EXPECTED_NEXT)
        self._longest = self._longest or wish.length(kind, share)
        walk, begun, source = wish.walk, len(wish.context), place
        while walk.mask is not None and walk.num_drafted < self._longest and place < len(walk.context):
            token_id, length = walk.context[place], len(walk.context)
            if self._end(place):
                self._stopped = place
                break
            if not walk.push(token_id, kind):
                break
            place += 1
            added = walk.context[length + 1 :]
            if added != walk.context[place : place + len(added)]:
                break
            place += len(added)
        pushed = len(walk.context) > begun
        if pushed and begun == len(wish.row.token_ids) and source < self._memory.prompt_length:
            self._memory.trail.begin(begun, source)
        return pushed

    def _end(self, place: int) -> bool:
        """Push what ends a copy that would go on from `place`; return whether that is likely, and may come here."""
        before, token_id = self._wish.context[place - 1 : place + 1]
        instead = self._habits.instead(before, token_id)
        if instead is not None:
            return self._wish.walk.push(instead, _END)
        if self._may_come(token_id):
            return False
        return any(self._wish.walk.push(closing, _END) for closing in self._habits.closing())
