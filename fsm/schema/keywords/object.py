"""The keywords of objects, as `Keyword` objects: properties, keys, counts, dependencies (as cases); with their negations (other keywords,
or `SomeMember`) and what they apply to a member. Terms: `schema/object.py`; a negated `unevaluatedProperties` is left to a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fsm.limits import Limits
from fsm.schema.keywords.keyword import (
    OBJECT,
    Failure,
    Keyword,
    Make,
    Matches,
    Name,
    Role,
    count_bounds,
    unless_trivial,
)
from fsm.schema.keywords.scalar import loose_reading
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place, SomeMember, negation_of
from fsm.schema.places.shape import NAME_LISTS, SCHEMA, SCHEMA_MAP, TEXTS, Schema


def _required_failures(keyword: Keyword, place: Place, names: list[str]) -> Iterator[Failure]:
    for name in names:
        yield ({"type": "object", "properties": {name: False}},)


def _pattern_remarks(schemas: dict[str, Schema], limits: Limits) -> Iterator[str]:
    for pattern in schemas:
        yield from loose_reading(pattern, limits)


def _properties_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for name, schema in schemas.items():
        if schema is not True:
            yield ({"type": "object", "required": [name], "properties": {name: negation_of(schema)}},)


def _pattern_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for pattern, schema in schemas.items():
        if schema is not True:
            yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), pattern=pattern), OBJECT),)


def _additional_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    if schema is not True:
        known = tuple(place.get("properties") or ()), tuple(place.get("patternProperties") or ())
        yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), None, True, *known), OBJECT),)


def _names_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Failure]:
    if schema is not True:
        yield (NegatedKeyword(keyword.name, SomeMember(key=negation_of(schema)), OBJECT),)


def _dependent_required_failures(keyword: Keyword, place: Place, lists: dict[str, list[str]]) -> Iterator[Failure]:
    for key, names in lists.items():
        for name in names:
            yield ({"type": "object", "required": [key], "properties": {name: False}},)


def _dependent_schemas_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Failure]:
    for key, schema in schemas.items():
        yield ({"type": "object", "required": [key]}, place.beside(schema, keyword.name, key, negated=True))


def _properties_parts(place: Place, schemas: Any, name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, str) and isinstance(schemas, dict) and name in schemas:
        return (place.below(schemas[name], "properties", name),)
    return ()


def _pattern_parts(place: Place, schemas: Any, name: Name, matches: Matches) -> Iterable[Place]:
    if isinstance(name, int) or not isinstance(schemas, dict):
        return ()
    return [place.below(schemas[p], "patternProperties", p) for p in schemas if matches(p, name)]


def _additional_parts(place: Place, schema: Schema, name: Name, matches: Matches) -> Iterable[Place]:
    declared, patterns = place.get("properties") or {}, place.get("patternProperties") or {}
    if isinstance(name, int) or not isinstance(declared, dict) or not isinstance(patterns, dict) or name in declared:
        return ()
    is_other = all(matches(pattern, name) is False for pattern in patterns)
    return (place.below(schema, "additionalProperties"),) if is_other else ()


def _required_cases(place: Place, lists: dict[str, list[str]], make: Make) -> Iterator[list[Conjunction]]:
    for name, names in lists.items():
        needs = make({"required": list(names)}, "required", *names)
        yield [(_without(place, name, make),), (place.beside(needs),)]


def _schemas_cases(place: Place, schemas: dict[str, Schema], make: Make) -> Iterator[list[Conjunction]]:
    for name, schema in schemas.items():
        needs = place.beside(make({"type": "object", "required": [name]}, "an object with", name))
        yield [(_without(place, name, make),), (needs, place.beside(schema, "dependentSchemas", name))]


def _without(place: Place, name: str, make: Make) -> Place:
    return place.beside(make({"properties": {name: False}}, "without", name))


_object = partial(Keyword, types=OBJECT, since="draft-04", is_built=True)
_dependent = partial(Keyword, types=OBJECT, role=Role.CONDITION, since="draft/2019-09")

OBJECTS = (
    _object("properties", SCHEMA_MAP, failures=_properties_failures, parts=_properties_parts, names=iter),
    _object("required", TEXTS, failures=_required_failures, names=iter),
    _object("additionalProperties", SCHEMA, failures=_additional_failures, parts=_additional_parts),
    _object(
        "patternProperties",
        SCHEMA_MAP,
        failures=_pattern_failures,
        parts=_pattern_parts,
        remarks=_pattern_remarks,
        is_heavy=True,
    ),
    _object("propertyNames", SCHEMA, since="draft-06", failures=_names_failures, is_heavy=True),
    *count_bounds("minProperties", "maxProperties", OBJECT),
    _object("unevaluatedProperties", SCHEMA, since="draft/2019-09", failures=unless_trivial(True), is_blamed=False),
    _dependent("dependentRequired", NAME_LISTS, failures=_dependent_required_failures, cases=_required_cases),
    _dependent("dependentSchemas", SCHEMA_MAP, failures=_dependent_schemas_failures, cases=_schemas_cases),
)
