"""Arrays: `prefixItems`, `items`, `minItems`, `maxItems`. Counts are counters, so a bound of a billion costs nothing."""

from __future__ import annotations

from fsm import node as nodes
from fsm.node import EMPTY, Node
from fsm.schema.place import Conjunction, Place, Steps, values_of
from fsm.schema.syntax import Syntax

_OPEN = nodes.literal(b"[")
_CLOSE = nodes.literal(b"]")


def array_node(places: Conjunction, syntax: Syntax) -> Steps:
    """The arrays that satisfy all places."""
    lo = max((int(value) for _, value in values_of(places, "minItems")), default=0)
    hi = min((int(value) for _, value in values_of(places, "maxItems")), default=None)
    length = max((len(value) for _, value in values_of(places, "prefixItems")), default=0)
    first: list[Node] = []
    for position in range(length if hi is None else min(length, hi)):
        item = yield _item_places(places, position)
        if item is EMPTY:
            hi = position
            break
        first.append(item)
    rest = EMPTY
    if hi is None or hi > len(first):
        rest = yield _item_places(places, length)
        if rest is EMPTY:
            hi = len(first)
    if hi is not None and lo > hi:
        return EMPTY
    return nodes.concat(_OPEN, _items(first, rest, lo, hi, syntax))


def _item_places(places: Conjunction, position: int) -> Conjunction:
    """The schemas that hold for the item at `position`."""
    found: list[Place] = []
    for place in places:
        fixed = place.get("prefixItems") or ()
        if position < len(fixed):
            found.append(place.below(fixed[position], "prefixItems", position))
        elif place.has("items"):
            found.append(place.below(place.get("items"), "items"))
    return tuple(found)


def _items(first: list[Node], rest: Node, lo: int, hi: int | None, syntax: Syntax) -> Node:
    """Items, built from the last fixed one to the first, and the closing bracket."""
    fixed = len(first)
    if not fixed:
        return syntax.array(rest, lo, hi)
    more = nodes.repeat(nodes.concat(syntax.comma, rest), max(lo - fixed, 0), None if hi is None else hi - fixed)
    tail = nodes.concat(more, _CLOSE)
    for position in reversed(range(1, fixed)):
        tail = nodes.sequence((syntax.comma, first[position], tail))
        if position >= lo:
            tail = nodes.alternation((_CLOSE, tail))
    filled = nodes.concat(first[0], tail)
    return filled if lo else nodes.alternation((_CLOSE, filled))
