"""`DistinctKeys`, `DistinctItems`, `TypeCheck`: checks of one value from its JSON text: no repeated key, no equal items, Python code. The
first two scan the tokens of the text, complete or not, with a set of the keys or items so far (`comparable` as JSON values): they can fail
at a `:`, or a `,` or `]`. `TypeCheck` calls validators of Python types on complete values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fsm.errors import reference

_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|(?P<unfinished>"[\s\S]*)|[{}\[\]:,]|[^\s"{}\[\]:,]+')
"""The tokens of JSON text; an unfinished string is skipped, an unfinished number is a token."""


def scan(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (depth, position, token) for the tokens of the beginning of a JSON text; a bracket has the depth outside of it."""
    depth = 0
    for found in _PARTS.finditer(data):
        if found.lastgroup:
            return
        part = found.group()
        if part in (b"}", b"]"):
            depth -= 1
        yield depth, found.start(), part
        if part in (b"{", b"["):
            depth += 1


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """The condition that no key of the object is repeated, in any spelling; nested objects have their own checks."""

    telling_bytes: ClassVar = frozenset(b":")

    def holds(self, data: bytes) -> bool:
        """True when the JSON text `data` repeats no key."""
        return self.fault(data) is None

    def fault(self, data: bytes) -> int | None:
        """The position of the first repeated key. Cost: some 50 us per kB."""
        keys, before = set[str](), (0, b"")
        for depth, position, part in scan(data):
            if depth == 1 and part == b":":
                key = json.loads(before[1])
                if key in keys:
                    return before[0]
                keys.add(key)
            before = position, part
        return None

    def __str__(self) -> str:
        return "no key is repeated in an object"


DISTINCT_KEYS = DistinctKeys()


@dataclass(frozen=True, slots=True)
class DistinctItems:
    """The condition that no two items of the array are equal as JSON values: 1 and 1.0 are equal, 1 and true are not."""

    pointer: str
    telling_bytes: ClassVar = frozenset(b",]")

    def holds(self, data: bytes) -> bool:
        """True when the JSON text `data` repeats no item."""
        return self.fault(data) is None

    def fault(self, data: bytes) -> int | None:
        """The position of the first repeated item. Cost: some 50 us per kB, and one parse of each item."""
        seen, start = set[Any](), 1
        for depth, position, part in scan(data):
            if (depth == 1 and part == b",") or (depth == 0 and part == b"]"):
                text = data[start:position]
                item = comparable(json.loads(text)) if text.strip() else None
                if item is not None and item in seen:
                    return start + len(text) - len(text.lstrip())
                seen.add(item)
                start = position + 1
        return None

    def __str__(self) -> str:
        return f"no two items are equal (`uniqueItems` at {reference(self.pointer)!r})"


def comparable(value: Any) -> tuple[str, Any]:
    """A hashable form of a JSON value, equal for equal values."""
    if isinstance(value, dict):
        return "object", frozenset((key, comparable(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(comparable, value))
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return kind, value


@dataclass(frozen=True, slots=True, eq=False)
class TypeCheck:
    """The condition that Python code of a type (a validator function, a `__post_init__`) accepts the value.

    Attributes:
        name: a name for messages.
        validate: takes JSON text; raises `ValueError` if the value is not accepted.
    """

    name: str
    validate: Callable[[bytes], Any]
    telling_bytes: ClassVar = frozenset[int]()

    def holds(self, data: bytes) -> bool:
        """True when the code accepts the value."""
        try:
            self.validate(data)
        except ValueError:
            return False
        return True

    def fault(self, data: bytes) -> int | None:
        """Always None: the code needs a complete value."""
        return None

    def __str__(self) -> str:
        return f"{self.name} accepts the value"
