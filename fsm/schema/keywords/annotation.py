"""Keywords that reject nothing: notes for people, identifiers, places for schemas, and words that only a draft or OpenAPI has."""

from __future__ import annotations

from fsm.schema.keywords.keyword import Keyword, Role
from fsm.schema.places.shape import ANY_SCHEMA_MAP, ANY_VALUE, ANYTHING, Shape


def _note(name: str, shape: Shape = ANYTHING, since: str | None = None) -> Keyword:
    return Keyword(name, shape, frozenset(), Role.ANNOTATION, since)


_NOTES = (
    "$comment $id $recursiveAnchor $schema $vocabulary additionalItems contentEncoding contentMediaType contentSchema deprecated "
    "description discriminator nullable readOnly title writeOnly"
)

ANNOTATIONS = (
    *map(_note, _NOTES.split()),
    _note("$anchor", since="draft/2019-09"),
    _note("$dynamicAnchor", since="draft/2020-12"),
    *(_note(name, ANY_VALUE) for name in ("default", "example", "examples")),
    *(_note(name, ANY_SCHEMA_MAP) for name in ("$defs", "definitions")),
)
