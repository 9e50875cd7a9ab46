r"""`as_loops`, `eliminated`: a DFA as a plain regular expression, by Moore minimisation (`refined`) and state elimination. States are
removed one by one, and the paths through each replaced by loops, until one term is left; the state with the most paths is removed last, so
that a string becomes `"`, a loop over characters, and `"`. `as_loops` makes the DFA of a term, and returns None above 64 states before
minimisation.

A term with intersections, complements or lookarounds may be slow to walk though its DFA is small, such as `".*?(?<!\\)"`.

Source: Moore 1956; Brzozowski and McCluskey 1963, doi:10.1109/PGEC.1963.263416.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Node

MAX_STATES = 64

State = TypeVar("State", bound=Hashable)
Arcs = dict[State, Sequence[tuple[int, State]]]
"""For each state, disjoint masks of bytes and the state after any of them."""
_Edges = dict[tuple[int, int], Node]
"""The texts that lead from one state to another."""
_START, _END = -1, -2


def as_loops(node: Node) -> Node | None:
    """The same language without intersections, complements, machines and continuations; None if it has more than `MAX_STATES`.

    Cost: the arcs of all states, some 20 us each, and a term for each path through a state.
    """
    derivatives = Derivatives()
    arcs: Arcs[Node] = {}
    for state in nodes.reached(node, lambda state: [target for _, target in arcs[state]]):
        arcs[state] = derivatives.live_arcs(state)
        if len(arcs) > MAX_STATES:
            return None
    return eliminated(arcs, node, {state: EPSILON for state in arcs if state.nullable})


def eliminated(arcs: Arcs[State], start: State, ends: Mapping[State, Node]) -> Node:
    """The texts that lead from `start` to a state of `ends`, each followed by the term of that state.

    Cost: a term for each path through a state.
    """
    # A number for each state, the same for states from which the same texts lead to the same ends.
    kind = refined({state: ends.get(state) for state in arcs}, lambda state, kind: _signature(arcs[state], kind))
    edges: _Edges = {(_START, kind[start]): EPSILON}
    for state, found in arcs.items():
        if state in ends:
            edges[kind[state], _END] = ends[state]
        for mask, target in found:
            pair = kind[state], kind[target]
            edges[pair] = nodes.alternation((edges.get(pair, EMPTY), nodes.byte_set(mask)))
    left = set(kind.values())
    while left:
        into = Counter(b for a, b in edges if a != b)
        out = Counter(a for a, b in edges if a != b)
        # Where the fewest paths are joined; of equals the last.
        cheapest = min(left, key=lambda state: (into[state] * out[state], -state))
        left.remove(cheapest)
        edges = _without(edges, cheapest)
    return edges.get((_START, _END), EMPTY)


def refined(
    kind: Mapping[State, Hashable], signature: Callable[[State, Mapping[State, Any]], Hashable]
) -> dict[State, int]:
    """Refine a partition of states until those of one class agree in their signature under it (Moore 1956); classes are numbered."""
    count = len(set(kind.values()))
    while True:
        seen: dict[Hashable, int] = {}
        finer = {state: seen.setdefault((kind[state], signature(state, kind)), len(seen)) for state in kind}
        if len(seen) == count:
            return finer
        kind, count = finer, len(seen)


def _signature(arcs: Iterable[tuple[int, State]], kind: Mapping[State, Any]) -> frozenset[tuple[Any, int]]:
    masks: dict[Any, int] = {}
    for mask, target in arcs:
        masks[kind[target]] = masks.get(kind[target], 0) | mask
    return frozenset(masks.items())


def _without(edges: _Edges, state: int) -> _Edges:
    """The edges between the other states, with the paths through this one."""
    loop = nodes.repeat(edges.get((state, state), EMPTY))
    rest = {pair: node for pair, node in edges.items() if state not in pair}
    for (a, b), before in edges.items():
        if b != state or a == state:
            continue
        for (c, d), after in edges.items():
            if c == state != d:
                through = nodes.sequence((before, loop, after))
                rest[a, d] = nodes.alternation((rest.get((a, d), EMPTY), through))
    return rest
