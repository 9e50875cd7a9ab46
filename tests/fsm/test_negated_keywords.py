"""Each keyword alone, its opposite, and the opposite of that, against the `jsonschema` validator, on one list of values."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from fsm.errors import EmptyLanguage
from fsm.schema import json_schema

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 4.5, 0.3, -1, 10),
    *("", "a", "b", "ab", "abc", "2020-01-01"),
    *([], [1], [2], [1, 1], [1, 2], [2, 1], ["a"], ["a", 1], [1, 1, 1], [1, "a", None], [[1]], [{}]),
    *({}, {"a": 1}, {"b": 1}, {"a": "a"}, {"a": 1, "b": 1}, {"a": 1, "b": "b"}, {"ab": 1}, {"a": 1, "ab": 1}),
    *({"a": 1, "b": 1, "c": 1}, {"c": None}, {"a": {"a": 1}}, {"b": [1, 2]}, {"abc": 2}, {"a": 2, "c": 1}),
]

SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "number"},
    {"type": ["string", "null"]},
    {"enum": [1, "a", None, [1], {"a": 1}]},
    {"const": {"a": 1, "b": 1}},
    {"const": 0},
    {"minimum": 1},
    {"maximum": 1},
    {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 1},
    {"multipleOf": 2},
    {"multipleOf": 0.5},
    {"minLength": 1},
    {"maxLength": 1},
    {"maxLength": 0},
    {"pattern": "^a"},
    {"pattern": "b$"},
    {"minItems": 1},
    {"maxItems": 1},
    {"maxItems": 0},
    {"items": {"type": "integer"}},
    {"items": False},
    {"prefixItems": [{"const": 1}, True]},
    {"prefixItems": [True, {"const": 1}]},
    {"prefixItems": [{"type": "integer"}], "items": {"const": "a"}},
    {"contains": {"const": 1}},
    {"contains": {"const": 1}, "minContains": 2},
    {"contains": {"const": 1}, "maxContains": 1},
    {"contains": {"const": 1}, "minContains": 0, "maxContains": 2},
    {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
    {"required": ["a"]},
    {"required": ["a", "b"]},
    {"minProperties": 1},
    {"minProperties": 2},
    {"maxProperties": 1},
    {"maxProperties": 0},
    {"properties": {"a": {"type": "integer"}, "b": True}},
    {"properties": {"a": False}},
    {"properties": {"a": {"const": 1}}, "required": ["b"]},
    {"patternProperties": {"^a": {"type": "integer"}, "c": {"const": 1}}},
    {"patternProperties": {"b": False}},
    {"additionalProperties": {"type": "integer"}},
    {"properties": {"a": True}, "additionalProperties": False},
    {"properties": {"a": True}, "patternProperties": {"^b": True}, "additionalProperties": {"const": 1}},
    {"propertyNames": {"maxLength": 1}},
    {"propertyNames": {"enum": ["a", "b"]}},
    {"dependentRequired": {"a": ["b"], "c": []}},
    {"dependentRequired": {"b": ["a", "c"]}},
    {"dependentSchemas": {"a": {"maxProperties": 1}}},
    {"dependentSchemas": {"a": False, "b": {"required": ["c"]}}},
    {"allOf": [{"minimum": 1}, {"type": ["integer", "object"]}]},
    {"anyOf": [{"type": "integer"}, {"required": ["a"]}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
    {"oneOf": [{"minItems": 1}, {"maxItems": 1}, {"type": "string"}]},
    {"if": {"type": "integer"}, "then": {"minimum": 2}},
    {"if": {"type": "integer"}, "else": {"type": "object"}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"minProperties": 1}},
    {"if": {"type": "array"}, "then": {"minItems": 2}, "else": {"not": {"type": "string"}}},
    {"format": "date"},
    {"$ref": "#/$defs/one"},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/one"}}, "required": ["a"]},
]
DEFINITIONS = {"$defs": {"one": {"enum": [1, "a"]}}}


@cache
def _texts() -> list[tuple[Any, str]]:
    return [(value, json.dumps(value, separators=(",", ":"))) for value in VALUES]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_a_keyword_and_its_opposites_take_what_the_validator_takes(schema: dict[str, Any]) -> None:
    def without(wanted: Any) -> Any:
        return {**DEFINITIONS, "not": wanted}

    asserted = jsonschema.Draft202012Validator.FORMAT_CHECKER if "format" in schema else None
    plain = jsonschema.Draft202012Validator({**DEFINITIONS, **schema}, format_checker=asserted)
    expected = [value for value in VALUES if plain.is_valid(value)]
    assert 0 < len(expected) < len(VALUES)
    for made, holds in (
        ({**DEFINITIONS, **schema}, True),
        (without(schema), False),
        (without({"not": schema}), True),
    ):
        expression = json_schema(made, key_order="any")
        for value, text in _texts():
            is_expected = any(value is other for other in expected) is holds
            assert is_expected == expression.accepts(text), (made, text)


@pytest.mark.parametrize(
    "schema",
    [{"minLength": 0}, {"minItems": 0}, {"minProperties": 0}, {"contains": {"const": 1}, "minContains": 0}, {}],
)
def test_what_allows_everything_has_an_opposite_that_allows_nothing(schema: dict[str, Any]) -> None:
    with pytest.raises(EmptyLanguage):
        json_schema({"not": schema})
