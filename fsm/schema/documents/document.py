"""`in_latest_words`: rewrites keywords of older drafts and of OpenAPI as those of draft 2020-12, in the schemas of any dialect. It reads,
in one schema without its subschemas, what the later draft does not have, or not with values of this shape; keywords that the schema's own
draft does not have yet, or ignores beside `$ref`, are dropped.

Many schemas name no draft, or a later one than they are written for. Rewritten are:

- `dependencies`; a list as `items`, with `additionalItems`; `true` or `false` as `exclusiveMinimum` and `exclusiveMaximum`;
  `required: true` inside a property; the type `any` (draft 3);
- `nullable: true` (OpenAPI 3.0): null, or a value of the schema without it;
- only where a schema names draft 3: `extends`, `disallow`, `divisibleBy`.

`additionalItems` without a list of items has no effect in any draft.

`meant_by`: the keyword that an unknown one probably misspells: Damerau-Levenshtein distance one, another case, a plural, `min_length`.
Of insertions only doubled letters count, short keywords have stricter rules, and the value must be well-formed for the keyword; any other
name is an annotation.

`Document`: a schema document whose subschemas are rewritten to draft 2020-12, validated, and resolved, each when it is first met. It
collects the notes for the report: each enforced keyword by its JSON pointer, and remarks on those that are not enforced as written. Where
the author may have meant something else (a misspelling, an unknown format), `strict` makes the remark an error. References are resolved by
`keywords/resource.py`, those to pointers in the root without it; `make` interns schemas that are not in the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import NotRegular, SchemaError, shorten
from fsm.limits import Limits
from fsm.schema.keywords.keyword import KEYWORDS, Role
from fsm.schema.keywords.place import (
    VALUE,
    Dialect,
    NegatedKeyword,
    Place,
    Schema,
    check_schema,
    check_text,
    expected,
    part_at,
)
from fsm.schema.keywords.resource import DIALECTS, DRAFT_3, LATEST, Resources, dialect_named, dialect_of, is_known
from fsm.schema.keywords.value import values_at
from fsm.terms.characters import json_text
from fsm.terms.node import Check

Words = dict[str, Any]

_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_BOOLEANS = ("required", "exclusiveMinimum", "exclusiveMaximum")


def has_older_words(schema: Mapping[str, Any]) -> bool:
    """True if a schema has such keywords. Cost: one look-up for each of them, and one for each property."""
    if "dependencies" in schema or "nullable" in schema or isinstance(schema.get("items"), list):
        return True
    for word in _BOOLEANS:
        if word in schema and isinstance(schema[word], bool):
            return True
    return allows_any_type(schema) or ("properties" in schema and bool(_required_below(schema)))


def allows_any_type(schema: Mapping[str, Any]) -> bool:
    """True if `type` is, or contains, the type `any` of draft 3."""
    named = schema.get("type")
    return named == "any" or (isinstance(named, list) and "any" in named)


def _read_older_words(schema: Words) -> None:
    """Rewrite all of these keywords except `nullable` in place, but not in the subschemas."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        first, rest = schema.pop("items"), schema.pop("additionalItems", None)
        schema |= {"prefixItems": first} if first else {}
        schema |= {} if rest is None else {"items": rest}
    if isinstance(schema.get("dependencies"), dict):
        _read_dependencies(schema)
    for exclusive, inclusive in _BOUNDS:
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    below, own = _required_below(schema), schema.get("required", [])
    if below and isinstance(own, list):
        schema["required"] = [*own, *(name for name in below if name not in own)]
    if allows_any_type(schema):
        del schema["type"]


def _read_dependencies(schema: Words) -> None:
    """Split `dependencies`; in draft 3 it may have a single name instead of a list."""
    names, schemas = dict[str, Any](), dict[str, Any]()
    for key, value in schema.pop("dependencies").items():
        is_names = isinstance(value, list | str)
        (names if is_names else schemas)[key] = [value] if isinstance(value, str) else value
    for keyword, found in (("dependentRequired", names), ("dependentSchemas", schemas)):
        if found and isinstance(schema.get(keyword, {}), dict):
            schema[keyword] = {**found, **schema.get(keyword, {})}


