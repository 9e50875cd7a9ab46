"""The drafts of JSON Schema: each schema is read as if it were written in draft 2020-12."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from referencing import Specification
from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

from fsm.errors import SchemaError
from fsm.schema.keyword import Made, Schema, shorten


@dataclass(frozen=True, slots=True)
class Dialect:
    """One draft.

    Attributes:
        name: as in its URI.
        specification: what the library `referencing` knows of it.
        identifier: the keyword that gives a schema its URI.
        has_lonely_references: whether what stands beside `$ref` means nothing.
        has_item_lists: whether a list of item schemas is called `items`, and the rest `additionalItems`.
        unknown: the keywords of draft 2020-12 that mean nothing in it.
        evaluates_contained: whether an item that satisfies `contains` counts as evaluated.
    """

    name: str
    specification: Specification[Any]
    identifier: str = "$id"
    has_lonely_references: bool = False
    has_item_lists: bool = False
    unknown: frozenset[str] = frozenset()
    evaluates_contained: bool = False


_NEW_IN_2020 = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor"})
_NEW_IN_2019 = _NEW_IN_2020 | {
    "unevaluatedItems",
    "unevaluatedProperties",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "$anchor",
}
_NEW_IN_7 = _NEW_IN_2019 | {"if", "then", "else"}
_NEW_IN_6 = _NEW_IN_7 | {"const", "contains", "propertyNames"}

LATEST = Dialect("draft/2020-12", DRAFT202012, evaluates_contained=True)
DIALECTS = (
    LATEST,
    Dialect("draft/2019-09", DRAFT201909, has_item_lists=True, unknown=_NEW_IN_2020),
    Dialect("draft-07", DRAFT7, has_lonely_references=True, has_item_lists=True, unknown=_NEW_IN_2019),
    Dialect("draft-06", DRAFT6, has_lonely_references=True, has_item_lists=True, unknown=_NEW_IN_7),
    Dialect("draft-04", DRAFT4, "id", has_lonely_references=True, has_item_lists=True, unknown=_NEW_IN_6),
)
_BY_URI = {f"{scheme}://json-schema.org/{d.name}/schema": d for scheme in ("http", "https") for d in DIALECTS}
# Public schemas leave `draft/` out; what they mean is not in doubt.
_BY_URI |= {uri.replace("/draft/", "/"): d for uri, d in _BY_URI.items()}
_BY_URI |= {f"{scheme}://json-schema.org/schema": LATEST for scheme in ("http", "https")}


def dialect_of(schema: Any, inherited: Dialect, pointer: str) -> Dialect:
    """The draft that a schema names in `$schema`, or that of the schema around it.

    Raises:
        SchemaError: it names another one.
    """
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return inherited
    found = _BY_URI.get(name.removesuffix("#")) if isinstance(name, str) else None
    if found is None:
        raise SchemaError(
            f"unknown dialect {shorten(name)}; known are the drafts {', '.join(d.name for d in DIALECTS)}. "
            "Use 'https://json-schema.org/draft/2020-12/schema', or leave `$schema` out",
            f"{pointer}/$schema",
        )
    return found


def in_latest_words(schema: Mapping[str, Any], dialect: Dialect) -> Schema:
    """The keywords of one schema as draft 2020-12 writes them; the schemas below stay as they are."""
    if dialect.has_lonely_references and "$ref" in schema:
        return {"$ref": schema["$ref"]}
    found = {key: value for key, value in schema.items() if key not in dialect.unknown}
    if dialect.has_item_lists:
        rest = found.pop("additionalItems", None)
        if isinstance(found.get("items"), list):
            first = found.pop("items")
            found |= {"prefixItems": first} if first else {}
            found |= {} if rest is None else {"items": rest}
    if dialect.name == "draft/2019-09":
        found.pop("$recursiveAnchor", None)
        found |= {Made.RECURSIVE: found.pop("$recursiveRef")} if "$recursiveRef" in found else {}
    if isinstance(found.get("dependencies"), dict) and dialect.unknown >= {"dependentRequired"}:
        _part_dependencies(found)
    if dialect.identifier == "id":
        found.pop("id", None)
        _part_bounds(found)
    return found


def _part_dependencies(schema: dict[str, Any]) -> None:
    dependencies = schema.pop("dependencies")
    names = {key: value for key, value in dependencies.items() if isinstance(value, list)}
    schemas = {key: value for key, value in dependencies.items() if not isinstance(value, list)}
    schema |= {"dependentRequired": names} if names else {}
    schema |= {"dependentSchemas": schemas} if schemas else {}


def _part_bounds(schema: dict[str, Any]) -> None:
    """Draft 4 says `exclusiveMinimum: true` beside `minimum`."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)
