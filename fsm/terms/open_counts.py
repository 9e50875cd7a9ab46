r"""`opened_loops`, `OpenLoop`: a term in which counted repetitions have a counter and no bounds, so that one trie walk serves all counts.
An open loop is a machine whose state is the number of iterations so far, or at its exit; the bounds are applied afterwards (`accepting`,
`closed`). In each chain of alternatives only the first counted loop is opened, and one that occurs with different bounds only if the lower
ones are 0; all other counts stay. `Ruler`, a second machine, marks the iterations of one more loop in parallel; the walk counts them.

Otherwise `(?:\S+\s+){0,49}\S+` with a length of 500 has another mask after every character. The walk is in `open_walk.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fsm.terms import node as nodes
from fsm.terms.node import EMPTY, EPSILON, Kind, Node

MAX_NESTED = 8
"""The deepest nesting of alternatives that is searched for a counted loop."""
MAX_PARTS = 64
"""The most terms of a concatenation that are searched for one."""

NEVER = 1 << 60
"""More iterations than any loop has."""

Counts = tuple[int, int | None]
"""The fewest and the most iterations of a loop; None: no bound."""


@dataclass(frozen=True, slots=True)
class OpenLoop(nodes.Machine):
    """`body{lo,hi} rest` without its bounds, as a machine; the state n >= 0 is the loop after n iterations.

    The state -1 - n is the end of `rest` after a loop of n iterations. No state accepts by itself: `accepting` decides for a term with
    such states, given the bounds.
    """

    body: Node
    rest: Node

    def is_accepting(self, state: int) -> bool:
        """False."""
        return False

    def parts(self, state: int) -> tuple[Node, ...]:
        """One more iteration, or the rest."""
        if state < 0:
            return ()
        more = nodes.concat(self.body, self.at(state + 1))
        return (nodes.alternation((more, nodes.concat(self.rest, self.at(-1 - state)))),)

    def at(self, state: int) -> Node:
        """The term of a state."""
        return nodes.machine(self, state, is_plain=False)

    def closed(self, state: int, counts: Counts) -> Node:
        """The derivative of `body{lo,hi} rest` for a state."""
        lo, hi = counts
        read = done(state)
        if hi is not None and read > hi:
            return EMPTY
        if state >= 0:
            return nodes.concat(
                nodes.repeat(self.body, max(lo - read, 0), None if hi is None else hi - read), self.rest
            )
        return EPSILON if read >= lo else EMPTY

    def may_end(self, state: int, counts: Counts) -> bool:
        """True when a text of the loop and of the rest may end in a state."""
        return (state < 0 or self.rest.nullable) and counts[0] <= done(state) <= (
            NEVER if counts[1] is None else counts[1]
        )


def done(state: int) -> int:
    """The iterations of an open loop before a state."""
    return state if state >= 0 else -1 - state


@dataclass(frozen=True, slots=True)
class Ruler(nodes.Machine):
    """`body*` as a machine with the single state 0, intersected with an open term, so that a walk can count the iterations of `body`."""

    body: Node

    def is_accepting(self, state: int) -> bool:
        """True: the walk counts the iterations."""
        return True

    def parts(self, state: int) -> tuple[Node, ...]:
        """One more iteration."""
        return (nodes.concat(self.body, self.term),)

    @property
    def term(self) -> Node:
        """Any number of iterations."""
        return nodes.machine(self, 0, is_plain=False)


Bounds = dict[OpenLoop, Counts]


def opened_loops(node: Node) -> tuple[Node, Bounds]:
    """Open the first counted loop of each chain of alternatives in `node`: the open term, and the bounds that its loops had.

    A loop that occurs several times with different bounds is opened where they differ in the upper bound alone; the term then begins
    some iterations later where fewer are left.
    """
    found: dict[OpenLoop, list[Counts]] = {}
    _opened(node, MAX_NESTED, {}, found)
    bounds = dict[OpenLoop, Counts]()
    for loop, counts in found.items():
        if len(set(counts)) == 1:
            bounds[loop] = counts[0]
        elif all(lo == 0 for lo, _ in counts):
            bounds[loop] = 0, max(hi or 0 for _, hi in counts)
    return (_opened(node, MAX_NESTED, bounds, {}) if bounds else node), bounds


def _opened(node: Node, depth: int, bounds: Bounds, found: dict[OpenLoop, list[Counts]]) -> Node:
    """Open the loops of `bounds`, and list all that could be opened; what is nested deeper than `depth` is kept."""
    heads: list[Node] = []
    head, rest = nodes.first_and_rest(node)
    while rest is not EPSILON and not is_counted(head):
        heads.append(head)
        node = rest
        if len(heads) > MAX_PARTS:
            return nodes.sequence((*heads, node))
        head, rest = nodes.first_and_rest(node)
    if is_counted(head):
        loop, counts = OpenLoop(head.args[0], rest), head.args[1:]
        found.setdefault(loop, []).append(counts)
        if loop in bounds:
            node = loop.at(bounds[loop][1] - counts[1] if bounds[loop] != counts else 0)
    elif node.kind is Kind.ALTERNATION and depth:
        node = nodes.alternation([_opened(member, depth - 1, bounds, found) for member in node.args])
    return nodes.sequence((*heads, node))


def is_counted(node: Node) -> bool:
    """True for a loop with a bound other than 0 and 1 below, or any above, whose body is not nullable."""
    return node.kind is Kind.REPEAT and (node.args[2] is not None or node.args[1] > 1) and not node.args[0].nullable


def accepting(node: Node) -> tuple[list[tuple[OpenLoop, int]], bool]:
    """When the empty text belongs to an open term: in these states of open loops, where their bounds allow it, or in any case."""
    found = list[tuple[OpenLoop, int]]()
    for way in _ways(node):
        if way.nullable:
            return [], True
        if _is_open(way):
            found.append((way.args[0], way.args[1]))
    return found, False


def _is_open(node: Node) -> bool:
    return node.kind is Kind.MACHINE and isinstance(node.args[0], OpenLoop)


def _ways(node: Node) -> Iterator[Node]:
    """The alternatives of a term, each once and without nullable heads."""

    def rest(way: Node) -> Node:
        while way.kind is Kind.CONCAT and way.args[0].nullable:
            way = way.args[1]
        return way

    def members(way: Node) -> Iterable[Node]:
        return map(rest, way.args) if way.kind is Kind.ALTERNATION else ()

    return (way for way in nodes.reached(rest(node), members) if way.kind is not Kind.ALTERNATION)


def closed(node: Node, bounds: Bounds, others: Mapping[Node, Node]) -> Node:
    """The term without open loops, given the bounds of its loops, and replacements of other parts. Cost: 2 us per part."""

    def parts(part: Node) -> tuple[Node, ...]:
        if part.kind is Kind.CONCAT:
            return part.args[1:]
        return part.args if part.kind in (Kind.ALTERNATION, Kind.INTERSECTION) else ()

    def close(part: Node, inside: list[Node]) -> Node:
        if part.kind is Kind.CONCAT:
            return nodes.concat(part.args[0], inside[0])
        if inside:
            return (nodes.alternation if part.kind is Kind.ALTERNATION else nodes.intersection)(inside)
        if _is_open(part):
            loop: OpenLoop = part.args[0]
            return loop.closed(part.args[1], bounds[loop])
        return part

    return nodes.folded(node, parts, close, dict(others))
