"""`SchemaDocument`: the protocol of a schema document for builders of terms, checks and explanations, which avoids import cycles.

`documents.document.Document` implements it; its docstrings list the exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fsm.limits import Limits
from fsm.schema.places.dialect import Dialect
from fsm.schema.places.place import NegatedKeyword, Place
from fsm.schema.places.resource import Resources
from fsm.schema.places.shape import Schema

AnySchema = TypeVar("AnySchema", Schema, Schema | NegatedKeyword)


class SchemaDocument(Protocol):
    """One schema with everything that its references can reach, as a protocol."""

    schema: Schema
    root: Place
    limits: Limits
    dialect: Dialect
    asserts_format: bool

    registry: Mapping[str, Any]

    @property
    def resources(self) -> Resources:
        """The schemas that references can name."""

    def normalize_draft(self, place: Place) -> Place:
        """The place with the keywords of draft 2020-12, in the scope of its own resource if it begins one."""

    def check_keywords(self, place: Place) -> None:
        """Check the keywords of a normalized place and note them for the report, once."""

    def behind(self, place: Place) -> Place:
        """The place itself, or what it refers to where it is only a reference."""

    def resolve(self, place: Place, keyword: str) -> Place:
        """The place that a reference of `place` names."""

    def referred(self, place: Place) -> list[Place]:
        """The places that the references of a normalized place name."""

    def is_found(self, place: Place, pattern: str, name: str) -> bool | None:
        """Whether a pattern of `patternProperties` is found in a key; None: the pattern is not regular."""

    def make(self, schema: AnySchema, *key: object) -> AnySchema:
        """A schema that is not in the document, interned by a key: the same object at every call, as schemas are compared by identity."""
