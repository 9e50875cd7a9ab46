"""Paths of JSON values, such as `address.city` or `items[0].name` (names are not escaped): `leaves` lists the scalars and empty containers
of a parsed document, and `byte_ranges` the byte range of each in its text, as they stand there in the same order. `field_of`: a path
without the numbers of items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# A key; or, as a group, a scalar or an empty object or list.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"(?=\s*:)|("(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[^\s,:{}\[\]"]+)', re.DOTALL)


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object, of which several may have one name."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Members)


def leaves(value: Any) -> dict[str, Any]:
    """Return the scalars, empty objects and empty lists inside a value by their paths; the path of a scalar itself is empty."""
    return dict(_leaves(value))


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if item and isinstance(item, dict | _Members):
            members = list(item.items() if isinstance(item, dict) else item)
            stack += [(f"{path}.{name}" if path else name, inner) for name, inner in reversed(members)]
        elif item and isinstance(item, list):
            stack += [(f"{path}[{at}]", inner) for at, inner in reversed([*enumerate(item)])]
        else:
            yield path, item


def byte_ranges(text: bytes) -> dict[str, tuple[int, int]]:
    """Return the byte range of each value of `leaves` in a JSON text: its first byte, and the one after its last.

    What follows the value, such as the bytes of an end token, is left out. Cost: about 1 us per value.
    """
    value, _ = _DECODER.raw_decode(text.decode("utf-8", "replace").lstrip())
    spans = (match.span(1) for match in _TOKEN.finditer(text) if match.group(1))
    return {path: span for (path, _), span in zip(_leaves(value), spans, strict=False)}


def field_of(path: str) -> str:
    """Return a path without the numbers of list items, so that values of different records have it in common."""
    return re.sub(r"\[\d+\]", "[]", path)
