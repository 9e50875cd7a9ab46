"""`Translation`: a copy of a schema document in the keywords of draft 2020-12 (by `in_latest_words`), for the validator, which knows only
its draft. It maps each original subschema to its JSON pointer in the copy, and rewrites local references (`#/...`). The schemas of a
registry are not translated, nor references through other identifiers. `needs_translation` is False if the validator reads the document
correctly.

`SchemaCheck`: validates a complete JSON value by `jsonschema-rs`, for subschemas that the automaton only over-approximates. It has a
conjunction of subschemas, possibly negated, which the validator reads offline as JSON-pointer references into the schema document; keywords
of older drafts are rewritten for it, and patterns are read by `pattern_check.py`. It cannot check negated single keywords and those of
Python types (`is_checkable`): then the value around is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import jsonschema_rs

from fsm.errors import SchemaError, reference
from fsm.pattern.ecma_matcher import MAX_STEPS
from fsm.schema.documents.document import Document, has_older_words, in_latest_words
from fsm.schema.keywords.keyword import KEYWORDS, Keyword
from fsm.schema.keywords.place import Conjunction, Dialect, Inside, NegatedKeyword, Place, Schema, escape, part_at
from fsm.schema.keywords.resource import LATEST
from fsm.schema.keywords.value import TextLanguage
from fsm.schema.pattern_check import KeyPatterns, PatternKeyword, is_plain, is_valid, with_written_keys

NOT_REGULAR = f"the pattern is not regular, so it is matched by backtracking, in at most {MAX_STEPS:,} steps"

_OLDER = ("draft-04", "draft-06", "draft-07")
"""Drafts that have some of the older keywords themselves."""


class Translation:
    """A copy of a document in the keywords of draft 2020-12.

    Args:
        root: the document, which is not changed.
        dialect: its dialect.

    Attributes:
        root: the copy.
    """

    def __init__(self, root: Schema, dialect: Dialect) -> None:
        self._dialect, self._pointers = dialect, dict[int, str]()
        self._before, self._references = root, list[dict[str, Any]]()
        self.root: Schema = self._translated(root)
        for schema in self._references:
            schema["$ref"] = self.moved(schema["$ref"])

    def pointer_to(self, schema: Schema) -> str | None:
        """The pointer in the copy to a schema (an object, by identity) of the document."""
        return self._pointers.get(id(schema))

    def _translated(self, root: Schema) -> Schema:
        top: dict[str, Any] = {}
        todo: list[tuple[Any, Any, Any, str, bool]] = [(top, "", root, "", True)]
        while todo:
            holder, key, value, pointer, is_schema = todo.pop()
            if isinstance(value, list):
                holder[key] = found = list(value)
                parts = ((n, part) for n, part in enumerate(value) if isinstance(part, dict))
                todo += [(found, n, part, f"{pointer}/{n}", True) for n, part in parts]
            elif isinstance(value, dict):
                holder[key] = new = self._in_new_words(value, pointer) if is_schema else dict(value)
                for name, part in list(new.items()):
                    inside = KEYWORDS.inside(name) if is_schema else Inside.SCHEMA
                    if isinstance(part, dict | list) and inside is not Inside.VALUES:
                        at = f"{pointer}/{escape(str(name))}"
                        todo.append((new, name, part, at, inside is not Inside.SCHEMA_MAP))
            else:
                holder[key] = value
        return top[""]  # type: ignore[no-any-return]

    def _in_new_words(self, schema: dict[str, Any], pointer: str) -> dict[str, Any]:
        self._pointers.setdefault(id(schema), pointer)
        new = in_latest_words(schema, self._dialect)
        assert isinstance(new, dict)
        kept = {name: part for name, part in schema.items() if name not in KEYWORDS.enforced and name not in _REMOVED}
        new = {**kept, **new}
        if isinstance(schema.get(self._dialect.identifier), str) and self._dialect.identifier != "$id":
            new["$id"] = schema[self._dialect.identifier]
        if "$recursiveRef" in new:
            new["$ref"] = new.pop("$recursiveRef")
        if isinstance(new.get("$ref"), str):
            self._references.append(new)
        return new

    def moved(self, reference: str) -> str:
        """A local reference as one to the same schema in the copy."""
        node: Any = self._before
        if not reference.startswith("#/"):
            return reference
        for token in unquote(reference[2:]).split("/"):
            try:
                node = part_at(node, token)
            except KeyError:
                return reference
        return f"#{self._pointers[id(node)]}" if id(node) in self._pointers else reference


_REMOVED = frozenset(
    {"id", "$schema", "nullable", "dependencies", "additionalItems", "$recursiveRef", "$recursiveAnchor"}
)


def needs_translation(root: Schema, dialect: Dialect) -> bool:
    """Whether a validator of the draft would read a document differently from this package."""
    if dialect.name.startswith(("draft-03", "openapi")):
        return True
    return any(has_older_words(_without_own_words(schema, dialect)) for schema in KEYWORDS.schemas_inside(root))


def _without_own_words(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The keywords of a schema except those that look older but belong to its draft."""
    if dialect.name not in _OLDER:
        return {name: part for name, part in schema.items() if name != "items" or dialect.name != "draft/2019-09"}
    bounds = ("exclusiveMinimum", "exclusiveMaximum") if dialect.name == "draft-04" else ()
    return {name: part for name, part in schema.items() if name not in ("dependencies", "items", *bounds)}


