"""Checks: what a schema asks and no automaton holds, asked of a value when its text is complete.

A check takes the text of one value. The validator is the library `jsonschema-rs`, which is told that formats count or not as the
automaton is, and never fetches anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import quote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.schema import matching
from fsm.schema.documents.translation import Translation, needs_translation
from fsm.schema.formats.number_format import NUMBER_FORMATS
from fsm.schema.keywords.keyword import KEYWORDS, Keyword
from fsm.schema.keywords.python_type import Text
from fsm.schema.places.dialect import LATEST
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.schema.places.schema_document import SchemaDocument
from fsm.schema.places.shape import escape


def is_checkable(places: Conjunction) -> bool:
    """True when these places can be told to a validator: each is a part of a document, asked for or not."""
    return not any(isinstance(place.schema, NegatedKeyword) or place.says(KEYWORDS.of_python_types) for place in places)


class SchemaCheck:
    """A value satisfies the schemas at some places of a document.

    Args:
        document: where the places are.
        places: what holds together.
        search: makes terms of patterns.

    Cost: some 10 us per check; the validator is made at the first one.
    """

    telling_bytes: ClassVar = frozenset[int]()

    def __init__(self, document: SchemaDocument, places: Conjunction, search: matching.Search) -> None:
        self._document, self._places, self._search = document, places, search

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
        wanted = plain([self._reference(place) for place in self._places], asserts_format=asserts)
        name = LATEST.name if self._translation else document.dialect.name
        uri = f"{_SCHEMES[name]}://json-schema.org/{name}/schema"
        root = plain(document.schema if self._translation is None else self._translation.root, asserts_format=asserts)
        if isinstance(root, dict):
            root["$schema"] = uri  # whatever it names itself
        given = document.registry.items()
        resources = {at.removesuffix("#"): plain(schema, asserts_format=asserts) for at, schema in given}
        resources[document.resources.uri.removesuffix("#")] = root  # whatever the registry says
        draft = getattr(jsonschema_rs, _DRAFTS[name])
        keywords = {keyword.name: _own_keyword(keyword) for keyword in KEYWORDS.with_accepts}
        if matching.may_backtrack(json.dumps([wanted, resources])):
            keywords["pattern"] = matching.pattern_keyword(self._search)
        try:
            return jsonschema_rs.validator_for(
                {"$schema": uri, "allOf": wanted},
                registry=jsonschema_rs.Registry(list(resources.items()), draft=draft),
                validate_formats=asserts,
                offline=True,
                keywords=keywords,
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
        root, dialect = self._document.schema, self._document.dialect
        return Translation(root, dialect) if needs_translation(root, dialect) else None

    def _reference(self, place: Place) -> Any:
        document, translation = self._document, self._translation
        assert not isinstance(place.schema, NegatedKeyword)  # see `is_checkable`
        uri = document.resources.uri
        found = translation.pointer_to(place.schema) if translation else _pointer(document.schema, place.schema)
        for name, other in document.registry.items():
            if found is None and (found := _pointer(other, place.schema)) is not None:
                uri = name
        if found is not None:
            schema: Any = {"$ref": f"{uri.partition('#')[0]}#{found}"}
        else:
            schema = place.schema if translation is None else Translation(place.schema, document.dialect).root
        return {"not": schema} if place.negated else schema

    def __str__(self) -> str:
        return f"the value satisfies the schema at {', '.join(reference(place.pointer) for place in self._places)}"


def _own_keyword(keyword: Keyword) -> Any:
    """What the validator calls to make a keyword that is in no draft."""
    return lambda parent, value, path: _OwnKeyword(keyword, value)


class _OwnKeyword:
    """A keyword in a schema, as the validator calls it."""

    def __init__(self, keyword: Keyword, value: Any) -> None:
        self._keyword, self._value = keyword, value

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` where the keyword does not accept a value."""
        if not self._keyword.takes(self._value, instance):
            raise ValueError(f"`{self._keyword.name}` does not accept it")


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
        if isinstance(node, dict | list):
            below = node.items() if isinstance(node, dict) else enumerate(node)
        stack += [(child, f"{pointer}/{escape(str(key))}") for key, child in below]
    return None


def plain(schema: Any, *, asserts_format: bool) -> Any:
    """A copy of a schema as the validator wants it.

    It has no `Decimal`s, references as proper URIs (`#/$defs/Row<Cell>` is percent-encoded, as generated schemas often leave it), and what
    formats such as `int32` say, which the validator does not know, in one more member of `allOf`.
    """
    copy = json.loads(json.dumps(schema, default=_float))
    stack = [copy]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            stack += [below for key, below in part.items() if key not in KEYWORDS.listing]
            if isinstance(part.get("$ref"), str):
                part["$ref"] = quote(part["$ref"], safe=_SAFE)
            name = part.get("format")
            if asserts_format and isinstance(name, str) and NUMBER_FORMATS.get(name):
                part["allOf"] = [*part.get("allOf", ()), NUMBER_FORMATS[name]]
    return copy


def _float(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.adjusted() < 40 else float(value)
    if isinstance(value, Text):  # what a Python type says in a term, its own code says again
        return True
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
