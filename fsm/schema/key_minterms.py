"""`KeyMinterms`: the minterms (non-empty Boolean combinations) of regular languages over object keys, such as `patternProperties`. One
breadth-first search of the product of their derivatives finds all, over at most 1,000 states; beyond that the result is marked incomplete.
For each minterm, `is_infinite` looks for a cycle, and `few_texts` enumerates its texts where they are few and short. Declared names are not
excluded here (see `object.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from fsm.automaton.transition_rows import bytes_of
from fsm.terms.byte_classes import completed, product
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, Node, reaching

State = TypeVar("State")
_MAX_STATES = 1_000
_MAX_LENGTH = 200


class KeyMinterms:
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
        queue = [(base, *languages)]
        numbers = {queue[0]: 0}
        self._arcs: list[list[tuple[int, int]]] = []
        self._accepting: dict[int, int] = {}  # the minterms of accepting states
        for state in queue:
            if len(queue) > _MAX_STATES:
                break
            if state[0].nullable:
                self._accepting[len(self._arcs)] = sum(1 << n for n, node in enumerate(state[1:]) if node.nullable)
            arcs = []
            for target, mask in _steps(state, derivatives).items():
                number = numbers.setdefault(target, len(queue))
                if number == len(queue):
                    queue.append(target)
                arcs.append((mask, number))
            self._arcs.append(arcs)
        self.is_complete = len(self._arcs) == len(queue)
        self._infinite: dict[int, bool] = {}
        self._few: dict[tuple[int, int], list[bytes] | None] = {}

    @property
    def found(self) -> list[int]:
        """The minterms that were found, each once; none is empty."""
        return list(dict.fromkeys(self._accepting.values()))

    def is_infinite(self, minterm: int) -> bool:
        """True if a minterm has infinitely many texts: some path to one of its accepting states has a cycle."""
        if minterm not in self._infinite:
            alive = self._coreachable(minterm)
            graph = {state: [target for _, target in self._arcs[state] if target in alive] for state in alive}
            try:
                TopologicalSorter(graph).prepare()
                self._infinite[minterm] = False
            except CycleError:
                self._infinite[minterm] = True
        return self._infinite[minterm]

    def few_texts(self, minterm: int, most: int) -> list[bytes] | None:
        """The texts of a minterm, ascending, or None if there are more than `most`, or one is longer than 200 bytes."""
        if (minterm, most) not in self._few:
            alive = self._coreachable(minterm)
            self._few[minterm, most] = few_texts(
                0,
                lambda state: self._accepting.get(state) == minterm,
                lambda state: [(mask, target) for mask, target in self._arcs[state] if target in alive],
                most,
            )
        return self._few[minterm, most]

    def _coreachable(self, minterm: int) -> set[int]:
        """The states from which an accepting state of a minterm can be reached, by backward search."""
        ends = (state for state, found in self._accepting.items() if found == minterm)
        return reaching(ends, ((state, target) for state, arcs in enumerate(self._arcs) for _, target in arcs))


def few_texts(
    start: State,
    is_accepting: Callable[[State], bool],
    live_arcs: Callable[[State], Iterable[tuple[int, State]]],
    most: int,
) -> list[bytes] | None:
    """The texts that a DFA accepts from `start`, ascending, or None if there are more than `most`, or one is longer than 200 bytes.

    Args:
        start: a state.
        is_accepting: whether a state is accepting.
        live_arcs: the transitions of a state, as masks of bytes and their targets; only targets from which a text can be completed.
        most: the greatest number of texts.
    """
    found, stack = list[bytes](), [(start, b"")]
    while stack:
        state, text = stack.pop()
        if is_accepting(state):
            found.append(text)
        if len(found) > most or len(text) > _MAX_LENGTH or len(stack) > most * most:
            return None
        for mask, target in live_arcs(state):
            if mask.bit_count() > most:
                return None
            stack += [(target, text + bytes((byte,))) for byte in bytes_of(mask).tolist()]
    return sorted(found)


def _steps(state: tuple[Node, ...], derivatives: Derivatives) -> dict[tuple[Node, ...], int]:
    """The derivatives of all languages, each with its mask of bytes; only bytes for which that of the base is not empty."""
    languages = (completed(derivatives.arcs(node), EMPTY) for node in state[1:])
    found = dict[tuple[Node, ...], int]()
    for mask, target in product((derivatives.arcs(state[0]), *languages)):
        found[target] = found.get(target, 0) | mask
    return found
