"""`enum` and `const`: scalar values as one set of words, lists and objects as schemas that only they satisfy."""

from __future__ import annotations

from typing import Any

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.schema.documents.place import Conjunction, Place, values_of
from fsm.schema.keyword import Made, check_text, is_number, shorten
from fsm.schema.number import Demand, check_digits, demand_of, is_whole, number_texts, to_decimal
from fsm.schema.string import spelled, string_node
from fsm.terms import node as nodes
from fsm.terms import work_budget as work
from fsm.terms.node import Node

_STRINGS_PER_WORK = 10
_OTHERS_PER_WORK = 1  # numbers become decimals
_STRING_KEYWORDS = frozenset(
    {"minLength", "maxLength", "pattern", "format", Made.NOT_PATTERN, Made.NOT_FORMAT, Made.TEXT}
)


def values_at(place: Place) -> list[Any] | None:
    """The values that `enum` or `const` of a place allows (`Document` parts the two); None where it has neither."""
    values: list[Any] | None = place.get("enum")
    return [place.get("const")] if values is None and place.has("const") else values


def pointer_to(place: Place, position: int) -> str:
    """Where `enum` or `const` of a place holds the value at a position of `values_at`."""
    return f"{place.at('enum')}/{position}" if place.has("enum") else place.at("const")


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


def identity(value: Any) -> tuple[str, Any]:
    """What tells a scalar from another in JSON, where 1 and 1.0 are equal and true is no number."""
    if isinstance(value, bool) or value is None:
        return ("name", value)
    if isinstance(value, str):
        return ("text", value)
    return ("number", to_decimal(value)) if is_number(value) else ("other", id(value))


def scalar_node(places: Conjunction, types: frozenset[str], *, asserts_format: bool, limits: Limits) -> Node | None:
    """The scalars that `enum` and `const` of all places allow and the other keywords too, as one set of words.

    None where no place has either. Lists and objects among the values are left to `schema_of`.

    Raises:
        SchemaError: a value is no JSON value, or cannot be spelled.

    Cost: about 1 us per value.
    """
    listing = [(place, values) for place in places if (values := values_at(place)) is not None]
    if not listing:
        return None
    for _, values in listing:
        is_text = bool(values) and isinstance(values[0], str)
        work.add(len(values) // (_STRINGS_PER_WORK if is_text else _OTHERS_PER_WORK))
    work.check()
    strings, others = _common(listing, limits)
    texts = _strings(strings, types, places, asserts_format, limits)
    texts += [text for value, text in names(places, types) if any(value is other for other in others)]
    numbers = [value for value in others if is_number(value)]
    if numbers and not types.isdisjoint(("integer", "number")):
        demand = demand_of(places, integers=True, asserts_format=asserts_format, limits=limits)
        texts += _numbers(numbers, types, demand)
    return nodes.words(texts)


_NAMES = ((None, "null", b"null"), (True, "boolean", b"true"), (False, "boolean", b"false"))


def names(places: Conjunction, types: frozenset[str]) -> list[tuple[bool | None, bytes]]:
    """Which of null, true and false are of these types and are not excluded, each with its text."""
    excluded = [other for _, values in values_of(places, Made.NOT_IN) for other in values]
    return [
        (value, text) for value, name, text in _NAMES if name in types and not any(value is other for other in excluded)
    ]


def _common(listing: list[tuple[Place, list[Any]]], limits: Limits) -> tuple[list[str], list[Any]]:
    """The scalars that are in every list: strings, and others."""
    strings, others = _parted(*listing[0], limits)
    for place, values in listing[1:]:
        more_strings, more_others = map(set, _parted(place, values, limits))
        known = {identity(value) for value in more_others}
        strings = [value for value in strings if value in more_strings]
        others = [value for value in others if identity(value) in known]
    return strings, others


def _parted(place: Place, values: list[Any], limits: Limits) -> tuple[list[str], list[Any]]:
    """Strings, and other scalars."""
    strings, others = list[str](), list[Any]()
    for position, value in enumerate(values):
        if isinstance(value, str):
            strings.append(value)
        elif not isinstance(value, list | dict):
            if is_number(value):
                check_digits(value, place, "enum" if place.has("enum") else "const", limits)
            elif value is not None and not isinstance(value, bool):
                raise SchemaError(
                    f"expected a JSON value, received {shorten(value)}. Correct the schema", pointer_to(place, position)
                )
            others.append(value)
    return strings, others


def _strings(
    values: list[str], types: frozenset[str], places: Conjunction, asserts_format: bool, limits: Limits
) -> list[bytes]:
    if "string" not in types:
        return []
    excluded = {other for _, others in values_of(places, Made.NOT_IN) for other in others if isinstance(other, str)}
    texts = [spelled(value) for value in values if value not in excluded]
    if texts and any(place.says(_STRING_KEYWORDS) for place in places):
        automaton = Automaton(string_node(places, asserts_format=asserts_format, limits=limits))
        texts = automaton.accepted(texts)
    return texts


def _numbers(values: list[Any], types: frozenset[str], demand: Demand) -> list[bytes]:
    decimals = demand.decimals if "number" in types else None
    return [
        text
        for value, texts in number_texts(values, decimals).items()
        if demand.allows(value) and ("integer" if is_whole(value) else "number") in types
        for text in texts
    ]
