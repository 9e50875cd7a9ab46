"""The keywords of values of any type, as `Keyword` objects: `type`, `enum`, `const`, and the annotations, which reject nothing.

`types_at` and `values_at` read the types and the listed values of a place; `schema_of` makes the schema of a single list or object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm.schema.keywords.keyword import ALL_TYPES, Failure, Keyword, Part, Role
from fsm.schema.places.place import NegatedKeyword, Place
from fsm.schema.places.shape import (
    ANY_SCHEMA_MAP,
    ANY_VALUES,
    ANYTHING,
    TYPES,
    VALUE,
    VALUES,
    Shape,
    check_text,
    is_number,
    to_decimal,
)


def types_named(value: Any) -> frozenset[str]:
    """The JSON types that a value of `type` allows; `number` stands for numbers that are not whole."""
    found = frozenset((value,) if isinstance(value, str) else (name for name in value if isinstance(name, str)))
    return found | {"integer"} if "number" in found else found


def types_at(place: Place) -> frozenset[str]:
    """The JSON types that a place allows; `number` stands for numbers that are not whole."""
    if isinstance(place.schema, NegatedKeyword):
        return place.schema.types
    value = place.get("type")
    return ALL_TYPES if value is None else types_named(value)


def values_at(place: Place) -> list[Any] | None:
    """The values that `enum` or `const` of a place allows (`Document` parts the two); None where it has neither."""
    values: list[Any] | None = place.get("enum")
    return [place.get("const")] if values is None and place.has("const") else values


def pointer_to(place: Place, position: int) -> str:
    """Where `enum` or `const` of a place holds the value at a position of `values_at`."""
    return f"{place.at('enum')}/{position}" if place.has("enum") else place.at("const")


def identity(value: Any) -> tuple[str, Any]:
    """What tells a scalar from another in JSON, where 1 and 1.0 are equal and true is no number."""
    if isinstance(value, bool) or value is None:
        return ("name", value)
    if isinstance(value, str):
        return ("text", value)
    return ("number", to_decimal(value)) if is_number(value) else ("other", id(value))


def schema_of(value: dict[str, Any] | list[Any], pointer: str) -> dict[str, Any]:
    """A schema that only this list or object satisfies. Cost: one level; what lies below is told by `const`."""
    if isinstance(value, list):
        schema: dict[str, Any] = {"type": "array", "minItems": len(value), "maxItems": len(value)}
        return schema | ({"prefixItems": [{"enum": [item]} for item in value]} if value else {})
    for key in value:
        check_text(key, pointer)
    return {
        "type": "object",
        "properties": {key: {"enum": [item]} for key, item in value.items()},
        "required": list(value),
        "additionalProperties": False,
    }


def _type_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    yield (NegatedKeyword(keyword.name, value, ALL_TYPES - types_named(value)),)


def _listed_failures(keyword: Keyword, place: Place, values: list[Any]) -> Iterator[Failure]:
    scalars = tuple(value for value in values if not isinstance(value, list | dict))
    parts: list[Part] = [NegatedKeyword("enum", scalars, ALL_TYPES)]
    for value in values:
        if isinstance(value, list | dict):
            parts.append(place.beside(schema_of(value, place.at(keyword.name)), keyword.name, negated=True))
    yield tuple(parts)


def _const_failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
    yield from _listed_failures(keyword, place, [value])


ANY_VALUE = (
    Keyword("type", TYPES, since="draft-04", failures=_type_failures, is_built=True),
    Keyword("enum", VALUES, role=Role.VALUES, since="draft-04", failures=_listed_failures),
    Keyword("const", VALUE, role=Role.VALUES, since="draft-06", failures=_const_failures),
)


def _note(name: str, shape: Shape = ANYTHING, since: str | None = None) -> Keyword:
    return Keyword(name, shape, frozenset(), Role.ANNOTATION, since)


_NOTES = (
    "$comment $id $recursiveAnchor $schema $vocabulary additionalItems contentEncoding contentMediaType contentSchema deprecated "
    "description discriminator nullable readOnly title writeOnly"
)

ANNOTATIONS = (
    *map(_note, _NOTES.split()),
    _note("$anchor", since="draft/2019-09"),
    _note("$dynamicAnchor", since="draft/2020-12"),
    *(_note(name, ANY_VALUES) for name in ("default", "example", "examples")),
    *(_note(name, ANY_SCHEMA_MAP) for name in ("$defs", "definitions")),
)
