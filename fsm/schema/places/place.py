"""`Place`: a subschema with its JSON pointer, its resource, whether it is negated, and the place that applies it to the same value.

A list of places is a conjunction (`Conjunction`). `NegatedKeyword` is the negation of a single keyword, after `not` was pushed inwards.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from fsm.schema.places.dialect import Dialect
from fsm.schema.places.shape import Schema, escape
from fsm.terms.node import Node

WATCHERS = ("unevaluatedProperties", "unevaluatedItems")
"""The keywords that depend on which parts of a value other keywords have evaluated."""


@dataclass(frozen=True, slots=True, eq=False)
class NegatedKeyword:
    """A result of pushing `not` inwards: the values of some types that a keyword does not accept.

    Attributes:
        keyword: its name.
        value: its value, or an object made from it for the builder of the term.
        types: the JSON types; `number` stands for numbers that are not whole.
    """

    keyword: str
    value: Any
    types: frozenset[str]


def negation_of(schema: Schema) -> Schema:
    """The schema of the values that do not satisfy another one."""
    return not schema if isinstance(schema, bool) else {"not": schema}


@dataclass(frozen=True, slots=True)
class Scope:
    """The resource of a place, and the dynamic scope in which its references are resolved.

    Attributes:
        uri: the base of its references.
        path: the URIs of the resources that led there, outermost first, as far as they have dynamic anchors of their own.
        dialect: the draft in which it is written.
        root: which object the resource is, so that its own relative URI is applied once.
    """

    uri: str
    path: tuple[str, ...]
    dialect: Dialect
    root: int = field(default=0, compare=False)


class Place(NamedTuple):
    """A subschema and its position in the document. A tuple, as many are made for each part of a schema.

    Attributes:
        schema: the schema itself, or what is left of one that is negated.
        pointer: JSON pointer to it, for reports and errors; it begins with a URI where the place is in another resource.
        scope: the resource that it is part of, and those that led there; None: the root's.
        negated: whether the value must not satisfy the schema.
        via: the place that applies this one to the same value (by `$ref`, `allOf`, `not`, ...), if any.
        depth: the number of such steps.
        origin: the schema of which this one is what is left without its listed values; None: it is itself.
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

    def says(self, keywords: frozenset[str]) -> bool:
        """True when the schema has one of these keywords."""
        return isinstance(self.schema, dict) and not keywords.isdisjoint(self.schema)

    @property
    def is_watching(self) -> bool:
        """True when the schema depends on which parts of the value are evaluated."""
        return self.has(WATCHERS[0]) or self.has(WATCHERS[1])

    def get(self, keyword: str) -> Any:
        """The value of a keyword; None where it is absent."""
        return self.schema.get(keyword) if isinstance(self.schema, dict) else None

    def at(self, keyword: str) -> str:
        """The pointer to a keyword."""
        return f"{self.pointer}/{escape(keyword)}"

    def below(self, schema: Schema, *tokens: str | int) -> Place:
        """A place for a part of the value (a property, an item)."""
        return Place(schema, self.pointer + "".join(f"/{escape(str(t))}" for t in tokens), self.scope)

    def beside(self, schema: Schema | NegatedKeyword, *tokens: str | int, negated: bool = False) -> Place:
        """A place for the same value."""
        pointer = self.pointer + "".join(f"/{escape(str(t))}" for t in tokens)
        is_watched = self.is_watched or self.is_watching
        return Place(schema, pointer, self.scope, negated, self, self.depth + 1, None, is_watched)

    def elsewhere(self, schema: Schema, pointer: str, scope: Scope | None) -> Place:
        """A place for the same value that a reference leads to, negated as this one is."""
        return self.beside(schema, negated=self.negated)._replace(pointer=pointer, scope=scope)

    def lineage(self) -> Iterator[Place]:
        """Yield this place, the one that applied it to the same value, and so on to the outermost."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.via

    def holding(self) -> Iterator[Place]:
        """Yield those of the same that are sure to hold where this one does: until one is negated."""
        return takewhile(lambda place: not place.negated, self.lineage())

    def leads_back_to(self, schema: Schema | NegatedKeyword, scope: Scope | None) -> bool:
        """True when `schema` is this one or one that applied it to the same value."""
        return any(place.schema is schema and place.scope == scope for place in self.lineage())

    def counts_for(self, watcher: Place) -> bool:
        """True when what this place evaluates counts for the `unevaluated...` keyword of `watcher`."""
        wanted = watcher.schema if watcher.origin is None else watcher.origin
        return any((place.schema if place.origin is None else place.origin) is wanted for place in self.holding())


Conjunction = tuple[Place, ...]
"""Schemas that hold together for one value; none: any value."""
Builder = Generator[Conjunction, Node, Node]
"""A builder that yields the schemas whose terms it needs, receives each, and returns its own term."""


def values_of(places: Conjunction, keyword: str) -> Iterator[tuple[Place, Any]]:
    """The places that have a keyword, with its value."""
    for place in places:
        if place.has(keyword):
            yield place, place.get(keyword)


def negated_values_of(places: Conjunction, keyword: str) -> Iterator[tuple[Place, Any]]:
    """The places that are left of a negated keyword, each with the value of `NegatedKeyword`."""
    for place in places:
        if isinstance(place.schema, NegatedKeyword) and place.schema.keyword == keyword:
            yield place, place.schema.value
