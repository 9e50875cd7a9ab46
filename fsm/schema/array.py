"""`array_node`: the JSON arrays that satisfy all keywords of some places, as a term: items, counts, `contains`, `unevaluatedItems`.
`minItems` and `maxItems` are counters, so a bound of a billion costs nothing; with `contains` (or a negated `items`) the term is a grid by
dynamic programming: a state for each number of items and each number of matching ones, up to the bounds. `uniqueItems` over few texts
(`max_different`) is a `MemberTable`, whose states are the sets of values seen. Left to checks: a grid of
more than 3,000 terms, more than 4 such keywords, and other `uniqueItems`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from math import inf, prod

from fsm.errors import BudgetExceeded
from fsm.schema.context import Context
from fsm.schema.key_minterms import few_texts
from fsm.schema.keywords.keyword import KEYWORDS, counts_at
from fsm.schema.keywords.place import Builder, Conjunction, Place, negated_values_of, values_of
from fsm.schema.keywords.value import values_at
from fsm.schema.value_check import DistinctItems, comparable
from fsm.terms import node as nodes
from fsm.terms.members import MemberEntry, MemberTable
from fsm.terms.node import EMPTY, EPSILON, Node

_OPEN = nodes.literal(b"[")
_CLOSE = nodes.literal(b"]")
_MAX_COUNTED = 3_000  # terms that `contains` may take
_MAX_CLASSES = 4  # keywords that count items of one array


@dataclass(frozen=True, slots=True)
class _Count:
    """The condition that `lo` to `hi` of the items from index `start` on satisfy the schema at `place`; `owner` has the keyword."""

    owner: Place
    keyword: str
    place: Place
    start: int
    lo: int
    hi: int | None

    @property
    def most(self) -> int:
        """The greatest count that must be distinguished from the next."""
        return self.lo if self.hi is None else self.hi


def array_node(places: Conjunction, context: Context) -> Builder:
    """The arrays that satisfy all places."""
    lo, hi = counts_at(places, "Items")
    lo = max((lo, *(some.start + 1 for _, some in negated_values_of(places, "items"))))
    most = _most_different(places, context)
    if (hi is not None and lo > hi) or lo > most:
        return EMPTY
    owner = next((place for place, value in values_of(places, "uniqueItems") if value), None)
    if owner is None or (hi is not None and hi <= 1):
        return (yield from _array(places, lo, hi, context, is_open=most == inf))
    if not any(True for _ in values_of(places, "prefixItems")) and not _counts(places):
        item = yield _item_places(places, 0, context)
        values = _few_values(item, context)
        if values is not None:
            return _of_different(values, lo, hi, context)
    node = yield from _array(places, lo, hi, context, is_open=most == inf)
    context.note_check(owner, "uniqueItems", "an automaton cannot remember so many items")
    return nodes.checked(node, DistinctItems(owner.at("uniqueItems")))


def _few_values(item: Node, context: Context) -> list[list[bytes]] | None:
    """The texts of an item by their values, or None if there are too many, or if some need a check."""
    if item.is_checked or not item.is_regular:
        return None
    arcs = context.derivatives.arcs
    try:
        texts = few_texts(
            item,
            lambda node: node.nullable,
            lambda node: [(mask, target) for mask, target in arcs(node) if context.is_possible(target)],
            context.document.limits.max_different,
        )
    except BudgetExceeded:
        return None
    if texts is None:
        return None
    found = dict[object, list[bytes]]()
    for text in texts:
        found.setdefault(comparable(json.loads(text)), []).append(text)
    return list(found.values())


def _of_different(values: list[list[bytes]], lo: int, hi: int | None, context: Context) -> Node:
    """The arrays in which each of some values (given by its texts) occurs at most once."""
    hi = None if hi is None or hi >= len(values) else hi
    if lo > len(values):
        return EMPTY
    entries = tuple(MemberEntry(nodes.words(texts), EPSILON, slot) for slot, texts in enumerate(values))
    table = MemberTable(entries, lo=lo, hi=hi, duties=0, is_ordered=False, comma=context.syntax.comma, close=_CLOSE)
    return nodes.concat(_OPEN, table.members())


def _most_different(places: Conjunction, context: Context) -> float:
    """The greatest length where all items must be different and `items` lists the possible ones."""
    if not any(value for _, value in values_of(places, "uniqueItems")):
        return inf
    most = inf
    for place, schema in values_of(places, "items"):
        items = context.document.normalize_draft(place.below(schema, "items"))
        listed = values_at(items)
        if isinstance(listed, list):
            fixed = len(place.get("prefixItems") or ())
            most = min(most, fixed + len({comparable(value) for value in listed}))
    return most


def _array(places: Conjunction, lo: int, hi: int | None, context: Context, *, is_open: bool) -> Builder:
    """The arrays without regard to `uniqueItems`; `is_open`: whether their length is not bounded by it."""
    counts = [count for count in _counts(places) if count.lo or count.hi is not None]
    length = max((len(value) for _, value in values_of(places, "prefixItems")), default=0)
    length = max((length, *(count.start for count in counts)))
    longest = max(length, lo) + 1 if hi is None else hi + 1
    size = prod(count.most + 2 for count in counts) * longest << len(counts)
    if counts and (len(counts) > _MAX_CLASSES or size > _MAX_COUNTED):
        context.leave_out(((count.owner, count.keyword) for count in counts), "too many counts")
        counts = []
    if counts:
        return (yield from _counted(places, counts, length, lo, hi, context, is_open=is_open))
    first: list[Node] = []
    for position in range(length if hi is None else min(length, hi)):
        item = yield _item_places(places, position, context)
        if item is EMPTY:
            hi = position
            break
        first.append(item)
    rest = EMPTY
    if hi is None or hi > len(first):
        rest = yield _item_places(places, length, context)
        if rest is EMPTY:
            hi = len(first)
    if hi is not None and lo > hi:
        return EMPTY
    if hi is None and is_open and context.is_possible(rest):
        context.missing_bounds.append("maxItems")
    return nodes.concat(_OPEN, _items(first, rest, lo, hi, context))


def _counts(places: Conjunction) -> list[_Count]:
    found = []
    for place, schema in values_of(places, "contains"):
        least, most = place.get("minContains"), place.get("maxContains")
        lo, hi = 1 if least is None else int(least), None if most is None else int(most)
        found.append(_Count(place, "contains", place.below(schema, "contains"), 0, lo, hi))
    for place, some in negated_values_of(places, "items"):
        found.append(_Count(place, "items", place.below(some.schema, "items"), some.start, 1, None))
    return found


def _item_places(places: Conjunction, position: int, context: Context) -> Conjunction:
    """The schemas that the item at `position` must satisfy."""
    found: list[Place] = []
    for place in places:
        found += KEYWORDS.parts(place, position, lambda pattern, key: None)
        if place.has("unevaluatedItems"):
            found += _unevaluated(places, place, position, context)
    return tuple(found)


def _unevaluated(places: Conjunction, watcher: Place, position: int, context: Context) -> list[Place]:
    """The schemas that `unevaluatedItems` of a place applies to the item at `position`: none if another keyword evaluates it."""
    contained: list[Place] = []
    for place in places:
        if not place.counts_for(watcher):
            continue
        is_evaluated = any(KEYWORDS.parts(place, position, lambda pattern, key: None))
        if is_evaluated or (place.has("unevaluatedItems") and place is not watcher):
            return []
        if place.has("contains") and (place.scope is None or place.scope.dialect.evaluates_contained):
            contained.append(place.below(place.get("contains"), "contains"))
    rest = watcher.below(watcher.get("unevaluatedItems"), "unevaluatedItems")
    if not contained:
        return [rest]
    if any(place.scope != rest.scope for place in contained):
        context.leave_out([(watcher, "unevaluatedItems")], "`contains` is in another resource")
        return []
    options = [place.schema for place in (*contained, rest)]
    return [rest._replace(schema=context.document.make({"anyOf": options}, "either", *map(id, options)))]


def _items(first: list[Node], rest: Node, lo: int, hi: int | None, context: Context) -> Node:
    """The items, built from the last fixed one to the first, and the closing bracket."""
    if hi == 0:
        return _CLOSE
    first, comma = first or [rest], context.syntax.comma
    fixed = len(first)
    more = nodes.repeat(nodes.concat(comma, rest), max(lo - fixed, 0), None if hi is None else hi - fixed)
    tail = nodes.concat(more, _CLOSE)
    for position in reversed(range(1, fixed)):
        tail = nodes.sequence((comma, first[position], tail))
        if position >= lo:
            tail = nodes.alternation((_CLOSE, tail))
    filled = nodes.concat(first[0], tail)
    return filled if lo else nodes.alternation((_CLOSE, filled))


_Class = tuple[tuple[int, ...], Node]
"""The term of the items that add the given number (0 or 1) to each count."""


def _counted(
    places: Conjunction, counts: list[_Count], length: int, lo: int, hi: int | None, context: Context, *, is_open: bool
) -> Builder:
    """Arrays whose items are counted, built from the last position to the first."""
    classes: list[list[_Class]] = []
    for position in range(length + 1 if hi is None else min(length + 1, hi)):
        found: list[_Class] = []
        for bits in product((0, 1), repeat=len(counts)):
            wanted = _class_places(places, counts, position, bits, context)
            item = EMPTY if wanted is None else (yield wanted)
            if item is not EMPTY:
                found.append((bits, item))
        classes.append(found)
    if hi is None and is_open and classes[-1]:
        context.missing_bounds.append("maxItems")
    return nodes.concat(_OPEN, _Grid(counts, classes, lo, hi, context).start())


def _class_places(
    places: Conjunction, counts: list[_Count], position: int, bits: tuple[int, ...], context: Context
) -> Conjunction | None:
    """The schemas that the items of one class satisfy; None if there is no such class at this position."""
    found = [*_item_places(places, position, context)]
    for count, bit in zip(counts, bits, strict=True):
        if bit and position < count.start:
            return None
        if bit:
            found.append(count.place)
        elif count.hi is not None and position >= count.start:
            found.append(Place(count.place.schema, count.place.pointer, count.place.scope, negated=True))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The terms for each position and all counts."""

    counts: list[_Count]
    classes: list[list[_Class]]
    lo: int
    hi: int | None
    context: Context

    def start(self) -> Node:
        """All items and the closing bracket."""
        last = max(len(self.classes) - 1, self.lo) if self.hi is None else self.hi
        totals = list(product(*(range(count.most + 1) for count in self.counts)))
        after = self._at_last(last, totals) if self.hi is None else {t: self._close(last, t) for t in totals}
        for position in reversed(range(last)):
            after = {t: self._step(position, t, after) for t in totals}
        return after[(0,) * len(self.counts)]

    def _close(self, position: int, total: tuple[int, ...]) -> Node:
        is_enough = position >= self.lo and all(t >= c.lo for t, c in zip(total, self.counts, strict=True))
        return _CLOSE if is_enough else EMPTY

    def _add(self, total: tuple[int, ...], bits: tuple[int, ...]) -> tuple[int, ...] | None:
        out = []
        for count, had, bit in zip(self.counts, total, bits, strict=True):
            if bit and had == count.most and count.hi is not None:
                return None
            out.append(min(had + bit, count.most))
        return tuple(out)

    def _step(self, position: int, total: tuple[int, ...], after: dict[tuple[int, ...], Node]) -> Node:
        options = [self._close(position, total)]
        for bits, item in self.classes[min(position, len(self.classes) - 1)]:
            target = self._add(total, bits)
            if target is not None:
                comma = self.context.syntax.comma if position else nodes.EPSILON
                options.append(nodes.sequence((comma, item, after[target])))
        return nodes.alternation(options)

    def _at_last(self, position: int, totals: list[tuple[int, ...]]) -> dict[tuple[int, ...], Node]:
        """The terms at the last position that matters: each is a loop that is left when a count grows."""
        comma, after = self.context.syntax.comma, dict[tuple[int, ...], Node]()
        for total in sorted(totals, key=sum, reverse=True):
            stay, leave = [], [self._close(position, total)]
            for bits, item in self.classes[-1]:
                target = self._add(total, bits)
                if target == total:
                    stay.append(item)
                elif target is not None:
                    leave.append(nodes.sequence((comma, item, after[target])))
            loop = nodes.repeat(nodes.concat(comma, nodes.alternation(stay)))
            after[total] = nodes.concat(loop, nodes.alternation(leave))
        # The first item has no comma before it.
        return after if position else {total: self._step(0, total, after) for total in totals}
