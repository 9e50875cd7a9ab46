"""Every schema compiles within a bound of work, or is refused with the name of the bound; and what compiles has masks."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, Limits, SchemaError, TokenFSM, Vocabulary, json_schema
from fsm.limits import DEFAULT_LIMITS
from fsm.terms import work

VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b'"a', b"a1", b'": ', b"12", None], [260])
MAX_SECONDS = 10  # some ten times what the slowest takes; the bound that counts is that of work


def each(count: int, *options: Any, **beside: Any) -> dict[str, Any]:
    """All of `count` choices, each an `anyOf`; in the options `N` stands for the number of the choice."""
    written = json.dumps({"anyOf": list(options)})
    return {
        "allOf": [json.loads(written.replace('"N"', str(n)).replace("N", str(n))) for n in range(1, count + 1)],
        **beside,
    }


def around(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for level in range(count):
        schema = {"anyOf": [{"allOf": [schema, {"minimum": level}]}, {"allOf": [schema, {"maximum": 100 - level}]}]}
    return schema


STRINGS = {"minLength": "N"}, {"pattern": "aN"}
KEYS = {"required": ["aN"]}, {"required": ["bN"]}
SHAPES: dict[str, tuple[Any, list[Any]]] = {
    "lengths or patterns, 9": (each(9, *STRINGS, type="string"), ["", "a8a7a6a5a4a3a2a1", "a1"]),
    "lengths or patterns, 12": (each(12, *STRINGS, type="string"), ["", "x" * 11, "x" * 10, "xxxxxxa11"]),
    "lengths or patterns, 200": (each(200, *STRINGS, type="string"), ["", "x" * 199]),
    "one of two keys, 12": (each(12, *KEYS, type="object"), [{}, {f"a{n}": 1 for n in range(12)}]),
    "one of two keys, 40": (each(40, *KEYS), [1, {}, {f"b{n}": 1 for n in range(40)}]),
    "one of two values, 13": (
        each(13, {"properties": {"kN": {"const": 1}}}, {"properties": {"kN": {"const": 2}}}),
        [{"k3": 2}, {"k3": 3}],
    ),
    "bounds or multiples": (each(12, {"minimum": "N"}, {"multipleOf": "N"}, type="number", minimum=0), []),
    "lengths of arrays or items": (each(12, {"minItems": "N"}, {"contains": {"const": "N"}}, type="array"), [[], [1, 2]]),
    "alternatives around alternatives, 40": (around(40), []),
    "conditions": (
        {
            "type": "string",
            "allOf": [{"if": {"pattern": f"a{n}"}, "then": {"minLength": n + 3}, "else": {"maxLength": 40 - n}} for n in range(6)],
        },
        ["", "a1", "a1xxxx"],
    ),
    "patterns of keys": ({"patternProperties": {c: {"minimum": n} for n, c in enumerate("abcdefghij")}}, [{"ab": 2}, {"cj": 3}]),
    "patterns of keys, more": (
        {"patternProperties": {c: {"minimum": n} for n, c in enumerate("abcdefghijklmnop")}, "additionalProperties": False},
        [{"zb": 2}, {"b": 0}],
    ),
    "schemas that depend": (
        {"dependentSchemas": {f"k{n}": {"anyOf": [{"required": [f"m{n}"]}, {"required": [f"o{n}"]}]} for n in range(30)}},
        [{"k1": 1}, {"k1": 1, "m1": 2}],
    ),
    "many branches": ({"oneOf": [{"required": [f"k{n}"]} for n in range(300)]}, [{"k1": 1}, {"k1": 1, "k2": 1}]),
    "all of oneOf": (
        {"allOf": [{"oneOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(12)], "type": "object"},
        [{}, {f"a{n}": 1 for n in range(12)}],
    ),
    "values beside patterns": (
        {"enum": [f"value {n}" for n in range(20_000)], "allOf": [{"pattern": str(n)} for n in range(4)]},
        ["value 1203", "value 1204", "value 10239"],
    ),
    "long required": ({"type": "object", "required": [f"r{n}" for n in range(5_000)]}, [{}]),
}  # fmt: skip


def follow(token_fsm: TokenFSM) -> None:
    """Make masks along a text."""
    state = token_fsm.initial_state
    for step in range(8):
        ids = [token_id for token_id in token_fsm.allowed_token_ids(state).tolist() if VOCABULARY.tokens[token_id]]
        if not ids:
            return
        state = token_fsm.next_state(state, ids[7 * step % len(ids)])


@pytest.mark.parametrize("shape", SHAPES)
def test_an_explosive_schema_compiles_within_the_bound_and_has_masks(shape: str) -> None:
    schema, values = SHAPES[shape]
    before, begin = work.done(), process_time()
    expression = json_schema(schema)
    assert work.done() - before < 1.3 * DEFAULT_LIMITS.max_work
    follow(TokenFSM(expression, VOCABULARY))
    assert process_time() - begin < MAX_SECONDS
    for value in values:
        validator = jsonschema_rs.validator_for(schema)
        assert validator.is_valid(value) == expression.accepts(json.dumps(value))


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"anyOf": [{"properties": {f"v{n}": {"type": "null"}}, "required": [f"v{n}"]} for n in range(5_000)]}, "max_work"),
        ({"oneOf": [{"type": "object", "properties": {"a": {"const": n}, "b": {"minimum": n}}} for n in range(10_000)]}, "max_work"),
        (each(12, {"properties": {"aN": {}}}, {"properties": {"bN": {}}}, unevaluatedProperties=False), "max_alternatives"),
        ({"anyOf": [{"enum": [*range(n, 3_000)]} for n in range(60)], "enum": [*range(3_000)]}, "max_work"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_with_the_name_of_the_limit(schema: dict[str, Any], limit: str) -> None:
    before, begin = work.done(), process_time()
    with pytest.raises(BudgetExceeded, match=limit) as caught:
        json_schema(schema)
    assert limit == caught.value.limit
    assert work.done() - before < 1.5 * DEFAULT_LIMITS.max_work
    assert process_time() - begin < MAX_SECONDS


def test_the_bound_can_be_raised_and_strict_leaves_nothing_to_checks() -> None:
    schema = {"anyOf": [{"properties": {f"v{n}": {"type": "null"}}, "required": [f"v{n}"]} for n in range(100)]}
    with pytest.raises(BudgetExceeded, match=r"limits=Limits\(max_work=...\)"):
        json_schema(schema, limits=Limits(max_work=1_000))
    assert json_schema(schema, limits=Limits(max_work=1_000_000)).accepts('{"v7": null}')
    with pytest.raises(SchemaError, match="too many combinations"):
        json_schema(SHAPES["one of two keys, 12"][0], strict=True)
    with pytest.raises(BudgetExceeded) as caught:
        json_schema(SHAPES["patterns of keys"][0], strict=True)
    assert caught.value.limit in ("max_work", "max_key_kinds")


SMALL = st.sampled_from(
    [
        {"minimum": 2}, {"multipleOf": 3}, {"type": "integer"}, {"minLength": 2}, {"pattern": "a"}, {"required": ["a"]},
        {"properties": {"a": {"type": "integer"}}}, {"maxItems": 1}, {"contains": {"const": 1}}, {"const": "ab"}, {"not": {"const": 6}},
        {"properties": {"a": False}}, {"additionalProperties": {"type": "string"}}, {"enum": [6, "aa", {"a": 1}]},
    ]
)  # fmt: skip
OPTIONS = st.lists(SMALL, min_size=2, max_size=3)
CHOICES = st.dictionaries(st.sampled_from(["anyOf", "oneOf"]), OPTIONS, min_size=1, max_size=1)
SCHEMAS = st.builds(
    lambda choices, beside: {"allOf": choices, **beside}, st.lists(CHOICES, min_size=2, max_size=5), CHOICES
)
VALUES = [None, 1, 6, 7, "", "ab", "aa", "bb", [], [1], [1, 2], {}, {"a": 1}, {"a": "x"}, {"b": "x"}, {"a": 6, "b": 2}]


@settings(max_examples=20, deadline=None)
@given(SCHEMAS)
def test_what_is_left_to_checks_accepts_the_same(schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    expected = [validator.is_valid(value) for value in VALUES]
    for most in (60, DEFAULT_LIMITS.max_work):  # few steps of work, so that little is left in the automaton
        try:
            expression = json_schema(schema, limits=Limits(max_work=most))
        except BudgetExceeded:
            assert most == 60
        except EmptyLanguage:
            assert not any(expected)
        else:
            assert expected == [expression.accepts(json.dumps(value)) for value in VALUES]
