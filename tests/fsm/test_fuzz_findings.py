"""What fuzzing and real schemas found: each finding once, as a plain example. The targets are in `tests/fuzz`."""

from __future__ import annotations

from typing import Any

import pytest

from fsm import SchemaError, json_schema

CLOSED = {"patternProperties": {"b$": True}, "additionalProperties": False}


@pytest.mark.parametrize("key_order", ["any", "schema"])
def test_one_member_may_be_what_two_negations_ask_for(key_order: str) -> None:
    schema = {"type": "object", "allOf": [{"not": CLOSED}, {"not": dict(CLOSED)}]}
    expression = json_schema(schema, key_order=key_order)  # type: ignore[arg-type]
    assert expression.accepts('{"c": 1}')
    assert not expression.accepts('{"ab": 1}')


@pytest.mark.parametrize("key_order", ["any", "schema"])
def test_one_member_does_two_duties_only_with_a_value_for_both(key_order: str) -> None:
    schema = {
        "type": "object",
        "maxProperties": 1,
        "allOf": [
            {"not": {"additionalProperties": {"type": "string"}}},
            {"not": {"additionalProperties": {"type": "integer"}}},
        ],
    }
    expression = json_schema(schema, key_order=key_order)  # type: ignore[arg-type]
    assert expression.accepts('{"c": null}')
    assert not expression.accepts('{"c": 1}')
    assert not expression.accepts('{"c": "x"}')
    assert not expression.accepts('{"c": 1, "d": "x"}')


@pytest.mark.parametrize("note", ["$default", "typeof", "$$description", "Description", "@comment"])
def test_a_note_that_resembles_what_only_annotates_is_no_misspelt_keyword(note: str) -> None:
    assert json_schema({"type": "null", note: {"$source": "argv"}}).accepts("null")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://[x"},
        {"$ref": "#a", "$defs": {"x": {"$anchor": {}}}},
        {"$ref": "#a", "$defs": {"x": {"$id": 5}}},
        {"$ref": "x#a", "$defs": {"x": {"$id": "http://[x", "$anchor": "a"}}},
        {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": []}}},
    ],
)
def test_a_malformed_identifier_is_refused_by_a_schema_error(schema: Any) -> None:
    with pytest.raises(SchemaError, match="Correct it"):
        json_schema(schema)


COPRIME = {"type": "integer", "allOf": [{"not": {"multipleOf": prime}} for prime in (2, 3, 5, 7)]}  # only checked


def test_a_reference_that_is_no_proper_uri_is_followed_by_checks_too() -> None:
    rows = {"type": "array", "items": {"$ref": "#/$defs/Row<Cell>"}, "maxItems": 2}
    schema = {"$ref": "#/$defs/Rows<Row>", "$defs": {"Rows<Row>": rows, "Row<Cell>": COPRIME}}
    expression = json_schema(schema)
    assert expression.has_checks
    assert expression.accepts("[11]")
    assert not expression.accepts("[14]")


def test_a_schema_that_the_validator_does_not_take_is_refused_by_a_schema_error() -> None:
    expression = json_schema({"type": "string", "pattern": "(a)\\1[^]"})
    with pytest.raises(SchemaError, match="the validator does not take"):
        expression.accepts('"a"')
