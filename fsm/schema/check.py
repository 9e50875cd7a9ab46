"""Checks: what a schema asks and no automaton holds, asked of a value when its text is complete.

A check takes the text of one value. The validator is the library `jsonschema-rs`, which is told that formats count or not as the
automaton is, and never fetches anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.schema import matching
from fsm.schema.keyword import escape
from fsm.schema.place import Conjunction, Place

if TYPE_CHECKING:
    from fsm.schema.document import Document


_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+')
"""What JSON text is made of; an unfinished string is left out, an unfinished number is found as it is."""


def _scan(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (depth, position, part) for the parts of the beginning of a JSON text; the depth is that inside of brackets."""
    depth = 0
    for found in _PARTS.finditer(data):
        part = found.group()
        if part in (b"}", b"]"):
            depth -= 1
        yield depth, found.start(), part
        if part in (b"{", b"["):
            depth += 1


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """The object itself has no key twice, however it is spelled; the objects inside are asked for themselves."""

    def holds(self, data: bytes) -> bool:
        """True when the JSON text `data` repeats no key."""
        return self.fault(data) is None

    def fault(self, data: bytes) -> int | None:
        """Where the first key begins that was there before. Cost: some 50 us per kB."""
        keys, before = set[str](), (0, b"")
        for depth, position, part in _scan(data):
            if depth == 1 and part == b":":
                key = json.loads(before[1])
                if key in keys:
                    return before[0]
                keys.add(key)
            before = position, part
        return None

    def __str__(self) -> str:
        return "no key comes twice in an object"


DISTINCT_KEYS = DistinctKeys()


@dataclass(frozen=True, slots=True)
class DistinctItems:
    """No two items of the array are equal, as JSON compares values: 1 and 1.0 are equal, 1 and true are not."""

    pointer: str

    def holds(self, data: bytes) -> bool:
        """True when the JSON text `data` repeats no item."""
        return self.fault(data) is None

    def fault(self, data: bytes) -> int | None:
        """Where the first item begins that was there before. Cost: some 50 us per kB, and one parse of each item."""
        seen, start = set[Any](), 1
        for depth, position, part in _scan(data):
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
    """What is equal for JSON values that are equal."""
    if isinstance(value, dict):
        return "object", frozenset((key, comparable(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(comparable, value))
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return kind, value


@dataclass(frozen=True, slots=True, eq=False)
class TypeCheck:
    """Python code of a type (a validator function, a `__post_init__`) accepts the value.

    Attributes:
        name: what it is, for people.
        validate: takes JSON text; raises `ValueError` where the value is not accepted.
    """

    name: str
    validate: Callable[[bytes], Any]

    def holds(self, data: bytes) -> bool:
        """True when the code accepts the value."""
        try:
            self.validate(data)
        except ValueError:
            return False
        return True

    def fault(self, data: bytes) -> int | None:
        """Nothing: the code looks at whole values."""
        return None

    def __str__(self) -> str:
        return f"{self.name} accepts the value"


def is_checkable(places: Conjunction) -> bool:
    """True when these places can be told to a validator: each is a part of a document, asked for or not."""
    return all(not isinstance(place.schema, dict) or "\0" not in "".join(place.schema) for place in places)


class SchemaCheck:
    """A value satisfies the schemas at some places of a document.

    Args:
        document: where the places are.
        places: what holds together.

    Cost: some 10 us per check; the validator is made at the first one.
    """

    def __init__(self, document: Document, places: Conjunction) -> None:
        self._document, self._places = document, places

    def holds(self, data: bytes) -> bool:
        """True when the value that `data` spells in JSON is valid.

        Raises:
            BudgetExceeded: a pattern takes too many steps of backtracking to tell; see `matching.py`.
        """
        return matching.is_valid(self._validator, json.loads(data))

    def fault(self, data: bytes) -> int | None:
        """Nothing: the validator looks at whole values."""
        return None

    @cached_property
    def _validator(self) -> Any:
        document = self._document
        wanted = _with_proper_references([self._reference(place) for place in self._places])
        resources = {uri.removesuffix("#"): plain(schema) for uri, schema in document.registry.items()}
        resources[document.resources.uri.removesuffix("#")] = plain(document.root.schema)  # whatever the registry says
        dialect = document.dialect
        draft = getattr(jsonschema_rs, _DRAFTS[dialect.name])
        backtracks = matching.may_backtrack(json.dumps([wanted, resources]))
        try:
            return jsonschema_rs.validator_for(
                {"$schema": f"{_SCHEMES[dialect.name]}://json-schema.org/{dialect.name}/schema", "allOf": wanted},
                registry=jsonschema_rs.Registry(list(resources.items()), draft=draft),
                validate_formats=document.asserts_format,
                offline=True,
                keywords={"pattern": matching.Pattern} if backtracks else None,
            )
        except (jsonschema_rs.ValidationError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            raise SchemaError(
                f"the validator does not take this schema, though a part of it must be checked: {problem}. Correct it, or "
                "write the part without what is only checked",
                self._places[0].pointer if self._places else "",
            ) from None

    def _reference(self, place: Place) -> Any:
        document = self._document
        found = next(_pointers(document.root.schema, place.schema), None)
        uri = document.resources.uri
        if found is None:
            for name, schema in document.registry.items():
                found = next(_pointers(schema, place.schema), None)
                if found is not None:
                    uri = name
                    break
        schema = plain(place.schema) if found is None else {"$ref": f"{uri.partition('#')[0]}#{found}"}
        return {"not": schema} if place.negated else schema

    def __str__(self) -> str:
        return f"the value satisfies the schema at {', '.join(reference(place.pointer) for place in self._places)}"


_DRAFTS = {
    "draft/2020-12": "Draft202012",
    "draft/2019-09": "Draft201909",
    "draft-07": "Draft7",
    "draft-06": "Draft6",
    "draft-04": "Draft4",
}
_SAFE = "%/:?#@!$&'()*+,;=~-._"  # what a URI may hold as it is, beside letters and digits
_SCHEMES = {name: "https" if "/" in name else "http" for name in _DRAFTS}


def _pointers(root: Any, wanted: Any) -> Iterator[str]:
    """Pointers to this very object."""
    stack = [(root, "")]
    while stack:
        node, pointer = stack.pop()
        if node is wanted and not isinstance(node, bool):
            yield pointer
        below: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            below = node.items()
        elif isinstance(node, list):
            below = enumerate(node)
        stack += [(child, f"{pointer}/{escape(str(key))}") for key, child in below]


def plain(value: Any) -> Any:
    """A schema as the validator wants it: without `Decimal`s, and with references that are proper URIs."""
    return _with_proper_references(json.loads(json.dumps(value, default=_float)))


def _with_proper_references(value: Any) -> Any:
    """The same with `#/$defs/Row<Cell>` percent-encoded, as generated schemas often leave it."""
    if isinstance(value, list):
        return [_with_proper_references(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: quote(part, safe=_SAFE)
        if key == "$ref" and isinstance(part, str)
        else (part if key in ("enum", "const") else _with_proper_references(part))
        for key, part in value.items()
    }


def _float(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.adjusted() < 40 else float(value)
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
