"""What is left of a `not`: the ways in which a value can fail to satisfy a schema, one keyword at a time.

Negation is pushed inwards until it meets single keywords, each of which has an opposite (`minLength: 3` fails for strings of at
most two characters), so no automaton is ever complemented beyond patterns and keys. Recursion stays recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fsm.schema.documents.place import Place
from fsm.schema.enumeration import schema_of
from fsm.schema.formats.table import NUMBER_FORMATS
from fsm.schema.keyword import JSON_TYPES, Made, Member, Schema

Part = Schema | Place
Way = tuple[Part, ...]
"""Schemas that hold together when the value fails in this way; a `Place` where it is a part of the schema itself."""

_MAX_ONE_OF = 8


class NoNegation(Exception):
    """A keyword whose opposite cannot be told; `args[0]` names it."""


def ways_to_fail(place: Place, *, asserts_format: bool) -> Iterator[Way]:
    """Yield the ways to fail the schema of a place, a keyword at a time; `$ref` is left to the caller.

    Raises:
        NoNegation: a way cannot be told.
    """
    assert isinstance(place.schema, dict)
    for keyword, value in place.schema.items():
        if keyword == "format" and not asserts_format:
            continue
        rule = _RULES.get(keyword)
        if rule is not None:
            yield from rule(place, value)


def _part(place: Place, schema: Schema, *tokens: str | int, negated: bool = True) -> Place:
    return place.beside(schema, *tokens, negated=negated)


def _not(schema: Schema) -> Schema:
    return not schema if isinstance(schema, bool) else {"not": schema}


def _of_type(*names: str) -> dict[str, Any]:
    return {Made.TYPES: frozenset(names)}


def _numbers(keyword: str) -> Callable[[Place, Any], Iterator[Way]]:
    def fail(place: Place, value: Any) -> Iterator[Way]:
        yield (_of_type("integer", "number") | {keyword: value},)

    return fail


def _text(keyword: str) -> Callable[[Place, Any], Iterator[Way]]:
    def fail(place: Place, value: Any) -> Iterator[Way]:
        yield ({"type": "string", keyword: value},)

    return fail


def _format(place: Place, name: str) -> Iterator[Way]:
    if name in NUMBER_FORMATS:
        for keyword, value in NUMBER_FORMATS[name].items():
            yield from _RULES[keyword](place, value)
    else:
        yield ({"type": "string", Made.NOT_FORMAT: name},)


def _at_least(name: str, opposite: str) -> Callable[[Place, Any], Iterator[Way]]:
    def fail(place: Place, value: Any) -> Iterator[Way]:
        if value > 0:
            yield ({"type": name, opposite: int(value) - 1},)

    return fail


def _at_most(name: str, opposite: str) -> Callable[[Place, Any], Iterator[Way]]:
    def fail(place: Place, value: Any) -> Iterator[Way]:
        yield ({"type": name, opposite: int(value) + 1},)

    return fail


def _type(place: Place, value: Any) -> Iterator[Way]:
    names = {value} if isinstance(value, str) else set(value)
    names |= {"integer"} if "number" in names else set()
    yield (_of_type(*set(JSON_TYPES) - names),)


def _listed(place: Place, values: list[Any], keyword: str = "enum") -> Iterator[Way]:
    parts: list[Part] = [{Made.NOT_IN: tuple(v for v in values if not isinstance(v, list | dict))}]
    parts += [_part(place, schema_of(v, place.at(keyword)), keyword) for v in values if isinstance(v, list | dict)]
    yield tuple(parts)


def _const(place: Place, value: Any) -> Iterator[Way]:
    yield from _listed(place, [value], "const")


def _all_of(place: Place, schemas: list[Schema]) -> Iterator[Way]:
    for position, schema in enumerate(schemas):
        yield (_part(place, schema, "allOf", position),)


def _any_of(place: Place, schemas: list[Schema], keyword: str = "anyOf") -> Iterator[Way]:
    yield tuple(_part(place, schema, keyword, position) for position, schema in enumerate(schemas))


def _one_of(place: Place, schemas: list[Schema]) -> Iterator[Way]:
    if len(schemas) > _MAX_ONE_OF:
        raise NoNegation("oneOf")
    yield from _any_of(place, schemas, "oneOf")
    for second in range(len(schemas)):
        for first in range(second):
            yield tuple(_part(place, schemas[n], "oneOf", n, negated=False) for n in (first, second))


def _no(place: Place, schema: Schema) -> Iterator[Way]:
    yield (_part(place, schema, "not", negated=False),)


def _if(place: Place, schema: Schema) -> Iterator[Way]:
    for keyword, fails in (("then", False), ("else", True)):
        if place.has(keyword):
            yield _part(place, schema, "if", negated=fails), _part(place, place.get(keyword), keyword)


def _dependent_required(place: Place, lists: dict[str, list[str]]) -> Iterator[Way]:
    for key, names in lists.items():
        for name in names:
            yield ({"type": "object", "required": [key], "properties": {name: False}},)


def _dependent_schemas(place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for key, schema in schemas.items():
        yield {"type": "object", "required": [key]}, _part(place, schema, "dependentSchemas", key)


def _prefix_items(place: Place, schemas: list[Schema]) -> Iterator[Way]:
    for position, schema in enumerate(schemas):
        if schema is not True:
            first = [*[True] * position, _not(schema)]
            yield ({"type": "array", "minItems": position + 1, "prefixItems": first},)


def _items(place: Place, schema: Schema) -> Iterator[Way]:
    start = len(place.get("prefixItems") or ())
    if schema is not True:
        yield ({"type": "array", "minItems": start + 1, Made.SOME_ITEM: (start, _not(schema))},)


def _contains(place: Place, schema: Schema) -> Iterator[Way]:
    least, most = place.get("minContains"), place.get("maxContains")
    if least is None or least > 0:
        fewer = 0 if least is None else int(least) - 1
        yield ({"type": "array", "contains": schema, "minContains": 0, "maxContains": fewer},)
    if most is not None:
        yield ({"type": "array", "contains": schema, "minContains": int(most) + 1},)


def _unique_items(place: Place, value: bool) -> Iterator[Way]:
    if value:
        raise NoNegation("uniqueItems")
    yield from ()


def _required(place: Place, names: list[str]) -> Iterator[Way]:
    for name in names:
        yield ({"type": "object", "properties": {name: False}},)


def _properties(place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for name, schema in schemas.items():
        if schema is not True:
            yield ({"type": "object", "required": [name], "properties": {name: _not(schema)}},)


def _pattern_properties(place: Place, schemas: dict[str, Schema]) -> Iterator[Way]:
    for pattern, schema in schemas.items():
        if schema is not True:
            yield ({"type": "object", Made.SOME_MEMBER: Member(_not(schema), pattern=pattern)},)


def _additional_properties(place: Place, schema: Schema) -> Iterator[Way]:
    if schema is not True:
        known = tuple(place.get("properties") or ()), tuple(place.get("patternProperties") or ())
        yield ({"type": "object", Made.SOME_MEMBER: Member(_not(schema), None, True, *known)},)


def _property_names(place: Place, schema: Schema) -> Iterator[Way]:
    if schema is not True:
        yield ({"type": "object", Made.SOME_MEMBER: Member(key=_not(schema))},)


def _unknown(keyword: str) -> Callable[[Place, Any], Iterator[Way]]:
    def fail(place: Place, value: Any) -> Iterator[Way]:
        if value is not True:
            raise NoNegation(keyword)
        yield from ()

    return fail


_RULES: dict[str, Callable[[Place, Any], Iterator[Way]]] = {
    "type": _type,
    "enum": _listed,
    "const": _const,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _no,
    "if": _if,
    "minimum": _numbers("exclusiveMaximum"),
    "maximum": _numbers("exclusiveMinimum"),
    "exclusiveMinimum": _numbers("maximum"),
    "exclusiveMaximum": _numbers("minimum"),
    "multipleOf": _numbers(Made.NOT_MULTIPLE),
    "minLength": _at_least("string", "maxLength"),
    "maxLength": _at_most("string", "minLength"),
    "pattern": _text(Made.NOT_PATTERN),
    "format": _format,
    "minItems": _at_least("array", "maxItems"),
    "maxItems": _at_most("array", "minItems"),
    "prefixItems": _prefix_items,
    "items": _items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "minProperties": _at_least("object", "maxProperties"),
    "maxProperties": _at_most("object", "minProperties"),
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "unevaluatedItems": _unknown("unevaluatedItems"),
    "unevaluatedProperties": _unknown("unevaluatedProperties"),
}
