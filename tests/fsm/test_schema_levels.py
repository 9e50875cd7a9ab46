"""What the automaton holds by itself: schemas that `strict` takes, with a report of nothing but `exact`, and those that it refuses."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from fsm import SchemaError, SchemaWarning, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.schema.documents import cases

INTEGERS, SHORT = {"type": "integer", "minimum": 2}, {"type": "string", "maxLength": 2}
NESTED = {
    "anyOf": [{"anyOf": [INTEGERS, SHORT]}, {"anyOf": [{"anyOf": [{"const": [1]}, {"minItems": 3}]}, {"const": None}]}]
}
WIDE = {"type": ["integer", "string"], "anyOf": [INTEGERS, SHORT]}
WIDER = {"type": ["null", "string"], "anyOf": [{"const": None}, {"minLength": 2}]}
AROUND = {"type": ["integer", "string", "null"], "anyOf": [WIDE, WIDER]}
VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    2,
    3,
    0.5,
    "",
    "a",
    "ab",
    "abc",
    [],
    [1],
    [1, 2],
    ["a"],
    [1, 1, 1],
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 1},
]
VALUES += [{"a": 1, "b": 1}, {"a": "x", "b": 2}, {"c": 1}, {"a": {"a": 1}}, [[1]], {"ab": 1, "a": 2}]

EXACT: dict[str, Any] = {
    "if": {"if": {"type": "string"}, "then": SHORT, "else": {"type": ["integer", "array"]}},
    "if without else": {"if": {"required": ["a"]}, "then": {"properties": {"a": INTEGERS}}},
    "if without then": {"if": {"minimum": 2}, "else": SHORT},
    "if alone": {"if": {"minimum": 2}},
    "if that evaluates": {"if": {"properties": {"a": INTEGERS}, "required": ["a"]}, "unevaluatedProperties": False},
    "not": {"not": {"anyOf": [INTEGERS, SHORT, {"required": ["a"]}]}},
    "not not": {"not": {"not": INTEGERS}},
    "oneOf that may hold together": {"oneOf": [{"type": "number", "minimum": 2}, {"type": "number", "maximum": 2}, SHORT]},
    "oneOf that cannot": {"oneOf": [INTEGERS, SHORT, {"type": "array"}]},
    "anyOf around anyOf": NESTED,
    "anyOf around anyOf, and more": AROUND,
    "anyOf beside anyOf": {"allOf": [{"anyOf": [INTEGERS, SHORT]}, {"anyOf": [{"minimum": 3}, {"const": 2}]}]},
    "dependentRequired": {"dependentRequired": {"a": ["b"], "b": ["a"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}, "b": {"properties": {"b": INTEGERS}}}},
    "contains": {"contains": INTEGERS, "minContains": 1, "maxContains": 2},
    "unevaluatedItems": {"prefixItems": [True], "unevaluatedItems": INTEGERS},
    "unevaluatedProperties": {"anyOf": [{"properties": {"a": True}, "required": ["a"]}, True], "unevaluatedProperties": False},
    "patternProperties": {"patternProperties": {"^a": INTEGERS, "b": SHORT}, "additionalProperties": False},
    "propertyNames": {"propertyNames": {"maxLength": 1}},
    "const and enum": {"enum": [1, "a", [1], {"a": 1}], "not": {"const": "a"}},
    "multipleOf": {"multipleOf": 0.5, "minimum": 0.5},
    "minProperties": {"properties": {"a": True, "b": True}, "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
    "a tree": {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False, "type": ["object", "integer"]},
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_the_automaton_alone_holds(name: str) -> None:
    schema = EXACT[name]
    expression = json_schema(schema, strict=True, key_order="any")
    assert {"exact"} == {line.level for line in expression.report}
    automaton = Automaton(expression.node)
    validator = jsonschema.Draft202012Validator(schema)
    assert [v for v in VALUES if validator.is_valid(v)] == [
        v for v in VALUES if automaton.accepts(json.dumps(v).encode())
    ]


CHECKED: dict[str, tuple[Any, set[str]]] = {
    "uniqueItems": ({"uniqueItems": True, "items": INTEGERS}, {"#/uniqueItems"}),
    "not, leading back": (
        {"$defs": {"a": {"properties": {"a": {"not": {"$ref": "#/$defs/a"}}}}}, "$ref": "#/$defs/a"},
        set(),
    ),
    "many branches": ({"oneOf": [{"minLength": n} for n in range(61)]}, {"#/oneOf"}),
}


@pytest.mark.parametrize("name", CHECKED)
def test_a_check_is_told(name: str) -> None:
    schema, checked = CHECKED[name]
    expression = json_schema(schema)
    assert checked == {line.pointer for line in expression.report if line.level == "checked"}
    if checked:
        with pytest.raises(SchemaError):
            json_schema(schema, strict=True)


def test_alternatives_around_others_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "MAX_JOINED", 0)
    for schema in (NESTED, AROUND, {"allOf": [AROUND]}):
        assert {"exact"} == {line.level for line in json_schema(schema, strict=True).report}
    with pytest.raises(SchemaError, match="too many combinations"):
        json_schema(EXACT["anyOf beside anyOf"], strict=True)


def test_combinations_are_counted_before_they_are_made() -> None:
    schema = {"type": "object", "dependentRequired": {f"k{n}": [f"m{n}"] for n in range(40)}}
    expression = json_schema(schema)
    assert expression.accepts('{"m3": 1, "k3": 1}') is expression.accepts('{"k3": 1, "m3": 1}') is True
    assert not expression.accepts('{"k3": 1}')
    assert {line.pointer for line in expression.report if line.level == "checked"} == {"#/dependentRequired"}


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize(
    "keyword", ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
)
def test_a_count_that_is_denied_begins_right_behind_its_limit(keyword: str, most: int) -> None:
    schema = {"not": {keyword: most}}
    validator = jsonschema.Draft202012Validator(schema)
    sizes = range(5)
    values: list[Any] = [
        *("a" * n for n in sizes),
        *([1] * n for n in sizes),
        *(dict.fromkeys("abcd"[:n], 1) for n in sizes),
        1,
    ]
    valid = [value for value in values if validator.is_valid(value)]
    accepts = json_schema(schema).accepts if valid else lambda text: False
    assert valid == [value for value in values if accepts(json.dumps(value))]


META = "https://example.org/meta"
VALIDATION = "https://json-schema.org/draft/2020-12/vocab/validation"


@pytest.mark.parametrize(
    "vocabulary", [None, {VALIDATION: True}, {"https://example.org/other": True, VALIDATION: True}]
)
@pytest.mark.parametrize("mark", ["", "#"])
def test_a_metaschema_of_the_registry_is_read_as_its_draft(vocabulary: dict[str, bool] | None, mark: str) -> None:
    given = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    given |= {} if vocabulary is None else {"$vocabulary": vocabulary}  # type: ignore[dict-item]
    expression = json_schema({"$schema": META + mark, "type": "integer"}, registry={META: given}, strict=True)
    assert expression.accepts("1")
    assert not expression.accepts("null")


def test_a_metaschema_without_validation_is_refused_and_an_unknown_one_is_told() -> None:
    given = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$vocabulary": {"https://example.org/other": True},
    }
    with pytest.raises(SchemaError, match="leaves out vocabularies"):
        json_schema({"$schema": META, "type": "integer"}, registry={META: given})
    with pytest.warns(SchemaWarning, match="is not known; the schema is read as one of"):
        json_schema({"$schema": META, "type": "integer"})
