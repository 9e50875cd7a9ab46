"""Places of a schema document, and what a keyword family asks for while it builds a term."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from fsm.schema.documents.resource import Scope
from fsm.schema.keyword import Schema, escape
from fsm.terms.node import Node

_WATCHERS = ("unevaluatedProperties", "unevaluatedItems")


class Place(NamedTuple):
    """A schema and where it stands. A tuple, as many are made for each part of a schema.

    Attributes:
        schema: the schema itself.
        pointer: JSON pointer to it, for reports and errors; it begins with a URI where the place is in another resource.
        scope: the resource that it is part of, and those that led there; None: the root's.
        negated: whether the value must not satisfy the schema.
        via: the place that applies this one to the same value (by `$ref`, `allOf`, `not`, ...), if any.
        depth: the number of such steps.
        origin: the schema of which this one is what is left without its listed values; None: it is itself.
        is_watched: whether an `unevaluated...` keyword of a place before this one asks what this one evaluates.
    """

    schema: Schema
    pointer: str
    scope: Scope | None = None
    negated: bool = False
    via: Place | None = None
    depth: int = 0
    origin: Schema | None = None
    is_watched: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What tells this place from others, wherever it was reached from."""
        if self.scope is None and not self.negated:
            return (id(self.schema),)
        return id(self.schema), self.negated, None if self.scope is None else self.scope.path

    def has(self, keyword: str) -> bool:
        """True when the schema is an object with this keyword."""
        return isinstance(self.schema, dict) and keyword in self.schema

    def says(self, keywords: frozenset[str]) -> bool:
        """True when the schema has one of these keywords."""
        return isinstance(self.schema, dict) and not keywords.isdisjoint(self.schema)

    def get(self, keyword: str) -> Any:
        """The value of a keyword; None where it is absent."""
        return self.schema.get(keyword) if isinstance(self.schema, dict) else None

    def at(self, keyword: str) -> str:
        """The pointer to a keyword."""
        return f"{self.pointer}/{escape(keyword)}"

    def below(self, schema: Schema, *tokens: str | int) -> Place:
        """A place for a part of the value (a property, an item)."""
        return Place(schema, self.pointer + "".join(f"/{escape(str(t))}" for t in tokens), self.scope)

    def beside(self, schema: Schema, *tokens: str | int, negated: bool = False) -> Place:
        """A place for the same value."""
        pointer = self.pointer + "".join(f"/{escape(str(t))}" for t in tokens)
        is_watched = self.is_watched or self.has(_WATCHERS[0]) or self.has(_WATCHERS[1])
        return Place(schema, pointer, self.scope, negated, self, self.depth + 1, None, is_watched)

    def elsewhere(self, schema: Schema, pointer: str, scope: Scope | None) -> Place:
        """A place for the same value that a reference leads to, negated as this one is."""
        return self.beside(schema, negated=self.negated)._replace(pointer=pointer, scope=scope)

    def leads_back_to(self, schema: Schema, scope: Scope | None) -> bool:
        """True when `schema` is this one or one that applied it to the same value."""
        place: Place | None = self
        while place is not None:
            if place.schema is schema and place.scope == scope:
                return True
            place = place.via
        return False

    def counts_for(self, watcher: Place) -> bool:
        """True when what this place evaluates counts for the `unevaluated...` keyword of `watcher`."""
        wanted = watcher.schema if watcher.origin is None else watcher.origin
        place: Place | None = self
        while place is not None and not place.negated:
            if (place.schema if place.origin is None else place.origin) is wanted:
                return True
            place = place.via
        return False


Conjunction = tuple[Place, ...]
"""Schemas that hold together for one value; none: any value."""
Steps = Generator[Conjunction, Node, Node]
"""A builder that yields the schemas whose terms it needs, receives each, and returns its own term."""


def values_of(places: Conjunction, keyword: str) -> Iterator[tuple[Place, Any]]:
    """The places that have a keyword, with its value."""
    for place in places:
        if place.has(keyword):
            yield place, place.get(keyword)


_ONE = ("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")


def subschemas(place: Place) -> Iterator[Place]:
    """The places of the schemas that a settled place holds in its keywords, references aside."""
    for keyword in _ONE:
        if place.has(keyword):
            yield place.below(place.get(keyword), keyword)
    for keyword in _LISTED:
        for number, schema in enumerate(place.get(keyword) or ()):
            yield place.below(schema, keyword, number)
    for keyword in _NAMED:
        for name, schema in (place.get(keyword) or {}).items():
            yield place.below(schema, keyword, name)
