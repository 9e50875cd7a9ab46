"""Keywords that reject nothing: notes for people, identifiers, places for schemas, and words that only a draft or OpenAPI has."""

from __future__ import annotations

from fsm.schema.keywords.keyword import Keyword, Role
from fsm.schema.places.shape import ANY_SCHEMA_MAP, ANY_VALUE, ANYTHING, Shape


def _note(name: str, shape: Shape = ANYTHING, since: str | None = None) -> Keyword:
    return Keyword(name, shape, frozenset(), Role.ANNOTATION, since)


ANNOTATIONS = (
    _note("$anchor", since="draft/2019-09"),
    _note("$comment"),
    _note("$defs", ANY_SCHEMA_MAP),
    _note("$dynamicAnchor", since="draft/2020-12"),
    _note("$id"),
    _note("$recursiveAnchor"),
    _note("$schema"),
    _note("$vocabulary"),
    _note("additionalItems"),
    _note("contentEncoding"),
    _note("contentMediaType"),
    _note("contentSchema"),
    _note("default", ANY_VALUE),
    _note("definitions", ANY_SCHEMA_MAP),
    _note("deprecated"),
    _note("description"),
    _note("discriminator"),
    _note("example", ANY_VALUE),
    _note("examples", ANY_VALUE),
    _note("nullable"),
    _note("readOnly"),
    _note("title"),
    _note("writeOnly"),
)
