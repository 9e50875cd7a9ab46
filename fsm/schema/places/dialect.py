"""The dialects: the drafts of JSON Schema (3 to 2020-12), OpenAPI 3.0 and 3.1, by name or by the URI of the metaschema in `$schema`. An
unknown URI counts as the draft whose name is in it, else as the dialect around it; a member `openapi: 3.0.x` names one, too. Draft 5 is 4,
OpenAPI 3.1 is 2020-12. Each describes itself to `referencing`, tolerant of malformed schemas. `Dialect`: `place.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from referencing import Specification
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

from fsm.schema.places.place import Dialect
from fsm.schema.places.shape import expected


def _tolerant(draft: Specification[Any]) -> Specification[Any]:
    """A draft whose subschemas are found in malformed schemas, too, and in a list as `items`, which only older drafts have."""

    def subresources(contents: Any) -> Iterator[Any]:
        if isinstance(contents, dict) and isinstance(contents.get("items"), list):
            yield from (schema for schema in contents["items"] if isinstance(schema, dict))
            contents = {**contents, "items": {}}
        try:
            found = list(draft.subresources_of(contents))
        except (AttributeError, TypeError):
            return
        yield from (schema for schema in found if isinstance(schema, dict))

    return Specification(  # type: ignore[call-arg]
        name=draft.name,
        id_of=draft.id_of,
        subresources_of=subresources,
        maybe_in_subresource=draft.maybe_in_subresource,
        anchors_in=lambda _, contents: draft.anchors_in(contents),
    )


LATEST = Dialect("draft/2020-12", _tolerant(DRAFT202012), evaluates_contained=True)
DRAFT_3 = Dialect("draft-03", _tolerant(DRAFT3), "id", has_lonely_references=True)
OPENAPI_30 = Dialect("openapi-3.0", _tolerant(DRAFT202012), has_lonely_references=True, has_nullable=True)
DIALECTS = (
    LATEST,
    Dialect("draft/2019-09", _tolerant(DRAFT201909)),
    Dialect("draft-07", _tolerant(DRAFT7), has_lonely_references=True),
    Dialect("draft-06", _tolerant(DRAFT6), has_lonely_references=True),
    Dialect("draft-04", _tolerant(DRAFT4), "id", has_lonely_references=True),
    DRAFT_3,
    OPENAPI_30,
)
_BY_NAME = {d.name: d for d in DIALECTS} | {d.name.removeprefix("draft/"): d for d in DIALECTS}
_BY_NAME |= {"draft-05": _BY_NAME["draft-04"], "openapi-3.1": LATEST}  # drafts 4 and 5 have the same keywords
_DRAFT = re.compile(r"(?:draft[-/]?|json-schema\.org/)(?:0?(?P<number>[3-7])(?!\d)|(?P<date>20\d\d-\d\d))")
_NO_DRAFT = re.compile(r"https?://(?:www\.)?json-schema\.org/schema#?$")
_OPENAPI = re.compile(r"https?://spec\.openapis\.org/oas/(3\.[01])(?!\d)")
_STANDARD = re.compile(r"https?://(?:(?:www\.)?json-schema\.org|spec\.openapis\.org)/")


def dialect_named(name: str) -> Dialect:
    """Return the dialect that the option `dialect` names: `draft-07`, `2020-12`, `openapi-3.0`, or the URI of a metaschema.

    Raises:
        SchemaError: there is no such dialect.
    """
    found = None
    if isinstance(name, str):
        found = _BY_NAME.get(name) or (_by_uri(name) if "://" in name else None)
    if found is None:
        known = ", ".join(d.name for d in DIALECTS)
        raise expected(
            f"one of {known} as `dialect`", name, advice="Leave it out for schemas that name it in `$schema`"
        )
    return found


def _by_uri(uri: str) -> Dialect | None:
    """The draft whose name is part of the URI of a metaschema: that of the draft, in any spelling, or of an extension of it."""
    if (named := _OPENAPI.match(uri)) is not None:
        return _BY_NAME[f"openapi-{named[1]}"]
    if (named := _DRAFT.search(uri)) is not None:
        return _BY_NAME.get(named["date"] or f"draft-0{named['number']}")
    return LATEST if _NO_DRAFT.match(uri) else None


def is_known(uri: str) -> bool:
    """Whether a URI names the metaschema of a draft or of a version of OpenAPI, and not that of an extension."""
    return _STANDARD.match(uri) is not None and _by_uri(uri) is not None


def metaschema_of(uri: str) -> str | None:
    """The URI of the standard metaschema of which `uri` is another spelling, such as `https` for `http`; None: it is not one."""
    dialect = _by_uri(uri) if is_known(uri) and uri.removesuffix("#").endswith("/schema") else None
    return None if dialect is None or dialect.has_nullable else dialect.metaschema


def dialect_of(schema: Any, inherited: Dialect, pointer: str) -> Dialect:
    """Return the draft that a schema names in `$schema`, or else `inherited`, that of the schema around it.

    An unknown metaschema counts as an extension of the draft whose name is in its URI, or else of the inherited one. The schemas of a
    document of OpenAPI are written in the dialect of its version.

    Raises:
        SchemaError: `$schema` is not a string.
    """
    if not isinstance(schema, dict):
        return inherited
    name = schema.get("$schema")
    if name is None:
        version = schema.get("openapi")
        return OPENAPI_30 if isinstance(version, str) and re.match(r"3\.0(\.|$)", version) else inherited
    if not isinstance(name, str):
        advice = "Use 'https://json-schema.org/draft/2020-12/schema', or leave `$schema` out"
        raise expected("the URI of a draft", name, f"{pointer}/$schema", advice)
    return _by_uri(name) or inherited
