"""`MemberTable`: the members of a JSON object as one lazy automaton, for what a `FieldList` (`optional_fields.py`) cannot do: any order,
bounds on the number of members, and duties (some member must be of a kind). A state is the set of declared members seen (as bits; in a
fixed order an index), the number of members up to the bound, and the duties met: up to 2^n states for n members, made when reached. A
declared member occurs at most once, others any number of times; that their keys differ is not ensured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Kind, Node


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """One kind of member.

    Attributes:
        key: the keys, quotes included.
        value: the colon and the values.
        slot: the number of the declared member; None for others.
        is_required: whether an object without it is incomplete.
        duties: a bit set of the duties that such a member meets.
    """

    key: Node
    value: Node
    slot: int | None = None
    is_required: bool = False
    duties: int = 0


State = tuple[int, int, int]
"""A bit set of the slots seen (in a fixed order: the next slot), the number of members, a bit set of the duties met."""


class MemberTable(nodes.Content):
    """The members of one object.

    Args:
        entries: by slot, others last; several entries may share a slot.
        lo: least number of members.
        hi: most members; None: no bound.
        duties: how many duties there are.
        is_ordered: whether declared members are in the order of their slots, before the others.
        comma: the separator between two members.
        close: the end of the object.
    """

    def __init__(
        self,
        entries: tuple[MemberEntry, ...],
        *,
        lo: int,
        hi: int | None,
        duties: int,
        is_ordered: bool,
        comma: Node,
        close: Node,
    ) -> None:
        self.entries, self.lo, self.hi, self.duties = entries, lo, hi, duties
        self.is_ordered, self.comma, self.close = is_ordered, comma, close
        self._slots = 1 + max((e.slot for e in entries if e.slot is not None), default=-1)
        self._required = sum(1 << slot for slot in {e.slot for e in entries if e.is_required} if slot is not None)
        self.parts = tuple(dict.fromkeys((comma, close, *(part for e in entries for part in (e.key, e.value)))))
        super().__init__(entries, lo, hi, duties, is_ordered, comma, close)

    @property
    def is_free(self) -> bool:
        """True when every reachable state can be completed, given that every value can."""
        return self.lo == 0 and self.hi is None and not self.duties

    def members(self) -> Node:
        """All members and the closing end, from the opening one on."""
        return nodes.alternation((self._end((0, 0, 0)), self._members((0, 0, 0))))

    def _members(self, state: State) -> Node:
        unsure = () if self.is_free else (EMPTY,)
        return nodes.intern(Kind.MEMBERS, (self, state), False, (*self.parts, *unsure))

    def expand(self, state: State) -> Node:
        """One member, and all that follows it."""
        return nodes.alternation(
            nodes.sequence((entry.key, entry.value, self._after(self._next(state, entry))))
            for entry in self._available(state)
        )

    def _after(self, state: State) -> Node:
        more: list[Node] = [self._end(state)]
        if next(self._available(state), None) is not None:
            more.append(nodes.concat(self.comma, self._members(state)))
        return nodes.alternation(more)

    def _end(self, state: State) -> Node:
        seen, count, done = state
        is_complete = self._missing(seen) == 0 and count >= self.lo and done == (1 << self.duties) - 1
        return self.close if is_complete else EMPTY

    def _missing(self, seen: int) -> int:
        """A bit set of the required slots that are missing."""
        return self._required >> seen << seen if self.is_ordered else self._required & ~seen

    def _next(self, state: State, entry: MemberEntry) -> State:
        seen, count, done = state
        if self.is_ordered:
            seen = self._slots if entry.slot is None else entry.slot + 1
        elif entry.slot is not None:
            seen |= 1 << entry.slot
        most = self.lo if self.hi is None else self.hi
        return seen, min(count + 1, most), done | entry.duties

    def _available(self, state: State) -> Iterator[MemberEntry]:
        """The members that may be next."""
        seen, count, _ = state
        missing = self._missing(seen)
        if self.hi is not None and count >= self.hi:
            return
        is_last = self.hi is not None and count + missing.bit_count() >= self.hi
        first = (missing & -missing).bit_length() - 1 if missing else self._slots
        for entry in self.entries:
            slot = entry.slot
            if is_last and (slot is None or not missing >> slot & 1):
                continue
            if slot is None:
                if not (self.is_ordered and missing):
                    yield entry
            elif seen <= slot <= first if self.is_ordered else not seen >> slot & 1:
                yield entry

    def is_inhabited(self, state: State, alive: dict[Node, bool]) -> bool:
        """True when one member and all that must follow it have a text, given which parts have one.

        Cost: the entries, times the combinations of entries that meet the duties that are left.
        """
        seen, count, done = state
        missing = self._missing(seen)
        able = [e for e in self._reachable(seen) if alive[e.key] and alive[e.value]]
        slots = {e.slot for e in able if e.slot is not None}
        if any(missing >> slot & 1 and slot not in slots for slot in range(self._slots)):
            return False
        has_others = any(e.slot is None for e in able)
        room = None if self.hi is None else self.hi - count
        if not able or not alive[self.close] or (not has_others and count + len(slots) < self.lo):
            return False
        if not alive[self.comma]:  # then it is the last member
            if count + 1 < self.lo:
                return False
            room = 1 if room is None else min(room, 1)
        left = [duty for duty in range(self.duties) if not done >> duty & 1]
        helpers = [[e for e in able if e.duties >> duty & 1] for duty in left]
        sizes = (self._size(chosen, missing) for chosen in product(*helpers) if not _clash(chosen))
        least = min(sizes, default=None)
        return least is not None and (room is None or max(least, 1) <= room)

    def _reachable(self, seen: int) -> Iterator[MemberEntry]:
        for entry in self.entries:
            slot = entry.slot
            if slot is None or (slot >= seen if self.is_ordered else not seen >> slot & 1):
                yield entry

    def _size(self, chosen: tuple[MemberEntry, ...], missing: int) -> int:
        """The number of members of the chosen entries together with the missing required ones."""
        slots = {e.slot for e in chosen if e.slot is not None} | {n for n in range(self._slots) if missing >> n & 1}
        return len(slots) + len({id(e) for e in chosen if e.slot is None})


def _clash(chosen: tuple[MemberEntry, ...]) -> bool:
    """True when two of the entries are the same member with different values."""
    by_slot = {entry.slot: entry for entry in chosen if entry.slot is not None}
    return any(by_slot[entry.slot] is not entry for entry in chosen if entry.slot is not None)
