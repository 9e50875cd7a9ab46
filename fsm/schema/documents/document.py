"""`Document`: a schema document whose subschemas are rewritten to draft 2020-12, validated, and resolved, each when it is first met. It
collects the notes for the report: each enforced keyword by its JSON pointer, and remarks on those that are not enforced as written. Where
the author may have meant something else (a misspelling, an unknown format), `strict` makes the remark an error. References are resolved by
`places/resource.py`, those to pointers in the root without it; `make` interns schemas that are not in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import NotRegular, SchemaError, shorten
from fsm.limits import Limits
from fsm.schema.documents.older_word import allows_any_type, in_latest_words
from fsm.schema.keywords.keyword import KEYWORDS, Role
from fsm.schema.keywords.misspelling import meant_by
from fsm.schema.keywords.value import values_at
from fsm.schema.places.dialect import DRAFT_3, LATEST, dialect_named, dialect_of, is_known
from fsm.schema.places.place import Dialect, NegatedKeyword, Place
from fsm.schema.places.resource import Resources
from fsm.schema.places.shape import Schema, check_schema, check_text, expected, part_at
from fsm.terms.characters import json_text
from fsm.terms.node import Check

AnySchema = TypeVar("AnySchema", Schema, Schema | NegatedKeyword)


@dataclass(frozen=True, slots=True)
class Remark:
    """A note on a keyword that is not enforced exactly as written.

    Attributes:
        keyword: its name.
        text: how it was read.
        is_suspect: whether the author may have meant something else; then it is an error with `strict=True`.
    """

    keyword: str
    text: str
    is_suspect: bool = True


class Document:
    """One schema with everything that its references can reach.

    Args:
        root: the schema.
        limits: bounds of compiling.
        registry: schemas by URI.
        asserts_format: whether `format` can reject a value.
        validators: checks by the names that the keywords of Python types give them.
        dialect: the name of the dialect of the root; None: the one that its `$schema` names.
        is_strict: whether a keyword that looks misspelt, an unknown format and the like are errors.

    Attributes:
        keywords: the enforced keywords that were met, by their JSON pointers.
        remarks: notes on keywords, by their JSON pointers.
        is_dynamic: whether some reference depends on the dynamic scope.
    """

    def __init__(
        self,
        root: Schema,
        limits: Limits,
        registry: Mapping[str, Any] | None = None,
        *,
        asserts_format: bool,
        validators: Mapping[str, Check],
        dialect: str | None,
        is_strict: bool,
    ) -> None:
        self.schema, self.root = root, Place(root, "")
        self.limits, self.asserts_format = limits, asserts_format
        self.dialect = dialect_of(root, LATEST, "") if dialect is None else dialect_named(dialect)
        self.keywords: dict[str, str] = {}
        self.remarks: dict[str, Remark] = {}
        self._is_strict, self.is_dynamic = is_strict, False
        self.registry: Mapping[str, Any] = dict(registry or {})
        self.validators = validators
        self._visited: set[int] = set()
        self._normalized: dict[int, Schema] = {}
        self._made: dict[tuple[object, ...], Any] = {}
        self._matches: dict[tuple[str, str], bool | None] = {}
        self._kept: list[Schema] = []
        base = root.get(self.dialect.identifier) if isinstance(root, dict) else None
        self._base = base.rstrip("#") if isinstance(base, str) else None
        if dialect is None:
            self._remark_dialect()

    @cached_property
    def resources(self) -> Resources:
        """The schemas that references can name."""
        return Resources(self.schema, self.registry, self.dialect)

    def dereference(self, place: Place) -> Place:
        """The place itself, or the one that it names where it is nothing but a static reference, so that equal values have equal keys."""
        while place.has_any(KEYWORDS.static_references):
            normalized = self.normalize_draft(place)
            names = normalized.schema.keys() - KEYWORDS.annotations if isinstance(normalized.schema, dict) else ()
            if len(names) != 1 or KEYWORDS.static_references.isdisjoint(names):
                break
            self.check_keywords(normalized)
            place = self.resolve(normalized, *names)
        return place._replace(via=None)

    def normalize_draft(self, place: Place) -> Place:
        """The place with the keywords of draft 2020-12, in the scope of its own resource if it begins one."""
        schema = place.schema
        if not isinstance(schema, dict):
            if not isinstance(schema, NegatedKeyword):
                check_schema(schema, place.pointer)
            return place
        known, scope = self._normalized.get(id(schema)), place.scope
        if scope is None and schema is not self.schema and isinstance(schema.get(self.dialect.identifier), str):
            scope = self.resources.scope()
        if known is not None and scope is None:
            return place if known is schema else place._replace(schema=known)
        dialect = self.dialect
        if scope is not None:
            scope = self.resources.inside(schema, scope)
            dialect = scope.dialect
        if known is None:
            known = self._without_ignored(in_latest_words(schema, dialect), place)
            if known is not schema:
                self._remark_older_words(place, dialect)
            self._normalized[id(schema)] = self._normalized[id(known)] = known
            self._kept += (schema, known)
        return place if known is schema and scope is place.scope else place._replace(schema=known, scope=scope)

    def _without_ignored(self, schema: Schema, place: Place) -> Schema:
        """The schema without keywords whose values reject nothing here, such as an unknown `format`."""
        for name, ignored in KEYWORDS.with_ignored:
            if isinstance(schema, dict) and name in schema:
                reason = ignored(schema[name], self.asserts_format)
                if reason is not None:
                    self._remark(place, name, reason, is_suspect=self.asserts_format)
                    schema = {key: value for key, value in schema.items() if key != name}
        return schema

    def _remark_dialect(self) -> None:
        """Note an unknown metaschema, and take its dialect from the registry if it is there; it must not leave out vocabularies."""
        name = self.root.get("$schema")
        if not isinstance(name, str) or is_known(name):
            return
        given = self.registry.get(name.removesuffix("#"))
        if isinstance(given, dict):
            self.dialect = dialect_of(given, self.dialect, "")
            words = given.get("$vocabulary")
            if isinstance(words, dict) and not any(uri.endswith("/vocab/validation") for uri in words):
                text = f"the metaschema {shorten(name)} leaves out vocabularies of the standard, which is not supported"
                raise SchemaError(f"{text}. Name a draft in `$schema`", "/$schema")
        else:
            text = f"the metaschema {shorten(name)} is not known; the schema is read as one of {self.dialect.name}"
            self._remark(self.root, "$schema", f"{text}. Say which draft it is: `dialect={self.dialect.name!r}`")

    def _remark_older_words(self, place: Place, dialect: Dialect) -> None:
        """Note what is not valid in the dialect, though it could be read in only one way."""
        assert isinstance(place.schema, dict)
        if dialect is not DRAFT_3 and allows_any_type(place.schema):
            text = "'any' is no type since draft 4; it is read as values of any type. Leave `type` out"
            self._remark(place, "type", text)
        if place.schema.get("required") is True and not place.pointer.rpartition("/")[0].endswith("/properties"):
            text = "`required: true` outside of `properties` has no effect. Remove it"
            self._remark(place, "required", text)

    def _remark(self, place: Place, keyword: str, text: str, *, is_suspect: bool = True) -> None:
        """Add a note on a keyword to the report; with `strict`, raise `SchemaError` instead if it is suspect."""
        pointer = place.at(keyword)
        if is_suspect and self._is_strict:
            raise SchemaError(text, pointer)
        self.remarks[pointer] = Remark(keyword, text, is_suspect)

    def make(self, schema: AnySchema, *key: object) -> AnySchema:
        """A schema that is not in the document, interned by a key: the same object at every call, as schemas are compared by identity."""
        made: AnySchema = self._made.setdefault(key, schema)
        if isinstance(made, dict):
            self._normalized[id(made)] = made
            self._visited.add(id(made))
        return made

    def referred(self, place: Place) -> list[Place]:
        """The places that the references of a normalized place name."""
        return [self.resolve(place, keyword.name) for keyword in KEYWORDS.with_roles(place, Role.REFERENCE)]

    def is_found(self, place: Place, pattern: str, name: str) -> bool | None:
        """Whether a pattern of `patternProperties` is found in a key; None: the pattern is not regular."""
        if (pattern, name) not in self._matches:
            try:
                node = KEYWORDS.strings_with(pattern, place.at("patternProperties"), self.limits)
                self._matches[pattern, name] = Automaton(node).accepts(json_text(name))
            except NotRegular:
                self._matches[pattern, name] = None
        return self._matches[pattern, name]

    def resolve(self, place: Place, keyword: str) -> Place:
        """The place that a reference of `place` names.

        Raises:
            SchemaError: it names nothing that is known, or the same schema again for the same value.
        """
        reference, pointer = place.get(keyword), place.at(keyword)
        check_text(reference, pointer)
        found = self._find(place, keyword, reference, pointer)
        check_schema(found.schema, found.pointer)
        normalized = self.normalize_draft(found)
        if any(one.schema is normalized.schema and one.scope == found.scope for one in place.lineage()):
            raise SchemaError(
                f"reference {shorten(reference)} refers to itself for the same value, so that it constrains nothing. "
                "Put the reference inside `properties` or `items`, or remove it",
                pointer,
            )
        self.check_keywords(normalized)
        self.limits.check("max_depth", found.depth, "references in a chain", pointer)
        return found

    def _find(self, place: Place, keyword: str, reference: str, pointer: str) -> Place:
        find, is_dynamic = KEYWORDS[keyword].find, KEYWORDS[keyword].is_dynamic
        if not is_dynamic and place.scope is None and (in_root := self._in_root(reference)) is not None:
            return place.elsewhere(*in_root, None)
        self.is_dynamic |= is_dynamic
        assert find is not None
        schema, scope = find(self.resources, reference, place.scope or self.resources.scope(), pointer)
        at = reference if scope.uri == self.resources.uri else f"{scope.uri}#{reference.partition('#')[2]}"
        return place.elsewhere(schema, at.removeprefix("#"), scope)

    def _in_root(self, reference: str) -> tuple[Schema, str] | None:
        """The schema at a pointer into the root, found without `resources`; None where an identifier might change its meaning."""
        base, _, fragment = reference.partition("#")
        if (base and base != self._base) or (fragment and not fragment.startswith("/")):
            return None
        node: Any = self.schema
        for token in unquote(fragment).split("/")[1:]:
            try:
                node = part_at(node, token)
            except KeyError:
                return None
            if isinstance(node, dict) and isinstance(node.get(self.dialect.identifier), str):
                return None
        return node, unquote(fragment)

    def check_keywords(self, place: Place) -> None:
        """Check the keywords of a normalized place and note them for the report, once.

        Raises:
            SchemaError: a keyword is malformed, or looks misspelt and the caller is strict.
        """
        schema = place.schema
        if id(schema) in self._visited or not isinstance(schema, dict):
            return
        self._visited.add(id(schema))
        start = place.pointer + "/"
        for keyword, value in schema.items():
            if keyword in KEYWORDS.enforced:
                pointer = start + keyword  # none of them needs an escape
                KEYWORDS[keyword].shape.check(value, pointer)
                self.keywords[pointer] = keyword
            elif keyword not in KEYWORDS:
                self._remark_unknown(place, keyword, value)
        for name, remarks in KEYWORDS.with_remarks:
            for text in remarks(schema[name], self.limits) if name in schema else ():
                self._remark(place, name, text, is_suspect=False)
        self.limits.check("max_enum_values", len(values_at(place) or ()), "values of an enum", place.at("enum"))

    def _remark_unknown(self, place: Place, keyword: object, value: object) -> None:
        """Note an unknown keyword, an annotation by the standard, with what it may be meant as; `dependencies` here is malformed."""
        if not isinstance(keyword, str):
            raise expected("a string as keyword", keyword, place.pointer)
        if keyword == "dependencies":
            raise expected("an object whose values are schemas or lists of names", value, place.at(keyword))
        meant = meant_by(keyword, value)
        text = f"unknown keyword {shorten(keyword)}, which rejects nothing"
        if meant is not None:
            text += f". Did you mean {meant!r}?"
        self._remark(place, keyword, text, is_suspect=meant is not None)
