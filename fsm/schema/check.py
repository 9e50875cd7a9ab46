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
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.schema import matching
from fsm.schema.documents.dialect import LATEST
from fsm.schema.documents.place import Conjunction, Place
from fsm.schema.documents.translation import Translation, needs_translation
from fsm.schema.formats.table import NUMBER_FORMATS
from fsm.schema.keyword import Text, escape

if TYPE_CHECKING:
    from fsm.schema.documents.document import Document


_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|(?P<unfinished>"[\s\S]*)|[{}\[\]:,]|[^\s"{}\[\]:,]+')
"""What JSON text is made of; an unfinished string is left out, an unfinished number is found as it is."""


def _scan(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (depth, position, part) for the parts of the beginning of a JSON text; the depth is that inside of brackets."""
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
    """The object itself has no key twice, however it is spelled; the objects inside are asked for themselves."""

    telling_bytes: ClassVar = frozenset(b":")

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
    telling_bytes: ClassVar = frozenset(b",]")

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
    telling_bytes: ClassVar = frozenset[int]()

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

    telling_bytes: ClassVar = frozenset[int]()

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
        document, asserts = self._document, self._document.asserts_format
        wanted = _with_proper_references([self._reference(place) for place in self._places])
        document_to_validate = document.root.schema if self._translation is None else self._translation.root
        name = LATEST.name if self._translation else document.dialect.name
        uri = f"{_SCHEMES[name]}://json-schema.org/{name}/schema"
        root = plain(document_to_validate, asserts_format=asserts)
        if isinstance(root, dict):
            root["$schema"] = uri  # whatever it names itself
        resources = {
            uri.removesuffix("#"): plain(schema, asserts_format=asserts) for uri, schema in document.registry.items()
        }
        resources[document.resources.uri.removesuffix("#")] = root  # whatever the registry says
        draft = getattr(jsonschema_rs, _DRAFTS[name])
        backtracks = matching.may_backtrack(json.dumps([wanted, resources]))
        try:
            return jsonschema_rs.validator_for(
                {"$schema": uri, "allOf": wanted},
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

    @cached_property
    def _translation(self) -> Translation | None:
        """The root in words that the validator knows; None where it has no others."""
        root, dialect = self._document.root.schema, self._document.dialect
        return Translation(root, dialect) if needs_translation(root, dialect) else None

    def _reference(self, place: Place) -> Any:
        document, translation = self._document, self._translation
        uri = document.resources.uri
        found = translation.pointer_to(place.schema) if translation else _pointer(document.root.schema, place.schema)
        if found is None:
            for name, other in document.registry.items():
                found = _pointer(other, place.schema)
                if found is not None:
                    uri = name
                    break
        if found is not None:
            schema: Any = {"$ref": f"{uri.partition('#')[0]}#{found}"}
        else:
            read = place.schema if translation is None else Translation(place.schema, document.dialect).root
            schema = plain(read, asserts_format=document.asserts_format)
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


def _pointer(root: Any, wanted: Any) -> str | None:
    """A pointer to this very object."""
    stack = [(root, "")]
    while stack:
        node, pointer = stack.pop()
        if node is wanted and not isinstance(node, bool):
            return pointer
        below: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            below = node.items()
        elif isinstance(node, list):
            below = enumerate(node)
        stack += [(child, f"{pointer}/{escape(str(key))}") for key, child in below]
    return None


def plain(value: Any, *, asserts_format: bool = False) -> Any:
    """A schema as the validator wants it: without `Decimal`s, references proper URIs, formats of numbers in other keywords."""
    made = _with_proper_references(json.loads(json.dumps(value, default=_float)))
    return _with_bounds_for_formats(made) if asserts_format else made


def _with_bounds_for_formats(value: Any) -> Any:
    """The same with what formats such as `int32` say in one more member of `allOf`, as the validator does not know them."""
    if isinstance(value, list):
        return [_with_bounds_for_formats(part) for part in value]
    if not isinstance(value, dict):
        return value
    made = {key: part if key in ("enum", "const") else _with_bounds_for_formats(part) for key, part in value.items()}
    name = value.get("format")
    said = NUMBER_FORMATS.get(name) if isinstance(name, str) else None
    return made | {"allOf": [*made.get("allOf", ()), said]} if said else made


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
    if isinstance(value, Text):  # what a Python type says in a term, its own code says again
        return True
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
