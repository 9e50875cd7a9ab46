"""`SchemaDocument`: what builders of terms, checks and explanations ask of the document whose places they are given.

`documents.document.Document` is one. The methods raise what its methods raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fsm.limits import Limits
from fsm.schema.places.dialect import Dialect
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place
from fsm.schema.places.resource import Resources
from fsm.schema.places.shape import Schema

AnySchema = TypeVar("AnySchema", Schema, Schema | NegatedKeyword)


class SchemaDocument(Protocol):
    """One schema with everything that its references can reach."""

    schema: Schema
    root: Place
    limits: Limits
    dialect: Dialect
    asserts_format: bool
    is_coarse: bool
    can_be_coarser: bool

    @property
    def registry(self) -> Mapping[str, Any]:
        """Other schemas by URI."""

    @property
    def resources(self) -> Resources:
        """The schemas that references can name."""

    def normalize_draft(self, place: Place) -> Place:
        """The place with the keywords of draft 2020-12, in the scope of its own resource if it begins one."""

    def behind(self, places: Conjunction) -> Conjunction:
        """Replace the places that are only a reference by what they refer to."""

    def resolve(self, place: Place, keyword: str) -> Place:
        """The place that a reference of `place` names."""

    def make(self, schema: AnySchema, *key: object) -> AnySchema:
        """A schema of our own that stays the same object each time it is asked for."""
