"""`closed`: a schema whose objects have no other members than those that it names, as OpenAI's `strict` demands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Beside these a member may be named by another part of the schema, so the object stays as it is.
_IN_PLACE = {
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$dynamicRef",
    "dependentSchemas",
    "patternProperties",
}
_CLOSES = {"additionalProperties", "unevaluatedProperties"}
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("prefixItems", "anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """Return a schema with `additionalProperties: false` in each object that names members and says nothing about others.

    An object whose members may be named elsewhere, such as beside `allOf`, stays as it is. Cost: the size of the schema.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in _MAPS:
        if isinstance(found.get(name), Mapping):
            found[name] = {key: closed(one) for key, one in found[name].items()}
    has_members = isinstance(found.get("properties"), Mapping)
    for name in _LISTS:
        if isinstance(found.get(name), list) and not (has_members and name != "prefixItems"):
            found[name] = [closed(one) for one in found[name]]
    if "items" in found:
        items = found["items"]
        found["items"] = [closed(one) for one in items] if isinstance(items, list) else closed(items)
    given = {name for name, value in found.items() if value is not None}
    if has_members and not given & (_IN_PLACE | _CLOSES):
        found["additionalProperties"] = False
    return found
