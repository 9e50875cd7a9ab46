"""`Keyword` objects of strings and numbers: character counts, `pattern`, `format`, bounds, `multipleOf`, each with its negation (that of a
bound is the opposite bound). `pattern` and `format` of strings give a term here; automata of numbers and counts are built in `scalars/`.
`NUMBER_FORMATS`: formats of numbers, as other keywords; those of strings are in `formats.py`. An unknown format rejects nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from fsm.errors import SchemaError, shorten
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import ecma_search, read_loosely
from fsm.schema.keywords.formats import FORMATS, OPENAPI_FORMATS, SPELLINGS, STRING_FORMATS, format_node
from fsm.schema.keywords.keyword import NUMERIC, STRING, Failure, Keyword, count_bounds, negated
from fsm.schema.keywords.place import DIVISOR, MAX_SINGLE, NUMBER, TEXT, NegatedKeyword, Place
from fsm.terms.characters import json_spelling
from fsm.terms.node import Node

NUMBER_FORMATS: dict[str, dict[str, Any]] = {
    "int32": {"multipleOf": 1, "minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"multipleOf": 1, "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"minimum": -MAX_SINGLE, "maximum": MAX_SINGLE},
    "double": {},  # every number of our JSON texts fits
}
"""The number formats of the OpenAPI registry, each as an equivalent schema of other keywords; they constrain numbers only."""


def _pattern_node(pattern: str, pointer: str, limits: Limits) -> Node:
    """The inside of the strings in which a pattern is found; raises `NotRegular`, or `SchemaError` for a malformed pattern."""
    limits.check("max_pattern_length", len(pattern), "characters of a pattern", pointer)
    try:
        return _found(pattern)
    except SchemaError:
        return ecma_search(pattern, json_spelling, pointer=pointer)  # raises again, with the position


@lru_cache(maxsize=256)
def _found(pattern: str) -> Node:
    """Cached, as large schemas repeat the same few patterns: azure-pipelines.json has 6,000 of them in 67,000 places."""
    return ecma_search(pattern, json_spelling)


def loose_reading(pattern: str, limits: Limits) -> tuple[str, ...]:
    """A note on a pattern that was read though ECMA-262 refuses it with the `u` flag."""
    loose = read_loosely(pattern) if len(pattern) <= limits.max_pattern_length else ()
    return (f"ECMA-262 refuses it with the `u` flag: {', '.join(loose)}",) if loose else ()


def _bound(name: str, opposite: str, since: str = "draft-04") -> Keyword:
    """A bound; its negation is the opposite one."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Failure]:
        yield ({"type": "number", opposite: value},)

    return Keyword(name, NUMBER, NUMERIC, since=since, failures=failures, is_built=True)


NUMBERS = (
    _bound("minimum", "exclusiveMaximum"),
    _bound("maximum", "exclusiveMinimum"),
    _bound("exclusiveMinimum", "maximum"),
    _bound("exclusiveMaximum", "minimum"),
    Keyword("multipleOf", DIVISOR, NUMERIC, since="draft-04", failures=negated, is_built=True, is_heavy=True),
)
_NUMBERS = {keyword.name: keyword for keyword in NUMBERS}


def _format_language(name: str, pointer: str, limits: Limits) -> Node | None:
    return None if name in NUMBER_FORMATS else format_node(name)


def _format_failures(keyword: Keyword, place: Place, name: str) -> Iterator[Failure]:
    """A format of numbers fails where one of the keywords that define it does."""
    if name not in NUMBER_FORMATS:
        yield (NegatedKeyword(keyword.name, name, STRING),)
    for other, value in _number_keywords(name).items():
        yield from _NUMBERS[other].failures(_NUMBERS[other], place, value)


def _number_keywords(name: str) -> dict[str, Any]:
    return NUMBER_FORMATS.get(name, {})


def _ignored_format(name: object, asserts_format: bool) -> str | None:
    if not isinstance(name, str) or (asserts_format and (name in STRING_FORMATS or name in NUMBER_FORMATS)):
        return None
    if not asserts_format:
        return 'formats="annotate"'
    near = get_close_matches(name.lower(), FORMATS, 1)
    known = ", ".join((*FORMATS, *OPENAPI_FORMATS, *NUMBER_FORMATS))
    hint = f"Did you mean {near[0]!r}?" if near else f"Known are {known}."
    return f"the format {shorten(name)} is not known, so that any text passes. {hint}"


STRINGS = (
    *count_bounds("minLength", "maxLength", STRING),
    Keyword(
        "pattern",
        TEXT,
        STRING,
        since="draft-04",
        language=_pattern_node,
        remarks=loose_reading,
        is_heavy=True,
        is_built=True,
    ),
    Keyword(
        "format",
        TEXT,
        STRING | NUMERIC,
        since="draft-04",
        language=_format_language,
        failures=_format_failures,
        ignored=_ignored_format,
        stands_for=_number_keywords,
        is_built=True,
        is_heavy=True,
        spelling=SPELLINGS.get,
    ),
)
