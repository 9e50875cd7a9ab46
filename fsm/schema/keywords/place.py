"""`Shape`: the syntax of a keyword's value: a test of whether it is well-formed, and where it contains subschemas. Also here are the shapes
that keywords share, errors (`expected`), JSON pointer tokens (`escape`, `part_at`), and numbers as decimals.

`Place`: a subschema with its JSON pointer, its scope, whether it is negated, and the place that applies it to the same value. A tuple of
places is a conjunction (`Conjunction`, `values_of`). `NegatedKeyword` is the negation of a single keyword, after `not` was pushed inwards
(with `SomeItem` or `SomeMember`). `Scope` is where references are resolved: a resource, its draft (`Dialect`) and the dynamic scope.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, auto
from itertools import takewhile
from math import isfinite
from typing import Any, NamedTuple

from referencing import Specification

from fsm.errors import SchemaError, did_you_mean, shorten
from fsm.terms.node import Node

Schema = dict[str, Any] | bool
JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
Check = Callable[[Any, str], None]
"""Raises `SchemaError` for a value that is malformed, given the pointer to it."""


def escape(token: str) -> str:
    """Escape a key for use in a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1") if "/" in token or "~" in token else token


def part_at(value: Any, token: str) -> Any:
    """The part of a value that one token of a JSON pointer names.

    Raises:
        KeyError: there is none; its argument is the name that the token spells.
    """
    name = token.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    raise KeyError(name)


def is_number(value: object) -> bool:
    """True for a finite number; a bool is not a number."""
    if isinstance(value, float | Decimal):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


MAX_SINGLE = (2**24 - 1) * 2**104
"""The largest float of 32 bits."""

NUMBER_FORMATS: dict[str, dict[str, Any]] = {
    "int32": {"multipleOf": 1, "minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"multipleOf": 1, "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"minimum": -MAX_SINGLE, "maximum": MAX_SINGLE},
    "double": {},  # every number of our JSON texts fits
}
"""The number formats of the OpenAPI registry, each as an equivalent schema of other keywords; they constrain numbers only."""


