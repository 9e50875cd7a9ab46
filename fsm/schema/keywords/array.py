"""The keywords of arrays, as `Keyword` objects: items, `contains`, counts, `uniqueItems`; with their negations (other keywords, or
`SomeItem`). Their terms are in `schema/array.py`; a negated `uniqueItems` or `unevaluatedItems` is left to a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from fsm.schema.keywords.keyword import (
    ARRAY,
    Failure,
    Keyword,
    Matches,
    Name,
    count_bounds,
    no_failures,
    unless_trivial,
)
from fsm.schema.places.place import NegatedKeyword, Place, SomeItem, negation_of
from fsm.schema.places.shape import COUNT, FLAG, SCHEMA, SCHEMA_LIST, Schema


def _prefix_failures(keyword: Keyword, place: Place, schemas: list[Schema]) -> Iterator[Failure]:
    for position, schema in enumerate(schemas):
        if schema is not True:
            first = [*[True] * position, negation_of(schema)]
            yield ({"type": "array", "minItems": position + 1, "prefixItems": first},)


def _items_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    start = len(place.get("prefixItems") or ())
    if schema is not True:
        yield (NegatedKeyword("items", SomeItem(start, negation_of(schema)), ARRAY),)


def _contains_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    least, most = place.get("minContains"), place.get("maxContains")
    if least is None or least > 0:
        fewer = 0 if least is None else int(least) - 1
        yield ({"type": "array", "contains": schema, "minContains": 0, "maxContains": fewer},)
    if most is not None:
        yield ({"type": "array", "contains": schema, "minContains": int(most) + 1},)


def _prefix_parts(place: Place, schemas: list[Schema], name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, int) and name < len(schemas):
        return (place.below(schemas[name], "prefixItems", name),)
    return ()


def _items_parts(place: Place, schema: Schema, name: Name, matches: Matches) -> Iterable[Place]:
    is_later = isinstance(name, int) and name >= len(place.get("prefixItems") or ())
    return (place.below(schema, "items"),) if is_later else ()


_array = partial(Keyword, types=ARRAY, since="draft-04", is_built=True)
_counted = partial(_array, shape=COUNT, since="draft/2019-09", failures=no_failures, is_blamed=False)

ARRAYS = (
    _array("prefixItems", SCHEMA_LIST, since="draft/2020-12", failures=_prefix_failures, parts=_prefix_parts),
    _array("items", SCHEMA, failures=_items_failures, parts=_items_parts),
    *count_bounds("minItems", "maxItems", ARRAY),
    _array("uniqueItems", FLAG, failures=unless_trivial(False)),
    _array(
        "contains",
        SCHEMA,
        since="draft-06",
        failures=_contains_failures,
        is_heavy=True,
        companions=("minContains", "maxContains"),
    ),
    _counted("minContains"),
    _counted("maxContains"),
    _array("unevaluatedItems", SCHEMA, since="draft/2019-09", failures=unless_trivial(True), is_blamed=False),
)
