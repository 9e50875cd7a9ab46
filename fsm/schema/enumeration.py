"""`enum` and `const`: scalar values as one set of words, lists and objects as schemas that only they satisfy."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from fsm import node as nodes
from fsm.automaton import Automaton
from fsm.characters import json_text
from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.node import Node
from fsm.schema.keyword import check_text, is_number, shorten
from fsm.schema.number import demand_of, number_texts, to_decimal
from fsm.schema.place import Conjunction, Place
from fsm.schema.string import FormatPolicy, string_node

_STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")


def values_at(place: Place) -> list[tuple[Any, str]] | None:
    """The values that `enum` and `const` of a place list, with pointers; None where it has neither."""
    if place.has("const"):
        found = [(place.get("const"), place.at("const"))]
        if not place.has("enum"):
            return found
        kept = {identity(value) for value in place.get("enum") if not isinstance(value, dict | list)}
        if isinstance(found[0][0], dict | list):
            return [
                (value, f"{place.at('enum')}/{n}") for n, value in enumerate(place.get("enum")) if value == found[0][0]
            ]
        return found if identity(found[0][0]) in kept else []
    if place.has("enum"):
        pointer = place.at("enum")
        return [(value, f"{pointer}/{n}") for n, value in enumerate(place.get("enum"))]
    return None


def schema_of(value: dict[str, Any] | list[Any], pointer: str) -> dict[str, Any]:
    """A schema that only this list or object satisfies. Cost: one level; what lies below is told by `const`."""
    if isinstance(value, list):
        schema: dict[str, Any] = {"type": "array", "minItems": len(value), "maxItems": len(value)}
        return schema | ({"prefixItems": [{"const": item} for item in value]} if value else {})
    for key in value:
        check_text(key, pointer)
    return {
        "type": "object",
        "properties": {key: {"const": item} for key, item in value.items()},
        "required": list(value),
        "additionalProperties": False,
    }


def identity(value: Any) -> tuple[str, Any]:
    """What tells a scalar from another in JSON, where 1 and 1.0 are equal and true is no number."""
    if isinstance(value, bool) or value is None:
        return ("name", value)
    if isinstance(value, str):
        return ("text", value)
    return ("number", to_decimal(value)) if is_number(value) else ("other", id(value))


def scalar_node(
    lists: Iterable[list[tuple[Any, str]]], types: set[str], places: Conjunction, formats: FormatPolicy, limits: Limits
) -> Node:
    """The scalars that are in every list and satisfy the other keywords of `places`, as one set of words.

    Raises:
        SchemaError: a value is no JSON value, or cannot be spelled.
    """
    kept: dict[tuple[str, Any], Any] | None = None
    for values in lists:
        known = {}
        for value, pointer in values:
            _check_scalar(value, pointer)
            known[identity(value)] = value
        kept = known if kept is None else {key: value for key, value in kept.items() if key in known}
    scalars = list((kept or {}).values())
    texts = [
        {None: b"null", True: b"true", False: b"false"}[v]
        for v in scalars
        if (v is None and "null" in types) or (isinstance(v, bool) and "boolean" in types)
    ]
    texts += _strings([v for v in scalars if isinstance(v, str)], types, places, formats, limits)
    return nodes.words(texts + _numbers([v for v in scalars if is_number(v)], types, places, limits))


def _check_scalar(value: object, pointer: str) -> None:
    if isinstance(value, str):
        check_text(value, pointer)
    elif value is not None and not isinstance(value, bool) and not is_number(value):
        raise SchemaError(f"expected a JSON value, received {shorten(value)}. Correct the schema", pointer)


def _strings(
    values: list[str], types: set[str], places: Conjunction, formats: FormatPolicy, limits: Limits
) -> list[bytes]:
    if "string" not in types:
        return []
    texts = [b'"%b"' % json_text(value) for value in values]
    if texts and any(place.has(keyword) for place in places for keyword in _STRING_KEYWORDS):
        automaton = Automaton(string_node(places, formats, limits))
        texts = [text for text in texts if automaton.accepts(text)]
    return texts


def _numbers(values: list[Any], types: set[str], places: Conjunction, limits: Limits) -> list[bytes]:
    if "integer" not in types:
        return []
    demand = demand_of(places, integers=True, limits=limits) if values else None
    return [
        text
        for value, text in number_texts(values).items()
        if demand is not None and demand.allows(value) and ("number" in types or _is_whole(value))
    ]


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()
