"""Places of a schema document, and what a keyword family asks for while it builds a term."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from fsm.node import Node
from fsm.schema.keyword import Schema, escape


@dataclass(frozen=True, slots=True)
class Place:
    """A schema and where it stands.

    Attributes:
        schema: the schema itself.
        pointer: JSON pointer to it, for reports and errors.
        via: the place that applies this one to the same value (by `$ref`, `allOf`, `anyOf`), if any.
        depth: the number of such steps.
    """

    schema: Schema
    pointer: str
    via: Place | None = None
    depth: int = 0

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
        return Place(schema, self.pointer + "".join(f"/{escape(str(t))}" for t in tokens))

    def beside(self, schema: Schema, pointer: str) -> Place:
        """A place for the same value."""
        return Place(schema, pointer, self, self.depth + 1)

    def leads_back_to(self, schema: Schema) -> bool:
        """True when `schema` is this one or one that applied it to the same value."""
        place: Place | None = self
        while place is not None:
            if place.schema is schema:
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
