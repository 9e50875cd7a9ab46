"""Strings: length in characters, `pattern` and `format`, as the inside of a JSON string."""

from __future__ import annotations

from json.encoder import encode_basestring  # what `json.dumps(value, ensure_ascii=False)` calls, seven times as fast
from typing import Literal

from fsm import node as nodes
from fsm.characters import JSON_CHARACTER, json_spelling
from fsm.ecma_pattern import ecma_search
from fsm.limits import Limits
from fsm.node import EMPTY, Node
from fsm.schema.formats import format_node
from fsm.schema.place import Conjunction, values_of

FormatPolicy = Literal["assert", "annotate"]

QUOTE = nodes.literal(b'"')
STRING = nodes.sequence((QUOTE, nodes.repeat(JSON_CHARACTER), QUOTE))
"""Any string."""


def spelled(value: str) -> bytes:
    """A string as JSON text, quotes included."""
    return encode_basestring(value).encode()


def string_node(places: Conjunction, formats: FormatPolicy, limits: Limits) -> Node:
    """The strings that satisfy all places.

    Raises:
        SchemaError: a pattern or format that is malformed or not supported.
        BudgetExceeded: a pattern is too long.
    """
    lo = max((int(value) for _, value in values_of(places, "minLength")), default=0)
    hi = min((int(value) for _, value in values_of(places, "maxLength")), default=None)
    if hi is not None and lo > hi:
        return EMPTY
    parts = dict.fromkeys(_patterns(places, limits))
    if formats == "assert":
        parts |= dict.fromkeys(format_node(name, place.at("format")) for place, name in values_of(places, "format"))
    if not parts or lo or hi is not None:
        parts[nodes.repeat(JSON_CHARACTER, lo, hi)] = None
    return nodes.sequence((QUOTE, nodes.intersection(parts) if len(parts) > 1 else next(iter(parts)), QUOTE))


def _patterns(places: Conjunction, limits: Limits) -> list[Node]:
    found = []
    for place, pattern in values_of(places, "pattern"):
        limits.check("max_pattern_length", len(pattern), "characters of a pattern", place.at("pattern"))
        found.append(ecma_search(pattern, json_spelling, pointer=place.at("pattern")))
    return found
