"""Paths of JSON values, such as `address.city` or `items[0].name` (names are not escaped): `leaves` lists the scalars and empty containers
of a parsed document, and `byte_ranges` the byte range of each in its text, which may be truncated, by a tokenizing regular expression and
an explicit stack (no recursion). `field_of`: a path without the numbers of items.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s,:{}\[\]"]+', re.DOTALL)


def leaves(value: Any) -> dict[str, Any]:
    """Return the scalars, empty objects and empty lists inside a value by their paths; the path of a scalar itself is empty."""
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict) and item:
            stack += [(_member(path, name), inner) for name, inner in reversed(item.items())]
        elif isinstance(item, list) and item:
            stack += [(f"{path}[{at}]", inner) for at, inner in reversed([*enumerate(item)])]
        else:
            found[path] = item
    return found


def byte_ranges(text: bytes) -> dict[str, tuple[int, int]]:
    """Return the byte range of each value of `leaves` in a JSON text: its first byte, and the one after its last.

    Of a text that was cut, those that are whole. Cost: about 1 us per value; no recursion.
    """
    found: dict[str, tuple[int, int]] = {}
    # For each object and list that is open its path, and the next key or number.
    stack: list[tuple[str, str | int | None]] = []
    empty: int | None = None  # where an object or a list began that has no member yet
    for match in _TOKEN.finditer(text):
        (start, end), token = match.span(), match.group()
        begun, empty = empty, None
        if token in b"{[":
            stack.append((_here(stack), None if token == b"{" else 0))
            empty = start
        elif token in b"}]":
            if not stack:
                break
            path, _ = stack.pop()
            if begun is not None:
                found[path] = (begun, end)
            _advance(stack)
        elif stack and stack[-1][1] is None:
            name = str(json.loads(token)) if token.startswith(b'"') else token.decode("utf-8", "replace")
            stack[-1] = (stack[-1][0], name)
        else:
            found[_here(stack)] = (start, end)
            _advance(stack)
    return found


def field_of(path: str) -> str:
    """Return a path without the numbers of list items, so that values of different records have it in common."""
    return re.sub(r"\[\d+\]", "[]", path)


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _here(stack: list[tuple[str, str | int | None]]) -> str:
    """Return the path of the value that follows."""
    if not stack:
        return ""
    path, at = stack[-1]
    return f"{path}[{at}]" if isinstance(at, int) else _member(path, at or "")


def _advance(stack: list[tuple[str, str | int | None]]) -> None:
    """Move to the next key or item after the end of a value."""
    if stack:
        path, at = stack[-1]
        stack[-1] = (path, at + 1 if isinstance(at, int) else None)
