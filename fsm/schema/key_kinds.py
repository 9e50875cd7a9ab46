"""Partition the keys of an object: which intersections of some languages, and of their complements, hold a text, and which hold few.

One breadth-first walk over the product of all languages finds every set that holds a text; a search for each set would visit the same
states again and again. Declared names are not left out of the sets; few texts are enough to tell them (see `object.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from fsm.automaton.transition_rows import bytes_of
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ALL_BYTES, EMPTY, Node

State = TypeVar("State")
_MAX_STATES = 1_000
_MAX_LENGTH = 200


class KeyKinds:
    """The sets into which `languages` divide the texts of `base`; a set is a number whose bit n tells of language n.

    Args:
        base: all texts that count.
        languages: what divides them.
        derivatives: where arcs are remembered.

    Attributes:
        is_complete: whether all states were visited; if not, there may be more sets.

    Cost: some 30 us for each state of all languages together, of which at most 1,000 are visited.
    """

    def __init__(self, base: Node, languages: tuple[Node, ...], derivatives: Derivatives) -> None:
        start = (base, *languages)
        self._ids = {start: 0}
        self._arcs: list[list[tuple[int, int]]] = []
        self._kinds: dict[int, int] = {}  # of a state in which a text may end
        queue = [start]
        for state in queue:
            if len(queue) > _MAX_STATES:
                break
            if state[0].nullable:
                self._kinds[len(self._arcs)] = sum(1 << n for n, node in enumerate(state[1:]) if node.nullable)
            found = []
            for mask, target in _steps(state, derivatives):
                number = self._ids.setdefault(target, len(queue))
                if number == len(queue):
                    queue.append(target)
                found.append((mask, number))
            self._arcs.append(found)
        self.is_complete = len(self._arcs) == len(queue)
        self._endless: dict[int, bool] = {}
        self._few: dict[tuple[int, int], list[bytes] | None] = {}

    @property
    def found(self) -> list[int]:
        """The sets that hold some text, each once."""
        return list(dict.fromkeys(self._kinds.values()))

    def is_endless(self, kind: int) -> bool:
        """True where a set has endlessly many texts: a circle leads to one of its states."""
        if kind not in self._endless:
            self._endless[kind] = self._has_circle(self._leading_to(kind))
        return self._endless[kind]

    def _has_circle(self, alive: set[int]) -> bool:
        before = dict.fromkeys(alive, 0)
        for state in alive:
            for _, target in self._arcs[state]:
                if target in alive:
                    before[target] += 1
        first = [state for state, count in before.items() if count == 0]
        # What is left when states with nothing before them are taken away stands on circles, or behind one.
        for state in first:
            for _, target in self._arcs[state]:
                if target in alive:
                    before[target] -= 1
                    if before[target] == 0:
                        first.append(target)
        return len(first) < len(alive)

    def few_texts(self, kind: int, most: int) -> list[bytes] | None:
        """The texts of a set, ascending, or None where they are more than `most`, or some are long."""
        if (kind, most) not in self._few:
            alive = self._leading_to(kind)
            self._few[kind, most] = few_texts(
                0,
                lambda state: self._kinds.get(state) == kind,
                lambda state: [(mask, target) for mask, target in self._arcs[state] if target in alive],
                most,
            )
        return self._few[kind, most]

    def _leading_to(self, kind: int) -> set[int]:
        """The states from which a text of a set can be completed."""
        before: dict[int, list[int]] = {}
        for state, arcs in enumerate(self._arcs):
            for _, target in arcs:
                before.setdefault(target, []).append(state)
        alive = {state for state, found in self._kinds.items() if found == kind}
        stack = list(alive)
        while stack:
            for state in before.get(stack.pop(), ()):
                if state not in alive:
                    alive.add(state)
                    stack.append(state)
        return alive


def few_texts(
    start: State, ends: Callable[[State], bool], live_arcs: Callable[[State], Iterable[tuple[int, State]]], most: int
) -> list[bytes] | None:
    """The texts that lead from `start` to a state that `ends`, ascending, or None where they are more than `most`, or some are long.

    Args:
        start: a state.
        ends: whether a text may end in a state.
        live_arcs: masks of bytes, each with the state that they lead to, from which a text can be completed.
        most: texts at most.
    """
    found, stack = list[bytes](), [(start, b"")]
    while stack:
        state, text = stack.pop()
        if ends(state):
            found.append(text)
        if len(found) > most or len(text) > _MAX_LENGTH or len(stack) > most * most:
            return None
        for mask, target in live_arcs(state):
            if mask.bit_count() > most:
                return None
            stack += [(target, text + bytes((byte,))) for byte in bytes_of(mask).tolist()]
    return sorted(found)


_State = tuple[Node, ...]


def _steps(state: _State, derivatives: Derivatives) -> list[tuple[int, _State]]:
    """Disjoint masks of bytes, each with the terms that are left of all languages; none where the base is over."""
    found: list[tuple[int, _State]] = [(mask, (target,)) for mask, target in derivatives.arcs(state[0])]
    for node in state[1:]:
        arcs = list(derivatives.arcs(node))
        rest = ALL_BYTES
        for mask, _ in arcs:
            rest &= ~mask
        if rest:
            arcs.append((rest, EMPTY))
        found = [(both, (*left, target)) for mask, left in found for other, target in arcs if (both := mask & other)]
    merged: dict[_State, int] = {}
    for mask, target in found:
        merged[target] = merged.get(target, 0) | mask
    return [(mask, target) for target, mask in merged.items()]
