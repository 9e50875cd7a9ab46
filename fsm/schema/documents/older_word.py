"""`in_latest_words`, `read_older_words`: rewrite keywords of older drafts and of OpenAPI as those of draft 2020-12, in any schema.

Many schemas name no draft, or a later one than they are written for. What an older word means is not in doubt where the later
draft has no such word, or gives it another shape:

- `dependencies`; a list as `items`, with `additionalItems` beside it; `true` or `false` as `exclusiveMinimum` and
  `exclusiveMaximum`; `required: true` inside a property; the type `any` (draft 3);
- `nullable: true` (OpenAPI 3.0): null, or a value of the schema without it.

Left out: `additionalItems` without a list of items, which means nothing in any draft; the words of draft 3 that are unknown to later
drafts (`extends`, `disallow`, `divisibleBy`): they count where a schema names draft 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.dialect import DRAFT_3, LATEST
from fsm.schema.places.place import Dialect
from fsm.schema.places.shape import Schema

Words = dict[str, Any]

_WORDS = frozenset({"dependencies", "nullable"})
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def has_older_words(schema: Mapping[str, Any]) -> bool:
    """True where the functions below would change the schema. Cost: one look at each keyword and at each property."""
    if not _WORDS.isdisjoint(schema) or isinstance(schema.get("items"), list) or allows_any_type(schema):
        return True
    if any(isinstance(schema.get(word), bool) for word in ("required", "exclusiveMinimum", "exclusiveMaximum")):
        return True
    return bool(_required_below(schema))


def allows_any_type(schema: Mapping[str, Any]) -> bool:
    """True where the type `any` of draft 3 is among those that a schema names."""
    named = schema.get("type")
    return named == "any" or (isinstance(named, list) and "any" in named)


def read_older_words(schema: Words) -> None:
    """Write all of these words but `nullable` as draft 2020-12 does, in place; the schemas below stay as they are."""
    _read_item_list(schema)
    _read_dependencies(schema)
    _read_bounds(schema)
    _read_required(schema)
    if allows_any_type(schema):
        del schema["type"]


def _read_item_list(schema: Words) -> None:
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        first, rest = schema.pop("items"), schema.pop("additionalItems", None)
        schema |= {"prefixItems": first} if first else {}
        schema |= {} if rest is None else {"items": rest}


def _read_dependencies(schema: Words) -> None:
    """Draft 3 may also name a single property instead of a list."""
    if not isinstance(schema.get("dependencies"), dict):
        return
    names, schemas = dict[str, Any](), dict[str, Any]()
    for key, value in schema.pop("dependencies").items():
        is_names = isinstance(value, list | str)
        (names if is_names else schemas)[key] = [value] if isinstance(value, str) else value
    for keyword, found in (("dependentRequired", names), ("dependentSchemas", schemas)):
        if found and isinstance(schema.get(keyword, {}), dict):
            schema[keyword] = {**found, **schema.get(keyword, {})}


def _read_bounds(schema: Words) -> None:
    for exclusive, inclusive in _BOUNDS:
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)


def _required_below(schema: Mapping[str, Any]) -> list[str]:
    """The properties that say of themselves that they are required."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [name for name, below in properties.items() if isinstance(below, dict) and below.get("required") is True]


def _read_required(schema: Words) -> None:
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    below, beside = _required_below(schema), schema.get("required", [])
    if below and isinstance(beside, list):
        schema["required"] = [*beside, *(name for name in below if name not in beside)]


def read_nullable(schema: Words, *, to_the_letter: bool) -> Words:
    """The schema without `nullable`, allowing null where that was true.

    Args:
        schema: in the words of draft 2020-12; it is changed.
        to_the_letter: of OpenAPI 3.0, where null joins the `type` that stands beside it, and no other keyword gives way.
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
    """The keywords of one schema as draft 2020-12 writes them; the schemas below stay as they are.

    Returns:
        The same object where nothing is to be changed.
    """
    if dialect is LATEST and not has_older_words(schema):
        return schema
    if dialect.has_lonely_references and "$ref" in schema:
        found: Words = {"$ref": schema["$ref"]}
        if "nullable" in schema and not dialect.has_nullable:
            return read_nullable({**found, "nullable": schema["nullable"]}, to_the_letter=False)
        return found
    unknown = KEYWORDS.unknown_to.get(dialect.name, frozenset())
    found = {key: value for key, value in schema.items() if key not in unknown}
    if dialect is DRAFT_3:
        _read_draft_3(found)
    read_older_words(found)
    if dialect.has_lonely_references:
        found.pop("$recursiveRef", None)
    if dialect.identifier == "id":
        found.pop("id", None)
    return read_nullable(found, to_the_letter=dialect.has_nullable)


def _read_draft_3(schema: Words) -> None:
    """Draft 3 has schemas among the types, and words of its own for `allOf`, `not` and `multipleOf`."""
    _read_types(schema)
    for word, keyword in (("divisibleBy", "multipleOf"), ("extends", "allOf"), ("disallow", "not")):
        if word in schema:
            value = schema.pop(word)
            if word == "extends":
                value = [*schema.get("allOf", ()), *(value if isinstance(value, list) else [value])]
            elif word == "disallow":
                value = {"type": value}
            schema[keyword] = value


def _read_types(schema: Words) -> None:
    named = schema.get("type")
    if isinstance(named, list) and any(isinstance(one, dict) for one in named):
        del schema["type"]
        if "any" not in named:
            branches = [one if isinstance(one, dict) else {"type": one} for one in named]
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
