"""Small automata as terms made of loops: `as_loops`.

A term may be a good way to say what a language is and a bad one to walk: the texts that `re.match` takes of `".*?(?<!\\\\)"` are many
ways read side by side. Where its automaton is small, states are taken out of it one by one, each leaving the texts that led through
it, until one term is left. The state with the most ways goes last, so that a string is `"`, a loop over characters, and `"`.
Source: Brzozowski and McCluskey 1963, doi:10.1109/PGEC.1963.263416; states that behave alike are joined before, after Moore 1956.
"""

from __future__ import annotations

from collections.abc import Iterable

from fsm import node as nodes
from fsm.derivative import Derivatives
from fsm.node import EMPTY, EPSILON, Node

MAX_STATES = 64

_Edges = dict[tuple[int, int], Node]
"""The texts that lead from one state to another."""
_START, _END = -1, -2


def as_loops(node: Node) -> Node | None:
    """The same language without intersections, complements, machines and courses; None where it takes more than `MAX_STATES`.

    Cost: the arcs of all states, some 20 us each, and a term for each pair of steps through a state.
    """
    arcs = _explored(node)
    if arcs is None:
        return None
    kind = _kinds(arcs)
    edges: _Edges = {(_START, kind[node]): EPSILON}
    for state, found in arcs.items():
        if state.nullable:
            edges[kind[state], _END] = EPSILON
        for mask, target in found:
            pair = kind[state], kind[target]
            edges[pair] = nodes.alternation((edges.get(pair, EMPTY), nodes.byte_set(mask)))
    left = set(kind.values())
    while left:
        state = min(left, key=lambda state: _num_ways(edges, state))
        left.remove(state)
        edges = _without(edges, state)
    return edges.get((_START, _END), EMPTY)


def _explored(root: Node) -> dict[Node, tuple[tuple[int, Node], ...]] | None:
    """The arcs of all states that are not dead; None where they are too many."""
    derivatives = Derivatives()
    arcs: dict[Node, tuple[tuple[int, Node], ...]] = {}
    queue = [root]
    for node in queue:
        if node not in arcs:
            arcs[node] = derivatives.live_arcs(node)
            queue += [target for _, target in arcs[node]]
        if len(arcs) > MAX_STATES:
            return None
    return arcs


def _kinds(arcs: dict[Node, tuple[tuple[int, Node], ...]]) -> dict[Node, int]:
    """A number for each state, the same for states that accept the same texts."""
    kind = {state: int(state.nullable) for state in arcs}
    while True:
        seen: dict[tuple[object, ...], int] = {}
        finer = {state: seen.setdefault((kind[state], *_signature(arcs[state], kind)), len(seen)) for state in arcs}
        if len(seen) == len(set(kind.values())):
            return kind
        kind = finer


def _signature(arcs: Iterable[tuple[int, Node]], kind: dict[Node, int]) -> list[tuple[int, int]]:
    masks: dict[int, int] = {}
    for mask, target in arcs:
        masks[kind[target]] = masks.get(kind[target], 0) | mask
    return sorted(masks.items())


def _num_ways(edges: _Edges, state: int) -> tuple[int, int]:
    """How many terms are joined where a state is taken out; of equals the one that was met last goes first."""
    into = sum(b == state != a for a, b in edges)
    out = sum(a == state != b for a, b in edges)
    return into * out, -state


def _without(edges: _Edges, state: int) -> _Edges:
    """The edges between the other states, with what led through this one."""
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
