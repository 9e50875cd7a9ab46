"""Combinators for the grammars of formats: terms of literals, choices, sequences and counts of ASCII characters in a JSON string."""

from __future__ import annotations

import string

from fsm.terms import node as nodes
from fsm.terms.characters import json_spelling
from fsm.terms.node import Node


def text(characters: str) -> Node:
    """Exactly these ASCII characters, none of which a JSON string escapes."""
    return nodes.literal(characters.encode())


def one_of(characters: str) -> Node:
    """One of these ASCII characters."""
    return json_spelling(tuple(sorted((ord(c), ord(c)) for c in characters)))


def either(*options: Node) -> Node:
    """Any of the options."""
    return nodes.alternation(options)


def joined(*parts: Node) -> Node:
    """The parts one after the other."""
    return nodes.sequence(parts)


def times(part: Node, lo: int, hi: int | None = None) -> Node:
    """`part` from `lo` to `hi` times; without `hi` exactly `lo` times."""
    return nodes.repeat(part, lo, lo if hi is None else hi)


DIGIT = one_of(string.digits)
HEX = one_of(string.hexdigits)
LETTERS_DIGITS = string.ascii_letters + string.digits


def two_digits(lo: int, hi: int) -> Node:
    """The two-digit numbers from `lo` to `hi`."""
    return nodes.words(b"%02d" % n for n in range(lo, hi + 1))
