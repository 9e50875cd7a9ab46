"""Special tokens, such as `<|tool|>`, as symbols of languages over bytes: `symbol` writes one as its name between two bytes 0xFF. UTF-8 has
no such byte, so that no text contains a symbol, none is a part of another, and letters never spell one. `without` removes symbols, as
special tokens have no letters, and `divided` separates them from the text around them.
"""

from __future__ import annotations

import re

MARK = b"\xff"
_SYMBOL = re.compile(rb"\xff([^\xff]*)\xff")


def symbol(name: str) -> bytes:
    """Return how terms write the special token of a name."""
    return MARK + name.encode() + MARK


def without(data: bytes) -> bytes:
    """Return a text without its special tokens."""
    return _SYMBOL.sub(b"", data) if MARK in data else data


def divided(data: bytes) -> list[bytes]:
    """Return text and names of special tokens in alternation, text first and last; a symbol that is not complete at the end is left out."""
    parts = data.split(MARK)
    return parts if len(parts) % 2 else parts[:-1]
