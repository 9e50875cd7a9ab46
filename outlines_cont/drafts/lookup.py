"""`Lookup`: prompt lookup decoding (Saxena 2023): drafts what followed the last earlier occurrence of the last 3, 2 or 1 tokens, in
prompt or output, by a hash index of n-grams. Beyond the end of a copy it continues with the tokens that usually end copies, and the next
value (`copying`).

A record repeats the names and numbers of a message, and code the names of its variables. The occurrence whose kind had the highest
acceptance rate is tried first, and forced tokens of the constraint are skipped over.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the row may be copied from: the acceptance rate of such guesses, the index of the first token, and the kind of guess."""

    share: float
    start: int
    kind: Hashable


class _Source:
    """An iterator over the ids of a row from an index on, those included that are guessed meanwhile; `at` is the index of the next one."""

    def __init__(self, token_ids: Sequence[int], at: int) -> None:
        self._token_ids, self.at = token_ids, at

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at >= len(self._token_ids):
            raise StopIteration
        self.at += 1
        return self._token_ids[self.at - 1]


class _Guess:
    """One guess for one row, in the making."""

    def __init__(self, wish: Wish, memory: LookupMemory, habits: CopyHabits) -> None:
        self._wish, self._memory, self._habits = wish, memory, habits
        self._stopped = memory.trail.stopped if memory.trail.at is None else None
        self._longest = 0  # the most tokens that are worth guessing; 0 until a place was found

    def make(self) -> None:
        """Push copies, one behind the other."""
        while (places := self._places()) and self._is_worth(places[0]) and any(map(self._copy, places)):
            pass

    def _is_worth(self, place: _Place) -> bool:
        """Return whether guesses are worth it, where the likeliest one is from `place`; decided once, before the policies are called."""
        self._longest = self._longest or self._wish.draft.length(self._wish.prices, place.share)
        return self._longest > 0

    def _places(self) -> list[_Place]:
        """Return where the text may continue as it did there, the likeliest first."""
        index, context, share = self._memory.index, self._wish.context, self._wish.draft.share
        found: list[_Place] = []
        for size in SIZES:
            place = index.find(context, size)
            if place is not None:
                is_only, is_in_prompt = index.is_only(place, size), place < self._memory.prompt_length
                kind = (size, is_only, is_in_prompt)
                found.append(_Place(share(kind, _EXPECTED[size, is_only]), place, kind))
        if self._stopped is not None:
            found.append(_Place(share(_NEXT, _EXPECTED_NEXT), self._stopped + 1, _NEXT))
        return sorted(found, key=lambda place: -place.share)

    def _copy(self, place: _Place) -> bool:
        """Push what is in the row from `place` on, up to where a copy would end; return whether anything was pushed."""
        walk, begun, start = self._wish.walk, len(self._wish.context), place.start
        if place.kind == _NEXT:
            last = min(start + _GAP, self._memory.prompt_length)
            start = next((at for at in range(start, last) if walk.may_come(walk.context[at])), len(walk.context))
        source = _Source(walk.context, start)
        while walk.mask is not None and walk.num_drafted < self._longest and source.at < len(walk.context):
            if self._end(source.at):
                self._stopped = source.at
                break
            if not walk.push_next(source, place.kind):
                break
        pushed = len(walk.context) > begun
        if pushed and begun == len(self._wish.row.token_ids) and start < self._memory.prompt_length:
            self._memory.trail.begin(begun, start)
        return pushed

    def _end(self, at: int) -> bool:
        """Push what ends a copy that would continue at `at`; return whether that is likely, and may come here."""
        walk, (before, token_id) = self._wish.walk, self._wish.context[at - 1 : at + 1]
        instead = self._habits.instead(before, token_id)
        if instead is not None:
            return walk.push(instead, _END)
        return not walk.may_come(token_id) and any(walk.push(closing, _END) for closing in self._habits.closing())