def to_decimal(value: int | float | Decimal) -> Decimal:
    """The decimal value of a number in a schema: of a float, the decimal that Python prints."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


class Inside(Enum):
    """What the value of a keyword contains: data, JSON values, or one, a list or a map of schemas."""

    DATA = auto()  # names, numbers, flags
    VALUES = auto()  # JSON values, which are never read as schemas
    SCHEMA = auto()
    SCHEMA_LIST = auto()
    SCHEMA_MAP = auto()


@dataclass(frozen=True, slots=True)
class Shape:
    """The well-formed values of a keyword.

    Attributes:
        check: raises for all other values.
        inside: what a well-formed value contains.
    """

    check: Check
    inside: Inside = Inside.DATA

    def fits(self, value: Any) -> bool:
        """True when a value is well-formed."""
        try:
            self.check(value, "")
        except SchemaError:
            return False
        return True

    def schemas(self, value: Any) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
        """Yield the schemas in a value, each with the pointer tokens to it."""
        if self.inside is Inside.SCHEMA:
            yield (), value
        elif self.inside is Inside.SCHEMA_LIST:
            for position, schema in enumerate(value):
                yield (position,), schema
        elif self.inside is Inside.SCHEMA_MAP:
            for name, schema in value.items():
                yield (name,), schema


def expected(what: str, value: object, pointer: str = "", advice: str = "") -> SchemaError:
    """The error for a malformed value."""
    if not advice:
        advice = "Correct the schema"
        if hasattr(value, "tolist") or hasattr(value, "to_list"):
            advice = "Write what JSON has in its place, by its `tolist()`"
        elif isinstance(value, Collection) and not isinstance(value, Mapping | list | str | bytes):
            advice = "Write `list(...)` of it, as JSON has no others"
    return SchemaError(f"expected {what}, received {shorten(value)}. {advice}", pointer)


def check_schema(value: object, pointer: str) -> None:
    """A schema: an object, true or false."""
    if not isinstance(value, dict | bool):
        raise expected("a schema (an object, true or false)", value, pointer)


def check_text(value: object, pointer: str) -> None:
    """A string without lone surrogates, so that it has UTF-8."""
    if not isinstance(value, str):
        raise expected("a string", value, pointer)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise SchemaError(f"{shorten(value)} has a lone surrogate, which has no UTF-8. Remove it", pointer)


def _plain(what: str, test: Callable[[Any], bool]) -> Shape:
    """The values that pass a test; `what` describes them in messages."""

    def check(value: Any, pointer: str) -> None:
        if not test(value):
            raise expected(what, value, pointer)

    return Shape(check)


def _list_of(what: str, check_item: Check, least: int = 0) -> Check:
    def check(value: Any, pointer: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise expected(what, value, pointer)
        for position, item in enumerate(value):
            check_item(item, f"{pointer}/{position}")

    return check


def _map_of(what: str, check_item: Check) -> Check:
    def check(value: Any, pointer: str) -> None:
        if not isinstance(value, dict):
            raise expected(what, value, pointer)
        for key, item in value.items():
            check_text(key, pointer)
            check_item(item, f"{pointer}/{escape(key)}")

    return check


_TYPES_ELSEWHERE = {
    **dict.fromkeys(("float", "double", "decimal", "real", "numeric"), "number"),
    **dict.fromkeys(("int", "int32", "int64", "long", "uint", "short"), "integer"),
    **dict.fromkeys(("dict", "map", "mapping", "record", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "sequence", "vector"), "array"),
    **dict.fromkeys(("str", "text", "char", "date", "datetime", "bytes", "enum"), "string"),
    **dict.fromkeys(("none", "nil", "undefined", "nonetype"), "null"),
    "bool": "boolean",
}
"""What other languages call the types of JSON."""


def _check_types(value: object, pointer: str) -> None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise expected(f"one of {', '.join(JSON_TYPES)}, or a list of them", value, pointer)
    for name in names:
        if name not in JSON_TYPES:
            other = _TYPES_ELSEWHERE.get(str(name).lower())
            hint = f" Did you mean {other!r}?" if other else did_you_mean(str(name), JSON_TYPES)
            problem = f"expected a JSON type ({', '.join(JSON_TYPES)}), received {shorten(name)}.{hint}"
            raise SchemaError(problem, pointer)


def _check_value(value: object, pointer: str) -> None:
    """A JSON value whose strings have UTF-8 and that does not contain itself, so that it can be written."""
    if isinstance(value, str) and value.isascii():
        return
    stack, around = [(value, False)], set[int]()
    while stack:
        part, is_read = stack.pop()
        if isinstance(part, str):
            check_text(part, pointer)
        elif is_read:
            around.discard(id(part))
        elif isinstance(part, dict | list):
            if id(part) in around:
                raise SchemaError("expected a JSON value, received one that contains itself", pointer)
            around.add(id(part))
            parts = [*part, *part.values()] if isinstance(part, dict) else part
            stack += [(part, True), *((inner, False) for inner in parts)]


def _check_nothing(value: object, pointer: str) -> None:
    """Any value."""


_check_texts = _list_of("a list of strings", check_text)

SCHEMA = Shape(check_schema, Inside.SCHEMA)
SCHEMA_LIST = Shape(_list_of("a list of at least one schema", check_schema, 1), Inside.SCHEMA_LIST)
SCHEMA_MAP = Shape(_map_of("an object whose values are schemas", check_schema), Inside.SCHEMA_MAP)
TEXT = Shape(check_text)
TEXTS = Shape(_check_texts)
TYPES = Shape(_check_types)
NUMBER = _plain("a finite number", is_number)
DIVISOR = _plain("a number above zero", lambda value: is_number(value) and value > 0)
COUNT = _plain("a whole number of at least zero", lambda value: is_number(value) and value >= 0 and value == int(value))
FLAG = _plain("true or false", lambda value: isinstance(value, bool))
NAME_LISTS = Shape(_map_of("an object whose values are lists of names", _check_texts))
VALUE = Shape(_check_value, Inside.VALUES)
VALUES = Shape(_list_of("a list of values", _check_value), Inside.VALUES)
ANYTHING = Shape(_check_nothing)
ANY_VALUES = Shape(_check_nothing, Inside.VALUES)
ANY_SCHEMA_MAP = Shape(_check_nothing, Inside.SCHEMA_MAP)


WATCHERS = ("unevaluatedProperties", "unevaluatedItems")
"""The keywords that depend on which parts of a value other keywords have evaluated."""


@dataclass(frozen=True, slots=True, eq=False)
class NegatedKeyword:
    """A result of pushing `not` inwards: the values of some types that a keyword does not accept.

    Attributes:
        keyword: its name.
        value: its value, or what the builder of the term needs instead (`SomeItem`, `SomeMember`).
        types: the JSON types; `number` stands for numbers that are not whole.
    """

    keyword: str
    value: Any
    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class SomeItem:
    """The negation of `items`: some item from `start` on satisfies a schema."""

    start: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class SomeMember:
    """The negation of a keyword of members: some member has a key and a value as follows.

    Attributes:
        schema: the schema that the value satisfies.
        pattern: a pattern that is found in the key; None: any.
        key: the schema that the key satisfies.
        known: names that the key is not.
        known_patterns: patterns that are not found in the key.
    """

    schema: Schema = True
    pattern: str | None = None
    key: Schema = True
    known: tuple[str, ...] = ()
    known_patterns: tuple[str, ...] = ()


def negation_of(schema: Schema) -> Schema:
    """The schema of the values that do not satisfy another one."""
    return not schema if isinstance(schema, bool) else {"not": schema}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One draft, or the schemas of OpenAPI: what differs between them for references and subschemas.

    Attributes:
        name: as in its URI.
        specification: its description for the library `referencing`.
        identifier: the keyword that gives a schema its URI.
        has_lonely_references: whether the other keywords of a schema with `$ref` are ignored.
        evaluates_contained: whether an item that satisfies `contains` counts as evaluated.
        has_nullable: whether it has the keyword `nullable` of OpenAPI 3.0, which only adds null to `type`.
    """

    name: str
    specification: Specification[Any]
    identifier: str = "$id"
    has_lonely_references: bool = False
    evaluates_contained: bool = False
    has_nullable: bool = False

    @property
    def metaschema(self) -> str:
        """The URI of the metaschema of a draft."""
        return f"{'https' if '/' in self.name else 'http'}://json-schema.org/{self.name}/schema"


