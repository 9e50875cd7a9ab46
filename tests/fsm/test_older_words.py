"""Schemas in words of older drafts, against a validator that is a plain reading of what those words mean."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from fsm.errors import EmptyLanguage
from fsm.schema.check import Translation
from fsm.schema.keywords.resource import LATEST

NAMES = st.sampled_from("abc")
SCALARS = st.sampled_from([None, True, -2, 0, 1, 2, 0.5, "x", "y"])
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=6)


def _some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={**parts, "nullable": st.booleans()})


def _nested(schema: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    required = st.booleans() | st.lists(NAMES, unique=True)
    property_ = st.builds(
        lambda one, word: {**one, "required": word} if word in (True, False) else one, schema, st.none() | st.booleans()
    )
    depended = NAMES | st.lists(NAMES, unique=True) | schema
    return st.one_of(
        _some(
            type=st.just("object"), properties=st.dictionaries(NAMES, property_, max_size=3), required=required,
            dependencies=st.dictionaries(NAMES, depended, max_size=2), additionalProperties=schema | st.booleans(),
        ),
        _some(type=st.just("array"), items=schema | st.lists(schema, max_size=2), additionalItems=schema | st.booleans()),
        _some(**{word: st.lists(schema, min_size=1, max_size=2) for word in ("anyOf", "allOf", "oneOf")}),
    )  # fmt: skip


TYPES = st.sampled_from(["string", "null", "integer", "any", ["string", "null"]])
SIMPLE = _some(type=TYPES, enum=st.lists(SCALARS, min_size=1, max_size=2)) | _some(
    type=st.just("number"), minimum=st.integers(-1, 1), exclusiveMinimum=st.booleans()
)
SCHEMAS = st.recursive(SIMPLE, _nested, max_leaves=5)


def is_valid(schema: Any, value: Any) -> bool:
    """What the words mean, one after the other."""
    if isinstance(schema, bool):
        return schema
    if value is None and schema.get("nullable") is True:
        return True
    return (
        _has_type(schema.get("type", "any"), value)
        and ("enum" not in schema or any(_same(value, one) for one in schema["enum"]))
        and (not isinstance(value, dict) or _is_valid_object(schema, value))
        and (not isinstance(value, list) or _is_valid_array(schema, value))
        and (not _has_type("number", value) or _is_in_range(schema, value))
        and all(is_valid(one, value) for one in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(is_valid(one, value) for one in schema["anyOf"]))
        and ("oneOf" not in schema or sum(is_valid(one, value) for one in schema["oneOf"]) == 1)
    )


def _has_type(names: Any, value: Any) -> bool:
    kinds = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
    }
    kind = kinds[type(value)]
    return any(
        name in (kind, "any") or (name, kind) == ("number", "integer")
        for name in ([names] if isinstance(names, str) else names)
    )


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _is_in_range(schema: Any, value: Any) -> bool:
    lo = schema.get("minimum")
    return lo is None or value > lo or (value == lo and not schema.get("exclusiveMinimum"))


def _is_valid_array(schema: Any, value: list[Any]) -> bool:
    items = schema.get("items", True)
    if not isinstance(items, list):
        return all(is_valid(items, one) for one in value)
    rest = [schema.get("additionalItems", True)] * len(value)
    return all(is_valid(one, part) for one, part in zip([*items, *rest], value, strict=False))


def _is_valid_object(schema: Any, value: dict[str, Any]) -> bool:
    known = schema.get("properties", {})
    needed = [*schema["required"]] if isinstance(schema.get("required"), list) else []
    needed += [name for name, one in known.items() if one.get("required") is True]
    for name, one in schema.get("dependencies", {}).items():
        if name in value and isinstance(one, dict):
            if not is_valid(one, value):
                return False
        elif name in value:
            needed += [one] if isinstance(one, str) else one
    other = schema.get("additionalProperties", True)
    return all(name in value for name in needed) and all(
        is_valid(known.get(name, other), one) for name, one in value.items()
    )


@settings(max_examples=80)
@given(SCHEMAS, st.lists(VALUES, min_size=4, max_size=8))
def test_older_words_accept_what_they_say(schema: dict[str, Any], values: list[Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=fsm.SchemaWarning):
        try:
            expression = fsm.json_schema(schema, key_order="any")
        except EmptyLanguage:
            expression = None
    translated = Translation(schema, LATEST).root
    for value in values:
        expected = is_valid(schema, value)
        assert expected == (expression is not None and expression.accepts(json.dumps(value))), value
        assert expected == jsonschema_rs.is_valid(translated, value), value
