"""Keywords of objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fsm.schema.keywords.array import unless_trivial
from fsm.schema.keywords.count import at_least, at_most
from fsm.schema.keywords.keyword import OBJECT, Blame, Keyword, Role, Way
from fsm.schema.place import NegatedKeyword, Place, negation_of
from fsm.schema.shape import NAME_LISTS, SCHEMA, SCHEMA_MAP, TEXTS, Schema


@dataclass(frozen=True, slots=True)
class SomeMember:
    """What is left of a negated keyword of members: some member has a value, and a key that is not one of the known ones.

    Attributes:
        schema: what the value satisfies.
        pattern: what is found in the key.
        key: what the key satisfies.
        known: keys that do not count.
        known_patterns: what is not found in the key.
    """

    schema: Schema = True
    pattern: str | None = None
    key: Schema = True
    known: tuple[str, ...] = ()
    known_patterns: tuple[str, ...] = ()


def _required_failures(keyword: Keyword, place: Place, names: list[str]) -> Iterator[Way]:
    for name in names:
        yield ({"type": "object", "properties": {name: False}},)


def _properties_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for name, schema in schemas.items():
        if schema is not True:
            yield ({"type": "object", "required": [name], "properties": {name: negation_of(schema)}},)


def _pattern_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for pattern, schema in schemas.items():
        if schema is not True:
            yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), pattern=pattern), OBJECT),)


def _additional_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Way]:
    if schema is not True:
        known = tuple(place.get("properties") or ()), tuple(place.get("patternProperties") or ())
        yield (NegatedKeyword(keyword.name, SomeMember(negation_of(schema), None, True, *known), OBJECT),)


def _names_failures(keyword: Keyword, place: Place, schema: Schema) -> Iterator[Way]:
    if schema is not True:
        yield (NegatedKeyword(keyword.name, SomeMember(key=negation_of(schema)), OBJECT),)


def _dependent_required_failures(keyword: Keyword, place: Place, lists: dict[str, list[str]]) -> Iterator[Way]:
    for key, names in lists.items():
        for name in names:
            yield ({"type": "object", "required": [key], "properties": {name: False}},)


def _dependent_schemas_failures(keyword: Keyword, place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for key, schema in schemas.items():
        yield (
            {"type": "object", "required": [key]},
            place.beside(schema, keyword.name, key, negated=True),
        )


_of_members = partial(Keyword, types=OBJECT, since="draft-04", is_built=True, of_members=True, blame=Blame.PARTS)

OBJECTS = (
    _of_members("properties", SCHEMA_MAP, failures=_properties_failures),
    Keyword("required", TEXTS, OBJECT, since="draft-04", failures=_required_failures, is_built=True),
    _of_members("additionalProperties", SCHEMA, failures=_additional_failures),
    _of_members("patternProperties", SCHEMA_MAP, failures=_pattern_failures, is_heavy=True),
    Keyword("propertyNames", SCHEMA, OBJECT, since="draft-06", failures=_names_failures, is_built=True, is_heavy=True),
    at_least("minProperties", "maxProperties", OBJECT),
    at_most("maxProperties", "minProperties", OBJECT),
    Keyword(
        "unevaluatedProperties",
        SCHEMA,
        OBJECT,
        since="draft/2019-09",
        failures=unless_trivial(True),
        is_built=True,
        blame=Blame.NEVER,
    ),
    Keyword(
        "dependentRequired",
        NAME_LISTS,
        OBJECT,
        role=Role.CONDITION,
        since="draft/2019-09",
        failures=_dependent_required_failures,
    ),
    Keyword(
        "dependentSchemas",
        SCHEMA_MAP,
        OBJECT,
        role=Role.CONDITION,
        since="draft/2019-09",
        failures=_dependent_schemas_failures,
    ),
)
