"""The keywords of strings and numbers, as `Keyword` objects: counts of characters, `pattern`, `format`, bounds, `multipleOf`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import ecma_search
from fsm.schema.formats.number_format import NUMBER_FORMATS
from fsm.schema.formats.table import SPELLINGS, format_node
from fsm.schema.keywords.keyword import NUMERIC, STRING, Failure, Keyword, count_bounds, negated
from fsm.schema.places.place import NegatedKeyword, Place
from fsm.schema.places.shape import DIVISOR, NUMBER, TEXT
from fsm.terms.characters import json_spelling
from fsm.terms.node import Node


def pattern_node(pattern: str, pointer: str, limits: Limits) -> Node:
    """The inside of the strings in which a pattern is found.

    Raises:
        SchemaError: it is malformed.
        NotRegular: it is not regular.
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


def _format_language(name: str, pointer: str, limits: Limits) -> Node | None:
    return None if name in NUMBER_FORMATS else format_node(name)


def _format_failures(keyword: Keyword, place: Place, name: str) -> Iterator[Failure]:
    """A format of numbers fails as the keywords do that it stands for."""
    if name not in NUMBER_FORMATS:
        yield (NegatedKeyword(keyword.name, name, STRING),)
    for said, value in NUMBER_FORMATS.get(name, {}).items():
        yield from _NUMBERS[said].failures(_NUMBERS[said], place, value)


def _bound(name: str, opposite: str, since: str = "draft-04") -> Keyword:
    """A bound, which fails where the opposite one holds."""

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

STRINGS = (
    *count_bounds("minLength", "maxLength", STRING),
    Keyword(
        "pattern",
        TEXT,
        STRING,
        since="draft-04",
        language=pattern_node,
        patterns=lambda pattern: (pattern,),
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
        is_built=True,
        is_heavy=True,
        spelling=SPELLINGS.get,
    ),
)