def is_checkable(places: Conjunction) -> bool:
    """True when the validator can test these places: no negated single keyword and no keyword of a Python type is among them."""
    return not any(
        isinstance(place.schema, NegatedKeyword) or place.has_any(KEYWORDS.of_python_types) for place in places
    )


_MAX_VALIDATORS = 16  # of one check


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
        self._validators = dict[tuple[str, ...], Any]()

    def holds(self, data: bytes) -> bool:
        """True when the value that `data` spells in JSON is valid.

        Raises:
            BudgetExceeded: a pattern takes too many steps of backtracking to be decided; see here.
        """
        value = json.loads(data)
        return is_valid(self._validator_for(value), value)

    def fault(self, data: bytes) -> int | None:
        """Always None: the validator needs a complete value."""
        return None

    def _validator_for(self, value: Any) -> Any:
        """The validator, with the key patterns as they are written for a value."""
        written = self._key_patterns.for_value(value)
        key = tuple(written[pattern] for pattern in self._key_patterns.listed)
        if key not in self._validators:
            if len(self._validators) >= _MAX_VALIDATORS:
                self._validators.clear()
            self._validators[key] = self._validator(written)
        return self._validators[key]

    @cached_property
    def _key_patterns(self) -> KeyPatterns:
        return KeyPatterns(
            (self._root, [self._reference(place) for place in self._places], *self._document.registry.values())
        )

    @property
    def _root(self) -> Any:
        return self._document.schema if self._translation is None else self._translation.root

    def _validator(self, written: dict[str, str]) -> Any:
        document, asserts = self._document, self._document.asserts_format
        wanted = _plain([self._reference(place) for place in self._places], asserts, written)
        dialect = LATEST if self._translation else document.dialect
        root = _plain(self._root, asserts, written)
        if isinstance(root, dict):
            root["$schema"] = dialect.metaschema  # in place of its own
        registry = document.registry.items()
        resources = {at.removesuffix("#"): _plain(schema, asserts, written) for at, schema in registry}
        resources[document.resources.uri.removesuffix("#")] = root  # in place of one in the registry
        draft = getattr(jsonschema_rs, _DRAFTS[dialect.name])
        keywords: dict[str, Any] = {keyword.name: _own_keyword(keyword) for keyword in KEYWORDS.with_accepts}
        if not all(map(is_plain, _patterns(wanted, *resources.values()))):
            keywords["pattern"] = PatternKeyword
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
        """The root in keywords of draft 2020-12; None if the document needs no translation."""
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


def _patterns(*schemas: Any) -> Iterator[str]:
    for schema in schemas:
        for part in KEYWORDS.schemas_inside(schema):
            if isinstance(part.get("pattern"), str):
                yield part["pattern"]


def _plain(schema: Any, asserts_format: bool, written: dict[str, str]) -> Any:
    """A copy of a schema in the form that the validator requires, with some key patterns written in another way.

    It has ints and floats instead of `Decimal`s, references as valid URIs (`#/$defs/Row<Cell>`, as in generated schemas, is
    percent-encoded), and an additional member of `allOf` for each number format, such as `int32`, which the validator does not support.
    """
    copy = json.loads(json.dumps(schema, default=_float))
    for part in KEYWORDS.schemas_inside(copy):
        with_written_keys(part, written)
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
