"""Regular expressions in keywords (`pattern`, `patternProperties`): their terms, and a note where ECMA-262 would refuse them."""

from __future__ import annotations

from functools import lru_cache

from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.pattern.ecma_pattern import ecma_search, read_loosely
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
        return ecma_search(pattern, json_spelling, pointer=pointer)  # raises again, with the position


@lru_cache(maxsize=256)
def _found(pattern: str) -> Node:
    """Cached, as large schemas repeat the same few patterns: azure-pipelines.json has 6,000 of them in 67,000 places."""
    return ecma_search(pattern, json_spelling)


def loose_reading(pattern: str, limits: Limits) -> tuple[str, ...]:
    """A note on a pattern that was read though ECMA-262 refuses it with the `u` flag."""
    loose = read_loosely(pattern) if len(pattern) <= limits.max_pattern_length else ()
    return (f"ECMA-262 refuses it with the `u` flag: {', '.join(loose)}",) if loose else ()
