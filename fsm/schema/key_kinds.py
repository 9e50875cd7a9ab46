"""`KeyKinds`: the minterms (non-empty Boolean combinations) of regular languages over object keys, such as `patternProperties`.

One breadth-first search of the product of their derivatives finds all minterms at once, over at most 1,000 states; beyond that the result
is marked incomplete. For each minterm, `is_endless` decides by topological sorting whether it is infinite, and `few_texts` enumerates its
texts where they are few and short. Declared names are not excluded here (see `object.py`).
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
    """The minterms of `languages` within `base`; each is an int whose bit n is set where its texts belong to language n.

    Args:
        base: the language that is partitioned.
        languages: the languages that partition it.
        derivatives: computes the derivatives, and caches them.

    Attributes:
        is_complete: whether all states were visited; if not, there may be more minterms.

    Cost: some 30 us for each state of the product, of which at most 1,000 are visited.
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
        """The minterms that were found, each once; none is empty."""
        return list(dict.fromkeys(self._kinds.values()))

    def is_endless(self, kind: int) -> bool:
        """True where a minterm is infinite: a cycle lies on a path to one of its accepting states."""
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
        # Kahn's topological sort: the states that it does not reach are on a cycle, or reachable from one.
        for state in first:
            for _, target in self._arcs[state]:
                if target in alive:
                    before[target] -= 1
                    if before[target] == 0:
                        first.append(target)
        return len(first) < len(alive)

    def few_texts(self, kind: int, most: int) -> list[bytes] | None:
        """The texts of a minterm, ascending, or None where there are more than `most`, or one is longer than 200 bytes."""
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
        """The states from which an accepting state of a minterm can be reached, by backward search."""
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
    """The texts that a DFA accepts from `start`, ascending, or None where there are more than `most`, or one is longer than 200 bytes.

    Args:
        start: a state.
        ends: whether a state is accepting.
        live_arcs: the transitions of a state, as masks of bytes and their targets; only targets from which a text can be completed.
        most: the greatest number of texts.
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
    """Disjoint masks of bytes, each with the derivatives of all languages; only bytes for which that of the base is not empty."""
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
