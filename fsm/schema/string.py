"""Strings: length in characters, `pattern` and `format`, as the inside of a JSON string."""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring  # what `json.dumps(value, ensure_ascii=False)` calls, seven times as fast
from typing import Any, Literal

from fsm.errors import NotRegular, SchemaError
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import ecma_search
from fsm.schema.documents.place import Conjunction, Place, values_of
from fsm.schema.formats.table import NUMBER_FORMATS, format_node
from fsm.schema.keyword import Made, Text
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, json_spelling, json_text
from fsm.terms.node import EMPTY, Node

FormatPolicy = Literal["assert", "annotate"]

QUOTE = nodes.literal(b'"')
CHARACTERS = nodes.repeat(JSON_CHARACTER)
"""The inside of any string."""
STRING = nodes.sequence((QUOTE, CHARACTERS, QUOTE))
"""Any string."""


def spelled(value: str) -> bytes:
    """A string as JSON text, quotes included."""
    return encode_basestring(value).encode()


def in_quotes(inside: Node) -> Node:
    """The strings whose inside is given."""
    return nodes.sequence((QUOTE, inside, QUOTE))


def pattern_node(pattern: str, pointer: str, limits: Limits) -> Node:
    """The inside of the strings in which a pattern is found.

    Raises:
        SchemaError: it is malformed.
        NotRegular: it uses what no automaton can tell.
        BudgetExceeded: it is too long.
    """
    limits.check("max_pattern_length", len(pattern), "characters of a pattern", pointer)
    try:
        return _found(pattern)
    except SchemaError:
        return ecma_search(pattern, json_spelling, pointer=pointer)  # raises again, and says where


@lru_cache(maxsize=256)
def _found(pattern: str) -> Node:
    """Kept, as large schemas ask for the same few patterns again and again: azure-pipelines.json for 6,000, 67,000 times."""
    return ecma_search(pattern, json_spelling)


def string_node(
    places: Conjunction, *, asserts_format: bool, limits: Limits, left_out: list[tuple[Place, str]] | None = None
) -> Node:
    """The strings that satisfy all places.

    Args:
        places: what holds together.
        asserts_format: whether `format` can reject a string.
        limits: bounds of compiling.
        left_out: takes the keywords that the term does not hold; without it they raise.

    Raises:
        SchemaError: a pattern that is malformed or not supported.
        BudgetExceeded: a pattern is too long.
    """
    lo = max((int(value) for _, value in values_of(places, "minLength")), default=0)
    hi = min((int(value) for _, value in values_of(places, "maxLength")), default=None)
    if hi is not None and lo > hi:
        return EMPTY
    parts = dict[Node, None]()
    for keyword in ("pattern", Made.NOT_PATTERN, "format", Made.NOT_FORMAT, Made.NOT_IN, Made.TEXT):
        for place, value in values_of(places, keyword):
            if "ormat" in keyword and (not asserts_format or value in NUMBER_FORMATS):
                continue
            try:
                parts[_part(place, keyword, value, limits)] = None
            except NotRegular:
                if left_out is None:
                    raise
                left_out.append((place, "pattern"))
    if not parts or lo or hi is not None:
        parts[nodes.repeat(JSON_CHARACTER, lo, hi)] = None
    elif not all(part.kind is not nodes.Kind.COMPLEMENT for part in parts):
        parts[CHARACTERS] = None
    return in_quotes(nodes.intersection(parts) if len(parts) > 1 else next(iter(parts)))


def _part(place: Place, keyword: str, value: Any, limits: Limits) -> Node:
    match keyword:
        case "pattern":
            return pattern_node(value, place.at("pattern"), limits)
        case Made.NOT_PATTERN:
            return nodes.complement(pattern_node(value, place.at("pattern"), limits))
        case "format":
            return format_node(value)
        case Made.TEXT:
            assert isinstance(value, Text)
            return value.node
        case Made.NOT_FORMAT:
            return nodes.complement(format_node(value))
        case _:
            return nodes.complement(nodes.words(json_text(v) for v in value if isinstance(v, str)))
