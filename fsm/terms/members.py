"""`FieldList`: the non-empty subsequences of a list of fields (word and value, in JSON a property), with separators, as one term; the last
may be required. A state is the first field that may still follow, a range of the sorted words and the bytes of them that were read; so the
term is linear in the number of fields. No word may be a prefix of another. `schema/object.py` joins one list for each run of properties up
to a required one.

`MemberTable`: the members of a JSON object as one lazy automaton, for what a `FieldList` (`optional_fields.py`) cannot do: any order,
bounds on the number of members, and duties (some member must be of a kind). A state is the set of declared members seen (as bits; in a
fixed order an index), the number of members up to the bound, and the duties met: up to 2^n states for n members, made when reached. A
declared member occurs at most once, others any number of times; that their keys differ is not ensured here. The items of an array without
equal ones are such members, too: a slot for each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fsm.errors import ExpressionError
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import EMPTY, Kind, Node

_WORK_PER_ENTRY = 3  # some 20 us each


class FieldList(nodes.Content):
    """Entries in their order: `words[i]` begins entry i, `values[i]` follows it.

    After an entry that is not the last there is either `stop`, or `between` and a later entry; after the last entry there
    is `last`. With `stop` the empty language, every selection contains the last entry (a required one).

    Raises:
        ExpressionError: a word is a prefix of another, or there is no entry.
    """

    __slots__ = ("_flags", "_places", "between", "last", "ranks", "stop", "values", "words")

    def __init__(
        self, words: tuple[bytes, ...], values: tuple[Node, ...], between: Node, stop: Node, last: Node
    ) -> None:
        self.values, self.between, self.stop, self.last = values, between, stop, last
        self.ranks = tuple(sorted(range(len(words)), key=words.__getitem__))
        self.words = tuple(words[rank] for rank in self.ranks)
        self._places = sorted(range(len(words)), key=self.ranks.__getitem__)
        self._flags = self._witnesses()
        super().__init__(words, values, between, stop, last)
        if not words or any(b.startswith(a) for a, b in zip(self.words, self.words[1:], strict=False)):
            raise ExpressionError("the words of fields must be given, and none may be the beginning of another.")

    def _witnesses(self) -> list[tuple[Node, ...]]:
        found: tuple[Node, ...] = ()
        for part in (self.between, self.last, self.stop):
            found = found if part is EMPTY else _with_new_kind(found, part)
        out = []
        for value in reversed(self.values):
            found = _with_new_kind(found, value)
            out.append(found)
        return out[::-1]

    def witnesses(self, start: int) -> tuple[Node, ...]:
        """Parts from entry `start` on with all their flags: one that is not plain, one not regular, one checked, if there are any."""
        return self._flags[start]

    def parts(self, start: int) -> tuple[Node, ...]:
        """The terms that selections from entry `start` on are built from."""
        stop = () if self.stop is EMPTY else (self.stop,)
        return (*self.values[start:], self.between, self.last, *stop)

    def is_inhabited(self, start: int, lo: int, hi: int, depth: int, alive: dict[Node, bool], alphabet: int) -> bool:
        """True when the range has a text over `alphabet`, given which of the parts have one."""
        may_stop = self.stop is not EMPTY and alive[self.stop]
        later = False  # whether some selection of later entries has a text
        for rank in reversed(range(start, len(self.values))):
            may_follow = (
                alive[self.last] if rank == len(self.values) - 1 else may_stop or (later and alive[self.between])
            )
            if not may_follow or not alive[self.values[rank]]:
                continue
            place = self._places[rank]
            if lo <= place < hi and _is_over(self.words[place][depth:], alphabet):
                return True
            later = later or _is_over(self.words[place], alphabet)
        return False

    def is_known(self, start: int, lo: int, hi: int) -> bool:
        """True when some text of the range is already known to exist. Cost: mostly one entry."""
        last, may_stop = len(self.values) - 1, self.stop.is_inhabited
        return any(
            rank >= start and self.values[rank].is_inhabited and (may_stop or (rank == last and self.last.is_inhabited))
            for rank in self.ranks[lo:hi]
        )

    def follow(self, rank: int) -> Node:
        """The term after entry `rank` and its value."""
        if rank == len(self.values) - 1:
            return self.last
        return nodes.alternation((self.stop, nodes.concat(self.between, fields(self, rank + 1))))

    def after(self, rank: int) -> Node:
        """The term after the word of entry `rank`."""
        return nodes.concat(self.values[rank], self.follow(rank))

    def open_words(self, start: int, lo: int, hi: int) -> list[tuple[bytes, int]]:
        """The words lo..hi of entries from `start` on, ascending, each with its entry."""
        return [(word, rank) for word, rank in zip(self.words[lo:hi], self.ranks[lo:hi], strict=True) if rank >= start]

    def split(self, start: int, lo: int, hi: int, depth: int) -> Iterator[tuple[int, Node]]:
        """Yield each first byte of a range with the derivative. Cost: one bisection per byte."""
        for byte, first, last in nodes.next_words(self.words, lo, hi, depth):
            target = field_range(self, start, first, last, depth + 1)
            if target is not EMPTY:
                yield byte, target


def _with_new_kind(found: tuple[Node, ...], part: Node) -> tuple[Node, ...]:
    """Add a part if it is the first that is not plain, not regular, or checked."""
    is_new = (
        (not part.is_plain and all(n.is_plain for n in found))
        or (not part.is_regular and all(n.is_regular for n in found))
        or (part.is_checked and not any(n.is_checked for n in found))
    )
    return (*found, part) if is_new else found


def _is_over(text: bytes, alphabet: int) -> bool:
    return all(alphabet >> byte & 1 for byte in text)


def fields(table: FieldList, start: int = 0) -> Node:
    """The selections from entry `start` on, at least one entry."""
    return field_range(table, start, 0, len(table.words), 0)


def field_range(table: FieldList, start: int, lo: int, hi: int, depth: int) -> Node:
    """The selections from entry `start` on whose first word is among the sorted words lo..hi, without its first `depth` bytes."""
    ranks = table.ranks
    while lo < hi and ranks[lo] < start:
        lo += 1
    while lo < hi and ranks[hi - 1] < start:
        hi -= 1
    if lo == hi:
        return EMPTY
    first, last = table.words[lo], table.words[hi - 1]
    if hi - lo == 1:
        return nodes.concat(nodes.literal(first[depth:]), table.after(ranks[lo]))
    common = depth
    while first[common] == last[common]:
        common += 1
    rest = nodes.intern(Kind.FIELDS, (table, start, lo, hi, common), False, table.witnesses(start))
    return nodes.concat(nodes.literal(first[depth:common]), rest)


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
        work.add(_WORK_PER_ENTRY * len(self.entries))
        return nodes.alternation(
            nodes.sequence((entry.key, entry.value, self._after(self._next(state, entry))))
            for entry in self._available(state)
        )

    def distance(self, state: State, parts: list[int]) -> int:
        """An estimate of the length of a shortest text, given those of its `parts`: members must follow, at least one."""
        seen, count, _ = state
        known = dict(zip(self.parts, parts, strict=True))
        least = min((known[entry.key] + known[entry.value] for entry in self.entries), default=0)
        return max(self.lo - count, self._missing(seen).bit_count(), 1) * (least + known[self.comma])

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
