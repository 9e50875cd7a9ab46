"""`SchemaCheck`: validates a complete JSON value by `jsonschema-rs`, for subschemas that the automaton only over-approximates. It has a
conjunction of subschemas, possibly negated, which the validator reads offline as JSON-pointer references into the schema document; keywords
of older drafts are rewritten for it (`translation.py`), and where a pattern might make it backtrack, `matching.py` matches `pattern`
instead. It cannot check negated single keywords and those of Python types (`is_checkable`): then the value around is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import quote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.schema import matching
from fsm.schema.documents.document import Document
from fsm.schema.documents.translation import Translation, needs_translation
from fsm.schema.keywords.keyword import KEYWORDS, Keyword
from fsm.schema.keywords.value import TextLanguage
from fsm.schema.places.dialect import LATEST
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.schema.places.shape import Inside, escape


def is_checkable(places: Conjunction) -> bool:
    """True when the validator can test these places: no negated single keyword and no keyword of a Python type is among them."""
    return not any(
        isinstance(place.schema, NegatedKeyword) or place.has_any(KEYWORDS.of_python_types) for place in places
    )


class SchemaCheck:
    """The condition that a value satisfies the schemas at all of some places of a document, or their negations.

    Args:
        document: the document of the places.
        places: the schemas, all of which must be satisfied; a place may be negated.

    Cost: some 10 us per check; the validator is made at the first one.
    """

    telling_bytes: ClassVar = frozenset[int]()

    def __init__(self, document: Document, places: Conjunction) -> None:
        self._document, self._places = document, places

    def holds(self, data: bytes) -> bool:
        """True when the value that `data` spells in JSON is valid.

        Raises:
            BudgetExceeded: a pattern takes too many steps of backtracking to be decided; see `matching.py`.
        """
        return matching.is_valid(self._validator, json.loads(data))

    def fault(self, data: bytes) -> int | None:
        """Always None: the validator needs a complete value."""
        return None

    @cached_property
    def _validator(self) -> Any:
        document, asserts = self._document, self._document.asserts_format
        wanted = _plain([self._reference(place) for place in self._places], asserts)
        dialect = LATEST if self._translation else document.dialect
        root = _plain(document.schema if self._translation is None else self._translation.root, asserts)
        if isinstance(root, dict):
            root["$schema"] = dialect.metaschema  # in place of its own
        resources = {at.removesuffix("#"): _plain(schema, asserts) for at, schema in document.registry.items()}
        resources[document.resources.uri.removesuffix("#")] = root  # in place of one in the registry
        draft = getattr(jsonschema_rs, _DRAFTS[dialect.name])
        keywords: dict[str, Any] = {keyword.name: _own_keyword(keyword) for keyword in KEYWORDS.with_accepts}
        if matching.may_backtrack(json.dumps([wanted, resources])):
            keywords["pattern"] = matching.PatternKeyword
        try:
            return jsonschema_rs.validator_for(
                {"$schema": dialect.metaschema, "allOf": wanted},
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
        """The root in keywords of draft 2020-12; None where the document needs no translation."""
        root, dialect = self._document.schema, self._document.dialect
        return Translation(root, dialect) if needs_translation(root, dialect) else None

    def _reference(self, place: Place) -> Any:
        assert not isinstance(place.schema, NegatedKeyword)  # see `is_checkable`
        schema = self._located(place.schema, place)
        return {"not": schema} if place.negated else schema

    def _located(self, schema: Any, place: Place) -> Any:
        """A reference to where a schema of `place` is; of one that is in no document, a copy whose parts and `$ref`s have their base."""
        if isinstance(schema, list):
            return [self._located(part, place) for part in schema]
        if not isinstance(schema, dict):
            return schema
        document, translation = self._document, self._translation
        uri = document.resources.uri
        found = translation.pointer_to(schema) if translation else _pointer(document.schema, schema)
        for name, other in document.registry.items():
            if found is None and (found := _pointer(other, schema)) is not None:
                uri = name
        if found is not None:
            return {"$ref": f"{uri.partition('#')[0]}#{found}"}
        copy = {name: value for name, value in schema.items() if name in KEYWORDS.enforced}
        for name, value in copy.items():
            inside = KEYWORDS.inside(name)
            if name == "$ref":
                moved = translation.moved(value) if translation else value
                copy[name] = document.resources.absolute(moved, place.scope or document.resources.scope())
            elif inside is Inside.SCHEMA_MAP:
                copy[name] = {key: self._located(part, place) for key, part in value.items()}
            elif inside in (Inside.SCHEMA, Inside.SCHEMA_LIST):
                copy[name] = self._located(value, place)
        return copy

    def __str__(self) -> str:
        return f"the value satisfies the schema at {', '.join(reference(place.pointer) for place in self._places)}"


def _own_keyword(keyword: Keyword) -> Any:
    """A keyword that no draft defines, as a factory for the validator."""

    def validate(value: Any, instance: Any) -> None:
        if not keyword.takes(value, instance):
            raise ValueError(f"`{keyword.name}` does not accept it")

    return lambda parent, value, path: SimpleNamespace(validate=partial(validate, value))


_DRAFTS = {
    "draft/2020-12": "Draft202012",
    "draft/2019-09": "Draft201909",
    "draft-07": "Draft7",
    "draft-06": "Draft6",
    "draft-04": "Draft4",
}
_SAFE = "%/:?#@!$&'()*+,;=~-._"  # what a URI may contain unescaped, together with letters and digits


def _pointer(root: Any, wanted: Any) -> str | None:
    """The JSON pointer to this very object (by identity), or None; booleans are not found, as they have no identity."""
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


def _plain(schema: Any, asserts_format: bool) -> Any:
    """A copy of a schema in the form that the validator requires.

    It has ints and floats instead of `Decimal`s, references as valid URIs (`#/$defs/Row<Cell>`, as in generated schemas, is
    percent-encoded), and an additional member of `allOf` for each number format, such as `int32`, which the validator does not support.
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
            for name, stands_for in KEYWORDS.with_equivalent if asserts_format else ():
                equivalent = stands_for(part[name]) if isinstance(part.get(name), str) else {}
                if equivalent:
                    part["allOf"] = [*part.get("allOf", ()), equivalent]
    return copy


def _float(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.adjusted() < 40 else float(value)
    if isinstance(value, TextLanguage):  # the code of the Python type checks it
        return True
    raise TypeError(f"expected a JSON value, received {type(value).__name__}")
