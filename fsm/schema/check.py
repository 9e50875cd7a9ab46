"""Checks: what a schema asks and no automaton holds, asked of a value when its text is complete.

A check takes the text of one value. The validator is the library `jsonschema-rs`, which is told that formats count or not as the
automaton is, and never fetches anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from fsm.schema.keyword import escape
from fsm.schema.place import Conjunction, Place

if TYPE_CHECKING:
    from fsm.schema.document import Document


class _Repeated(Exception):
    """A key that an object has twice."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Repeated
    return found


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """No object has a key twice, however it is spelled."""

    def holds(self, data: bytes) -> bool:
        """True when the JSON text `data` repeats no key."""
        try:
            json.loads(data, object_pairs_hook=_distinct)
        except _Repeated:
            return False
        return True

    def __str__(self) -> str:
        return "no key comes twice in an object"


DISTINCT_KEYS = DistinctKeys()


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
        """True when the value that `data` spells in JSON is valid."""
        return self._validator.is_valid(json.loads(data))

    @cached_property
    def _validator(self) -> Any:
        document = self._document
        wanted = [self._reference(place) for place in self._places]
        resources = [(document.resources.uri, plain(document.root.schema))]
        resources += [(uri, plain(schema)) for uri, schema in document.registry.items()]
        dialect = document.dialect
        draft = getattr(jsonschema_rs, _DRAFTS[dialect.name])
        registry = jsonschema_rs.Registry(resources, draft=draft)
        return jsonschema_rs.validator_for(
            {"$schema": f"{_SCHEMES[dialect.name]}://json-schema.org/{dialect.name}/schema", "allOf": wanted},
            registry=registry,
            validate_formats=document.asserts_format,
            offline=True,
        )

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
        return f"the value satisfies the schema at {', '.join('#' + place.pointer for place in self._places)}"


_DRAFTS = {
    "draft/2020-12": "Draft202012",
    "draft/2019-09": "Draft201909",
    "draft-07": "Draft7",
    "draft-06": "Draft6",
    "draft-04": "Draft4",
}
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
    """A schema without `Decimal`s, which the validator does not know."""
    return json.loads(json.dumps(value, default=_float))


def _float(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.adjusted() < 40 else float(value)
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
