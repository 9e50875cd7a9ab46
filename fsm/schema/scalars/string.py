"""`string_node`: the JSON strings that satisfy all keywords of some places, as an intersection of length, patterns, formats, and
complements of what is negated or excluded. Lengths are counted repetitions of a character; patterns that are not regular are left to a
check. Also here: the terms of any string, and `spelled`, a given string as JSON text.
"""

from __future__ import annotations

from json.encoder import encode_basestring  # what `json.dumps(value, ensure_ascii=False)` calls, seven times as fast
from typing import Literal

from fsm.errors import NotRegular
from fsm.limits import Limits
from fsm.schema.keywords.keyword import KEYWORDS, counts_at
from fsm.schema.keywords.place import Conjunction, Place, excluded_values, negated_values_of, values_of
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, json_text
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


def string_node(places: Conjunction, *, limits: Limits, left_out: list[tuple[Place, str]]) -> Node:
    """The strings that satisfy all places.

    Args:
        places: the schemas, all of which must be satisfied.
        limits: bounds of compiling.
        left_out: collects the keywords that the term does not enforce.

    Raises:
        SchemaError: a pattern that is malformed or not supported.
        BudgetExceeded: a pattern is too long.
    """
    lo, hi = counts_at(places, "Length")
    if hi is not None and lo > hi:
        return EMPTY
    parts = dict[Node, None]()
    for keyword in KEYWORDS.with_language:
        assert keyword.language is not None
        for is_negated, found in ((False, values_of), (True, negated_values_of)):
            for place, value in found(places, keyword.name):
                try:
                    part = keyword.language(value, place.at(keyword.name), limits)
                except NotRegular:
                    left_out.append((place, keyword.name))
                    continue
                if part is not None:
                    parts[nodes.complement(part) if is_negated else part] = None
    excluded = excluded_values(places)
    if excluded:
        parts[nodes.complement(nodes.words(json_text(v) for v in excluded if isinstance(v, str)))] = None
    if not parts or lo or hi is not None:
        parts[nodes.repeat(JSON_CHARACTER, lo, hi)] = None
    elif not all(part.kind is not nodes.Kind.COMPLEMENT for part in parts):
        parts[CHARACTERS] = None
    return in_quotes(nodes.intersection(parts) if len(parts) > 1 else next(iter(parts)))
