"""Branches of `oneOf` that exclude each other are compiled like `anyOf`; the others are not."""

from __future__ import annotations

from typing import Any

import pytest

from fsm import json_schema


def tagged(*values: str, **more: Any) -> dict[str, Any]:
    return {"properties": {"kind": {"enum": list(values)}}, **more}


REFERENCE = {"type": "object", "required": ["$ref"], "patternProperties": {"^\\$ref$": {"type": "string"}}}
CLOSED = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}

OPEN = {"type": "object", "additionalProperties": {"type": "object"}}

APART: dict[str, dict[str, Any]] = {
    "a tag that the surroundings require": {"type": "object", "required": ["kind"], "oneOf": [tagged("a"), tagged("b")]},
    "a tag that one branch requires": {"type": "object", "oneOf": [tagged("a"), tagged("b", required=["kind"])]},
    "a tag of nested branches": {
        "type": "object",
        "required": ["kind"],
        "oneOf": [tagged("a"), {"oneOf": [tagged("b"), tagged("c")]}],
    },
    "a tag behind allOf and a reference": {
        "type": "object",
        "required": ["kind"],
        "oneOf": [tagged("a"), {"allOf": [{"$ref": "#/$defs/b"}]}],
        "$defs": {"b": tagged("b")},
    },
    "a tag that what leads here requires": {
        "type": "object",
        "required": ["kind"],
        "allOf": [{"$ref": "#/$defs/b"}],
        "$defs": {"b": {"oneOf": [tagged("a"), tagged("b")]}},
    },
    "a key that the other does not allow": {"oneOf": [CLOSED, {"type": "object", "required": ["b"]}]},
    "a key that no pattern of the other allows": {
        "oneOf": [{**CLOSED, "patternProperties": {"^x-": {}}}, REFERENCE],
    },
    "a key whose value has another type": {"oneOf": [OPEN, REFERENCE]},
    "a tag behind a reference of its own": {
        "type": "object",
        "required": ["kind"],
        "oneOf": [{"properties": {"kind": {"$ref": "#/$defs/a"}}}, {"properties": {"kind": {"anyOf": [{"const": "b"}]}}}],
        "$defs": {"a": {"enum": ["a"]}},
    },
    "a tag inside a member": {
        "type": "object",
        "required": ["head"],
        "oneOf": [
            {"properties": {"head": tagged("a", type="object", required=["kind"])}},
            {"properties": {"head": tagged("b", type="object", required=["kind"])}},
        ],
    },
    "listed values": {"oneOf": [{"enum": ["a", 1]}, {"const": "b"}, {"enum": [2.5, None]}, {"type": "object"}]},
    "a key that a property forbids": {
        "oneOf": [{"type": "object", "properties": {"a": False}}, {"type": "object", "required": ["a"]}],
    },
}  # fmt: skip
TOGETHER: dict[str, tuple[dict[str, Any], str]] = {
    "a tag that may be left out": ({"type": "object", "oneOf": [tagged("a"), tagged("b")]}, "{}"),
    "values that have no keys": ({"required": ["kind"], "oneOf": [tagged("a"), tagged("b")]}, "5"),
    "a tag of one nested branch only": (
        {"type": "object", "required": ["kind"], "oneOf": [tagged("a"), {"anyOf": [tagged("b"), {}]}]},
        '{"kind": "a"}',
    ),
    "a key that a pattern allows": (
        {"oneOf": [{**CLOSED, "patternProperties": {"ref": {}}}, REFERENCE]},
        '{"$ref": "b"}',
    ),
    "a tag that only another value requires": (
        {
            "properties": {"x": {"required": ["kind"], "allOf": [{"$ref": "#/$defs/b"}]}},
            "$ref": "#/$defs/b",
            "$defs": {"b": {"type": "object", "oneOf": [tagged("a"), tagged("b")]}},
        },
        "{}",
    ),
    "a key whose value may have the same type": (
        {"oneOf": [{"type": "object", "additionalProperties": {"type": ["object", "string"]}}, REFERENCE]},
        '{"$ref": "b"}',
    ),
    "listed values of which one is equal": ({"oneOf": [{"enum": ["a", 1]}, {"const": 1.0}]}, "1"),
    "a key that nobody requires": ({"oneOf": [CLOSED, {"type": "object", "properties": {"b": {}}}]}, "{}"),
}


def as_any_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [as_any_of(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: as_any_of(value) for key, value in schema.items()}


@pytest.mark.parametrize("name", APART)
def test_branches_that_exclude_each_other_are_like_any_of(name: str) -> None:
    assert json_schema(as_any_of(APART[name])) == json_schema(APART[name])


@pytest.mark.parametrize("name", TOGETHER)
def test_a_value_of_two_branches_is_refused(name: str) -> None:
    schema, text = TOGETHER[name]
    assert json_schema(as_any_of(schema)).accepts(text)
    assert not json_schema(schema).accepts(text)