@dataclass(frozen=True, slots=True)
class Scope:
    """The resource of a place, and the dynamic scope in which its references are resolved.

    Attributes:
        uri: the base URI of its references.
        path: the URIs of the resources that led there, outermost first; only those with dynamic anchors that no outer one has.
        dialect: the draft in which it is written.
        root: the `id()` of the resource's root object, so that its own relative URI is applied once.
    """

    uri: str
    path: tuple[str, ...]
    dialect: Dialect
    root: int = field(default=0, compare=False)


class Place(NamedTuple):
    """A subschema and its position in the document. A tuple, as many are made for each part of a schema.

    Attributes:
        schema: the schema itself, or what remains of one that is negated.
        pointer: JSON pointer to it, for reports and errors; it begins with a URI where the place is in another resource.
        scope: the resource that it is part of, and those that led there; None: the root's.
        negated: whether the value must not satisfy the schema.
        via: the place that applies this one to the same value (by `$ref`, `allOf`, `not`, ...), if any.
        depth: the number of such steps.
        origin: the schema from which this one was made by removing its listed values; None: it is itself.
        is_watched: whether an `unevaluated...` keyword of an outer place depends on what this one evaluates.
    """

    schema: Schema | NegatedKeyword
    pointer: str
    scope: Scope | None = None
    negated: bool = False
    via: Place | None = None
    depth: int = 0
    origin: Schema | None = None
    is_watched: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable identity: equal for places with the same schema, negation and dynamic scope, however they were reached."""
        if self.scope is None and not self.negated:
            return (id(self.schema),)
        return id(self.schema), self.negated, None if self.scope is None else self.scope.path

    def has(self, keyword: str) -> bool:
        """True when the schema is an object with this keyword."""
        return isinstance(self.schema, dict) and keyword in self.schema

    def has_any(self, keywords: frozenset[str]) -> bool:
        """True when the schema is an object with one of these keywords."""
        return isinstance(self.schema, dict) and not keywords.isdisjoint(self.schema)

    @property
    def watches_branches(self) -> bool:
        """True when an `unevaluated...` keyword, here or at an outer place, depends on which schemas inside this one are satisfied."""
        return self.is_watched or self.has(WATCHERS[0]) or self.has(WATCHERS[1])

    def get(self, keyword: str) -> Any:
        """The value of a keyword; None if it is absent."""
        return self.schema.get(keyword) if isinstance(self.schema, dict) else None

    def at(self, *tokens: str | int) -> str:
        """The pointer to a keyword, or to a part of its value."""
        pointer = self.pointer
        for token in tokens:
            pointer += f"/{token if isinstance(token, int) else escape(token)}"
        return pointer

    def below(self, schema: Schema, *tokens: str | int) -> Place:
        """A place for a part of the value (a property, an item)."""
        return Place(schema, self.at(*tokens), self.scope)

    def beside(self, schema: Schema | NegatedKeyword, *tokens: str | int, negated: bool = False) -> Place:
        """A place for the same value."""
        return Place(schema, self.at(*tokens), self.scope, negated, self, self.depth + 1, None, self.watches_branches)

    def elsewhere(self, schema: Schema, pointer: str, scope: Scope | None) -> Place:
        """The place for the same value that a reference names, negated if this one is."""
        return self.beside(schema, negated=self.negated)._replace(pointer=pointer, scope=scope)

    def lineage(self) -> Iterator[Place]:
        """Yield this place, the one that applied it to the same value, and so on to the outermost."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.via

    def holding(self) -> Iterator[Place]:
        """Yield the places of the lineage that are satisfied wherever this one is: those before the first that is negated."""
        return takewhile(lambda place: not place.negated, self.lineage())

    def counts_for(self, watcher: Place) -> bool:
        """True when what this place evaluates counts for the `unevaluated...` keyword of `watcher`."""
        wanted = watcher.schema if watcher.origin is None else watcher.origin
        return any((place.schema if place.origin is None else place.origin) is wanted for place in self.holding())


Conjunction = tuple[Place, ...]
"""Schemas that one value must all satisfy; the empty tuple: any value."""
Builder = Generator[Conjunction, Node, Node]
"""A coroutine that yields the conjunctions whose terms it needs, receives each term, and returns its own."""


def values_of(places: Conjunction, keyword: str) -> Iterator[tuple[Place, Any]]:
    """The places that have a keyword, each with the value of the keyword."""
    for place in places:
        schema = place.schema
        if isinstance(schema, dict) and keyword in schema:
            yield place, schema[keyword]


def negated_values_of(places: Conjunction, keyword: str) -> Iterator[tuple[Place, Any]]:
    """The places that are the negation of a keyword (`NegatedKeyword`), each with the value of the keyword."""
    for place in places:
        if isinstance(place.schema, NegatedKeyword) and place.schema.keyword == keyword:
            yield place, place.schema.value


def excluded_values(places: Conjunction) -> list[Any]:
    """The scalars that negated `enum` and `const` exclude."""
    return [value for _, values in negated_values_of(places, "enum") for value in values]
