"""`Captures`: the text of each named part of an expression in a text that it accepts, like the groups of `re.fullmatch`. By dynamic
programming: for each part and start position, the set of positions where it may end, from a DFA simulation of the parts without names,
checks included. Of several divisions the first alternative, the fewest iterations, and from left to right the longest parts are taken; of a
part that was used several times the last text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fsm.automaton.checker import Checker, has_checks
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import ExpressionError
from fsm.terms.node import Node
from fsm.terms.special_token import without

MAX_NESTING = 100
MAX_JOINED = 100


@dataclass(frozen=True, eq=False)
class CapturedPart:
    """A tree of how an expression with named parts was composed.

    Attributes:
        kind: a `leaf` has a term and no names inside, a `named` part one member; the others are the operations on their members.
        members: the parts inside.
        node: the term of a leaf.
        name: the name of a `named` part.
        lo: the fewest iterations of a `repeat`.
        hi: the most iterations of a `repeat`; None: no bound.

    Raises:
        ExpressionError: parts are nested more than 100 deep.
    """

    kind: Literal["leaf", "named", "sequence", "either", "both", "repeat"]
    members: tuple[CapturedPart, ...] = ()
    node: Node | None = None
    name: str = ""
    lo: int = 0
    hi: int | None = None

    def __post_init__(self) -> None:
        if self.depth > MAX_NESTING:
            raise ExpressionError(
                f"named parts may be nested {MAX_NESTING} deep, received {self.depth}. Name fewer parts, or name them further out."
            )

    @cached_property
    def depth(self) -> int:
        """Parts one inside the other."""
        return 1 + max((member.depth for member in self.members), default=0)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names without duplicates, from left to right."""
        inside = (name for member in self.members for name in member.names)
        return tuple(dict.fromkeys([self.name, *inside] if self.kind == "named" else inside))


def together(kind: Literal["sequence", "either", "both"], left: CapturedPart, right: CapturedPart) -> CapturedPart:
    """Two parts as one; members of a part of the same kind become members of the new one, of the right one unless both have many."""
    first, second = (side.members if side.kind == kind else (side,) for side in (left, right))
    is_long = min(len(first), len(second)) > MAX_JOINED
    return CapturedPart(kind, (*first, *((right,) if is_long else second)))


class Captures:
    """Finds the named parts in texts.

    Args:
        part: how the expression was composed.

    Where a text can be divided in several ways, a repetition has the fewest iterations, each part, from left to right, is as long as
    possible, and of alternatives the first is taken. Several threads may share one object. Cost: one pass of the text per part without
    names and position where it may begin.
    """

    def __init__(self, part: CapturedPart) -> None:
        self._part = part
        self._automata: dict[Node, Automaton] = {}

    def find(self, text: str | bytes) -> dict[str, str | None] | None:
        """The text of every name, without special tokens; None for a part that was not used, the last text if there are several.

        Returns:
            None if the text does not belong to the expression.
        """
        data = text.encode() if isinstance(text, str) else text
        division = _Division(data, self._automata)
        if len(data) not in division.ends(self._part, 0):
            return None
        found: dict[str, str | None] = dict.fromkeys(self._part.names)
        for name, start, stop in division.named(self._part, 0, len(data)):
            found[name] = without(data[start:stop]).decode()
        return found


class _Division:
    """One text, with a memo of the positions where a part that begins at a given position may end."""

    def __init__(self, text: bytes, automata: dict[Node, Automaton]) -> None:
        self._text = text
        self._automata = automata
        self._known: dict[tuple[CapturedPart, int], frozenset[int]] = {}

    def ends(self, part: CapturedPart, start: int) -> frozenset[int]:
        """Where a part that begins at `start` may end."""
        known = self._known.get((part, start))
        if known is None:
            known = self._known[part, start] = self._find_ends(part, start)
        return known

    def named(self, part: CapturedPart, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """The named parts inside a part that goes from `start` to `stop`, from left to right."""
        match part.kind:
            case "named":
                yield part.name, start, stop
                yield from self.named(part.members[0], start, stop)
            case "either":
                yield from self.named(next(m for m in part.members if stop in self.ends(m, start)), start, stop)
            case "both":
                for member in part.members:
                    yield from self.named(member, start, stop)
            case "sequence" | "repeat":
                members = part.members
                if part.kind == "repeat":
                    members *= next(n for n, ends in self._iterations(part, start) if stop in ends)
                for member, (begin, end) in zip(members, self._cuts(members, start, stop), strict=True):
                    yield from self.named(member, begin, end)

    def _find_ends(self, part: CapturedPart, start: int) -> frozenset[int]:
        match part.kind:
            case "leaf":
                assert part.node is not None
                return frozenset(self._leaf_ends(part.node, start))
            case "repeat":
                return frozenset().union(*(ends for _, ends in self._iterations(part, start)))
            case "sequence":
                return self._reached(part.members, start)[-1]
            case "both":
                return frozenset.intersection(*(self.ends(member, start) for member in part.members))
            case _:
                return frozenset().union(*(self.ends(member, start) for member in part.members))

    def _leaf_ends(self, node: Node, start: int) -> Iterator[int]:
        automaton = self._automata.get(node)
        if automaton is None:
            automaton = self._automata[node] = Automaton(node)
        checker = Checker(node) if has_checks(node) else None
        state, text = automaton.initial_state, self._text
        for position in range(start, len(text) + 1):
            if automaton.is_accepting(state) and (checker is None or checker.accepts(text[start:position])):
                yield position
            state = automaton.next_state(state, text[position : position + 1])
            if state == DEAD:
                return

    def _reached(self, members: Sequence[CapturedPart], start: int) -> list[frozenset[int]]:
        """The positions where each member may begin, and where the last may end."""
        reached = [frozenset((start,))]
        for member in members:
            reached.append(self._ends_after(member, reached[-1]))
        return reached

    def _iterations(self, part: CapturedPart, start: int) -> list[tuple[int, frozenset[int]]]:
        """The possible numbers of iterations of a repetition, and where each may end; none beyond those with new positions."""
        (member,) = part.members
        found = [frozenset((start,))]
        while part.hi is None or len(found) <= part.hi:
            ends = self._ends_after(member, found[-1])
            if not ends or ends == found[-1]:  # no further iteration, or all further ones are empty
                break
            found.append(ends)
        fewest = part.lo if not ends else min(part.lo, len(found) - 1)
        return list(enumerate(found))[fewest:]

    def _ends_after(self, part: CapturedPart, starts: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(self.ends(part, start) for start in starts))

    def _cuts(self, members: Sequence[CapturedPart], start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The start and end of each member, so that the last ends at `stop` and each is as long as possible, from left to right."""
        alive = [frozenset((stop,))]
        for member, starts in zip(reversed(members), reversed(self._reached(members, start)[:-1]), strict=True):
            alive.append(frozenset(at for at in starts if not self.ends(member, at).isdisjoint(alive[-1])))
        alive.reverse()
        for member, after in zip(members, alive[1:], strict=True):
            end = max(self.ends(member, start) & after)
            yield start, end
            start = end
