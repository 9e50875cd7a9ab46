"""`FieldList`: the non-empty subsequences of a list of fields (word and value, in JSON a property), with separators, as one term; the last
may be required. A state is the first field that may still follow, a range of the sorted words and the bytes of them that were read; so the
term is linear in the number of fields. No word may be a prefix of another. `schema/object.py` joins one list for each run of properties up
to a required one.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm.errors import ExpressionError
from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, Kind, Node


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
