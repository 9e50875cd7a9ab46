"""What a schema asks beyond what its automaton is made for is checked, said so, and refused where all must be exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import SchemaError
from fsm.schema import json_schema

_TWICE = "^(a+)b\\1$"  # no regular language


def _patterns(count: int) -> dict[str, Any]:
    return {"patternProperties": {f"^k{n}$": {"const": n} for n in range(count)}}


def _counts(count: int) -> dict[str, Any]:
    return {"allOf": [{"contains": {"const": n}} for n in range(count)], "type": "array"}


def _subsets(count: int) -> dict[str, Any]:
    return {
        "anyOf": [{"required": [f"p{n}"], "properties": {f"p{n}": True}} for n in range(count)],
        "unevaluatedProperties": False,
    }


CASES: list[tuple[dict[str, Any], str, str, list[Any], list[Any]]] = [
    (_patterns(17), "/patternProperties", "too many patterns", [{"k3": 3}, {"k16": 16, "x": 1}], [{"k3": 4}, {"k16": 1}]),
    ({"propertyNames": {"pattern": _TWICE}}, "/propertyNames", "keys would have to be checked", [{"aba": 1}, {}], [{"ab": 1}]),
    (
        {"patternProperties": {_TWICE: {"const": 1}}},
        "/patternProperties", "the pattern is not regular", [{"aba": 1}, {"ab": 2}], [{"aba": 2}],
    ),
    (
        {"patternProperties": {_TWICE: {"const": 1}}, "additionalProperties": False},
        "/patternProperties", "the pattern is not regular", [{"aba": 1}, {}], [{"aba": 2}, {"ab": 1}],
    ),
    (
        {"not": {"patternProperties": {_TWICE: {"const": 1}}}, "type": "object"},
        "/not/patternProperties", "the pattern is not regular", [{"aba": 2}], [{"aba": 1}, {"ab": 2}],
    ),
    (
        {"not": {"propertyNames": {"pattern": _TWICE}}, "type": "object"},
        "/not/propertyNames/not/pattern", "the pattern is not regular", [{"ab": 1}], [{"aba": 1}, {}],
    ),
    (_counts(9), "/allOf/0/contains", "too many counts", [[*range(9)], [*range(10)]], [[*range(8)], []]),
    (_subsets(7), "/anyOf", "", [{"p0": 1}, {"p5": 1}], [{"p0": 1, "x": 2}, {"x": 1}]),
    ({"if": {"uniqueItems": True}, "then": {"maxItems": 1}}, "/if/uniqueItems", "", [[1], [1, 1], "a"], [[1, 2]]),
    (
        {"$defs": {"c": {"$id": "http://x.org/c", "contains": {"const": 1}}}, "$ref": "http://x.org/c", "unevaluatedItems": {"const": 2}},
        "/unevaluatedItems", "`contains` is in another resource", [[1], [1, 2]], [[1, 3], [2]],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer", "reason", "good", "bad"), CASES)
def test_what_is_left_to_checks_is_said_and_still_holds(
    schema: dict[str, Any], pointer: str, reason: str, good: list[Any], bad: list[Any]
) -> None:
    expression = json_schema(schema, key_order="any")
    told = {line.pointer: line for line in expression.report if line.level == "checked"}
    assert f"#{pointer}" in told, told
    assert reason in told[f"#{pointer}"].note
    for value in (*good, *bad):
        assert (value in good) == expression.accepts(json.dumps(value, separators=(",", ":"))), value
    with pytest.raises(SchemaError, match="is not exact here"):
        json_schema(schema, key_order="any", strict=True)


@pytest.mark.parametrize("schema", [_patterns(16), _subsets(6), {"if": {"maxItems": 1}, "then": {"minItems": 1}}])
def test_what_is_just_within_the_bounds_is_exact(schema: dict[str, Any]) -> None:
    assert not any(line.level == "checked" for line in json_schema(schema, strict=True).report)


def test_listed_values_beside_a_pattern_that_is_checked_are_the_only_ones_that_the_automaton_holds() -> None:
    expression = json_schema({"enum": ["ab", "aa", 7], "pattern": r"(.)\1"})
    assert {line.pointer: line.level for line in expression.report} == {"#/enum": "exact", "#/pattern": "checked"}
    automaton = Automaton(expression.node)
    assert [automaton.accepts(text) for text in (b'"ab"', b'"aa"', b"7", b'"bb"')] == [True, True, True, False]
    assert [expression.accepts(text) for text in ('"ab"', '"aa"', "7")] == [False, True, True]
