"""What fuzzing and real schemas found: each finding once, as a plain example. The targets are in `tests/fuzz`."""

from __future__ import annotations

import pytest

from fsm import json_schema

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