def _required_below(schema: Mapping[str, Any]) -> list[str]:
    """The properties whose schemas have `required: true`."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    found = [name for name, below in properties.items() if isinstance(below, dict) and "required" in below]
    return [name for name in found if properties[name]["required"] is True]


def _read_nullable(schema: Words, *, to_the_letter: bool) -> Words:
    """The schema without `nullable`, allowing null if that was true.

    Args:
        schema: with keywords of draft 2020-12; it is changed.
        to_the_letter: whether null is only added to `type` in the same schema, as OpenAPI 3.0 specifies, and other keywords may reject it.
    """
    if schema.pop("nullable", False) is not True:
        return schema
    if not to_the_letter and not KEYWORDS.of_any_type.isdisjoint(schema):
        return {"anyOf": [schema, {"type": "null"}]}
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if isinstance(names, list) and "null" not in names:
        schema["type"] = [*names, "null"]
    if not to_the_letter and isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def in_latest_words(schema: dict[str, Any], dialect: Dialect) -> Schema:
    """The keywords of one schema rewritten as those of draft 2020-12, without the subschemas; the same object if nothing changes."""
    if _CHANGED[dialect.name].isdisjoint(schema) and not has_older_words(schema):
        return schema
    if dialect.has_lonely_references and "$ref" in schema:
        kept = ("$ref",) if dialect.has_nullable else ("$ref", "nullable")
        return _read_nullable({key: schema[key] for key in kept if key in schema}, to_the_letter=False)
    unknown = KEYWORDS.unknown_to.get(dialect.name, frozenset())
    found = {key: value for key, value in schema.items() if key not in unknown}
    if dialect is DRAFT_3:
        _read_draft_3(found)
    _read_older_words(found)
    if dialect.has_lonely_references:
        found.pop("$recursiveRef", None)
    if dialect.identifier == "id":
        found.pop("id", None)
    return _read_nullable(found, to_the_letter=dialect.has_nullable)


def _changed_in(dialect: Dialect) -> frozenset[str]:
    """The keywords that a schema of a dialect has no more when it is rewritten, or by which it has others."""
    changed = KEYWORDS.unknown_to.get(dialect.name, frozenset()) | ({"id"} if dialect.identifier == "id" else set())
    changed |= {"$ref", "$recursiveRef"} if dialect.has_lonely_references else set()
    return changed | ({"type", "divisibleBy", "extends", "disallow"} if dialect is DRAFT_3 else set())


_OLDER = frozenset({"dependencies", "divisibleBy", "extends", "disallow"})
_CHANGED = {dialect.name: _changed_in(dialect) for dialect in DIALECTS}


def _read_draft_3(schema: Words) -> None:
    """Rewrite schemas among the types, and the keywords that later have the names `allOf`, `not` and `multipleOf`."""
    named = schema.get("type")
    if isinstance(named, list) and any(isinstance(one, dict) for one in named):
        del schema["type"]
        if "any" not in named:
            branches = [one if isinstance(one, dict) else {"type": one} for one in named]
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
    if "divisibleBy" in schema:
        schema["multipleOf"] = schema.pop("divisibleBy")
    if "extends" in schema:
        value = schema.pop("extends")
        schema["allOf"] = [*schema.get("allOf", ()), *(value if isinstance(value, list) else [value])]
    if "disallow" in schema:
        schema["not"] = {"type": schema.pop("disallow")}


_LONGEST_NOUN = 6  # `formats` and other plurals of short keywords mean something else
_JOINT = re.compile(r"(?<=[a-zA-Z])[_-](?=[a-zA-Z])")


def meant_by(word: str, value: object) -> str | None:
    """The enforced keyword of which an unknown one is probably a misspelling; None: it is an annotation.

    The value must be well-formed for the keyword. The name differs in case; or by one letter left out, doubled or replaced; or by two
    neighbours swapped; or it has an underscore or a hyphen (`min_length`) and no other difference; or it is a plural (`requireds`, but not
    `types`). Short keywords, and `const`, which takes any value, are too similar to other words for a letter to be left out or replaced.
    """
    letters = _JOINT.sub("", word)
    if word in KEYWORDS.annotations or not (letters.isascii() and letters.isalpha()):
        return None
    is_joined, letters = letters != word, letters.lower()
    for keyword, known in KEYWORDS.items():
        if abs(len(keyword) - len(letters)) > 1 or keyword not in KEYWORDS.enforced:
            continue
        is_distinct, name = len(keyword) > 4 and known.shape is not VALUE, keyword.lower()
        is_same = letters == name or (len(keyword) > _LONGEST_NOUN and letters == f"{name}s")
        if (is_same or (not is_joined and _is_slip(letters, name, is_distinct))) and known.shape.fits(value):
            return keyword
    return None


def _is_slip(word: str, keyword: str, is_distinct: bool) -> bool:
    """Whether `word` is `keyword` with at most one slip of a typist."""
    difference = len(word) - len(keyword)
    if word == keyword or abs(difference) > 1:
        return word == keyword
    start = next((n for n, (one, other) in enumerate(zip(word, keyword, strict=False)) if one != other), len(keyword))
    if difference == 1:  # a doubled letter
        return word[start + 1 :] == keyword[start:] and start > 0 and word[start] == word[start - 1]
    if difference == -1:
        return is_distinct and word[start:] == keyword[start + 1 :]
    swapped = keyword[start + 1 : start + 2] + keyword[start] + keyword[start + 2 :]
    return word[start:] == swapped or (is_distinct and word[start + 1 :] == keyword[start + 1 :])


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
        return place if place.via is None else place._replace(via=None)

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
            return place if known is schema else Place(known, *place[1:])
        scope = None if scope is None else self.resources.inside(schema, scope)
        dialect = self.dialect if scope is None else scope.dialect
        if known is None:
            known = self._without_ignored(in_latest_words(self._without_nulls(schema, place), dialect), place)
            if known is not schema:
                self._remark_older_words(place, dialect)
            self._normalized[id(schema)] = self._normalized[id(known)] = known
            self._kept += (schema, known)
        if scope is not None and known is not schema and scope.root == id(schema):  # an identifier is applied once
            scope = replace(scope, root=id(known))
        return place if known is schema and scope is place.scope else place._replace(schema=known, scope=scope)

    def _without_nulls(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        """The schema without keywords that are null and cannot be, as serializers of other languages write absent ones."""
        if not any(value is None for value in schema.values()):
            return schema
        absent = [name for name, value in schema.items() if value is None and name in KEYWORDS.never_null | _OLDER]
        for name in absent:
            if self._is_strict:
                raise SchemaError(
                    f"`{name}` is null, which counts as absent only without `strict`. Leave it out", place.at(name)
                )
            self._remark(place, name, "null, read as if the keyword were absent", is_suspect=False)
        return {name: value for name, value in schema.items() if name not in absent}

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
        """The schema at a pointer into the root, found without `resources`; None if an identifier might change its meaning."""
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
        start, checks = place.pointer + "/", KEYWORDS.checks
        for keyword, value in schema.items():
            if keyword in checks:
                pointer = start + keyword  # none of them needs an escape
                checks[keyword](value, pointer)
                self.keywords[pointer] = keyword
            elif keyword not in KEYWORDS:
                self._remark_unknown(place, keyword, value)
        for name, remarks in KEYWORDS.with_remarks:
            if name in schema:
                for text in remarks(schema[name], self.limits):
                    self._remark(place, name, text, is_suspect=False)
        if not KEYWORDS.listing.isdisjoint(schema):
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
