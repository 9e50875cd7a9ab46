"""The terms of any JSON string, of its quotes and characters, and `spelled`: a given string as JSON text, one spelling each."""

from __future__ import annotations

from json.encoder import encode_basestring  # what `json.dumps(value, ensure_ascii=False)` calls, seven times as fast

from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER
from fsm.terms.node import Node

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
