"""`in_latest_words`: rewrites keywords of older drafts and of OpenAPI as those of draft 2020-12, in the schemas of any dialect. It reads,
in one schema without its subschemas, what the later draft does not have, or not with values of this shape; keywords that the schema's own
draft does not have yet, or ignores beside `$ref`, are dropped.

Many schemas name no draft, or a later one than they are written for. Rewritten are:

- `dependencies`; a list as `items`, with `additionalItems`; `true` or `false` as `exclusiveMinimum` and `exclusiveMaximum`;
  `required: true` inside a property; the type `any` (draft 3);
- `nullable: true` (OpenAPI 3.0): null, or a value of the schema without it;
- only where a schema names draft 3: `extends`, `disallow`, `divisibleBy`.

`additionalItems` without a list of items has no effect in any draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.dialect import DRAFT_3, LATEST
from fsm.schema.places.place import Dialect
from fsm.schema.places.shape import Schema

Words = dict[str, Any]

_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def has_older_words(schema: Mapping[str, Any]) -> bool:
    """True where a schema has such keywords. Cost: one look-up for each of them, and one for each property."""
    if "dependencies" in schema or "nullable" in schema or isinstance(schema.get("items"), list):
        return True
    if any(isinstance(schema.get(word), bool) for word in ("required", "exclusiveMinimum", "exclusiveMaximum")):
        return True
    return allows_any_type(schema) or bool(_required_below(schema))


def allows_any_type(schema: Mapping[str, Any]) -> bool:
    """True where `type` is, or contains, the type `any` of draft 3."""
    named = schema.get("type")
    return named == "any" or (isinstance(named, list) and "any" in named)


def _read_older_words(schema: Words) -> None:
    """Rewrite all of these keywords except `nullable` in place, but not in the subschemas."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        first, rest = schema.pop("items"), schema.pop("additionalItems", None)
        schema |= {"prefixItems": first} if first else {}
        schema |= {} if rest is None else {"items": rest}
    if isinstance(schema.get("dependencies"), dict):
        _read_dependencies(schema)
    for exclusive, inclusive in _BOUNDS:
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    below, own = _required_below(schema), schema.get("required", [])
    if below and isinstance(own, list):
        schema["required"] = [*own, *(name for name in below if name not in own)]
    if allows_any_type(schema):
        del schema["type"]


def _read_dependencies(schema: Words) -> None:
    """Split `dependencies`; in draft 3 it may have a single name instead of a list."""
    names, schemas = dict[str, Any](), dict[str, Any]()
    for key, value in schema.pop("dependencies").items():
        is_names = isinstance(value, list | str)
        (names if is_names else schemas)[key] = [value] if isinstance(value, str) else value
    for keyword, found in (("dependentRequired", names), ("dependentSchemas", schemas)):
        if found and isinstance(schema.get(keyword, {}), dict):
            schema[keyword] = {**found, **schema.get(keyword, {})}


def _required_below(schema: Mapping[str, Any]) -> list[str]:
    """The properties whose schemas have `required: true`."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [name for name, below in properties.items() if isinstance(below, dict) and below.get("required") is True]


def _read_nullable(schema: Words, *, to_the_letter: bool) -> Words:
    """The schema without `nullable`, allowing null where that was true.

    Args:
        schema: with keywords of draft 2020-12; it is changed.
        to_the_letter: whether null is only added to `type` in the same schema, as OpenAPI 3.0 specifies, and other keywords may reject it.
    """
    if schema.pop("nullable", False) is not True:
        return schema
    if not to_the_letter and not KEYWORDS.of_any_type.isdisjoint(schema):
        return {"anyOf": [schema, {"type": "null"}]}
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if isinstance(names, list) and "null" not in names:
        schema["type"] = [*names, "null"]
    if not to_the_letter and isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def in_latest_words(schema: dict[str, Any], dialect: Dialect) -> Schema:
    """The keywords of one schema rewritten as those of draft 2020-12, without the subschemas; the same object if nothing changes."""
    if dialect is LATEST and not has_older_words(schema):
        return schema
    if dialect.has_lonely_references and "$ref" in schema:
        kept = ("$ref",) if dialect.has_nullable else ("$ref", "nullable")
        return _read_nullable({key: schema[key] for key in kept if key in schema}, to_the_letter=False)
    unknown = KEYWORDS.unknown_to.get(dialect.name, frozenset())
    found = {key: value for key, value in schema.items() if key not in unknown}
    if dialect is DRAFT_3:
        _read_draft_3(found)
    _read_older_words(found)
    if dialect.has_lonely_references:
        found.pop("$recursiveRef", None)
    if dialect.identifier == "id":
        found.pop("id", None)
    return _read_nullable(found, to_the_letter=dialect.has_nullable)


def _read_draft_3(schema: Words) -> None:
    """Rewrite schemas among the types, and the keywords that later have the names `allOf`, `not` and `multipleOf`."""
    named = schema.get("type")
    if isinstance(named, list) and any(isinstance(one, dict) for one in named):
        del schema["type"]
        if "any" not in named:
            branches = [one if isinstance(one, dict) else {"type": one} for one in named]
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
    if "divisibleBy" in schema:
        schema["multipleOf"] = schema.pop("divisibleBy")
    if "extends" in schema:
        value = schema.pop("extends")
        schema["allOf"] = [*schema.get("allOf", ()), *(value if isinstance(value, list) else [value])]
    if "disallow" in schema:
        schema["not"] = {"type": schema.pop("disallow")}
