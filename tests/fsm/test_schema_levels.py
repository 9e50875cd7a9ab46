"""What the automaton holds by itself, values next to the limits of each keyword, and the bound on the work of compiling."""

from __future__ import annotations

import json
import math
from time import process_time
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, Limits, SchemaError, SchemaWarning, TokenFSM, Vocabulary, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.limits import DEFAULT_LIMITS
from fsm.schema.documents import cases
from fsm.terms import work
from tests.examples import examples

INTEGERS, SHORT = {"type": "integer", "minimum": 2}, {"type": "string", "maxLength": 2}
NESTED = {"anyOf": [{"anyOf": [INTEGERS, SHORT]}, {"anyOf": [{"anyOf": [{"const": [1]}, {"minItems": 3}]}, {"const": None}]}]}
WIDE = {"type": ["integer", "string"], "anyOf": [INTEGERS, SHORT]}
WIDER = {"type": ["null", "string"], "anyOf": [{"const": None}, {"minLength": 2}]}
AROUND = {"type": ["integer", "string", "null"], "anyOf": [WIDE, WIDER]}
VALUES: list[Any] = [
    None, True, 0, 1, 2, 3, 0.5, "", "a", "ab", "abc", [], [1], [1, 2], ["a"], [1, 1, 1], {}, {"a": 1}, {"a": "x"}, {"b": 1},
]  # fmt: skip
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
    assert [v for v in VALUES if validator.is_valid(v)] == [v for v in VALUES if automaton.accepts(json.dumps(v).encode())]


CHECKED: dict[str, tuple[Any, set[str]]] = {
    "uniqueItems": ({"uniqueItems": True, "items": INTEGERS}, {"#/uniqueItems"}),
    "not, leading back": ({"$defs": {"a": {"properties": {"a": {"not": {"$ref": "#/$defs/a"}}}}}, "$ref": "#/$defs/a"}, set()),
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


META = "https://example.org/meta"
VALIDATION = "https://json-schema.org/draft/2020-12/vocab/validation"


@pytest.mark.parametrize("vocabulary", [None, {VALIDATION: True}, {"https://example.org/other": True, VALIDATION: True}])
@pytest.mark.parametrize("mark", ["", "#"])
def test_a_metaschema_of_the_registry_is_read_as_its_draft(vocabulary: dict[str, bool] | None, mark: str) -> None:
    given = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    given |= {} if vocabulary is None else {"$vocabulary": vocabulary}  # type: ignore[dict-item]
    expression = json_schema({"$schema": META + mark, "type": "integer"}, registry={META: given}, strict=True)
    assert expression.accepts("1")
    assert not expression.accepts("null")


def test_a_metaschema_without_validation_is_refused_and_an_unknown_one_is_told() -> None:
    given = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$vocabulary": {"https://example.org/other": True}}
    with pytest.raises(SchemaError, match="leaves out vocabularies"):
        json_schema({"$schema": META, "type": "integer"}, registry={META: given})
    with pytest.warns(SchemaWarning, match="is not known; the schema is read as one of"):
        json_schema({"$schema": META, "type": "integer"})


COUNTS = st.integers(0, 3)
MEMBERS = st.lists(st.tuples(st.sampled_from(["a", "b", "x", "y", "z"]), st.sampled_from(["1", '"s"', "null"])), max_size=4)


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """Objects with counts, of which some members are declared and some of these required."""
    schema: dict[str, Any] = {"type": "object"}
    names = draw(st.lists(st.sampled_from(["a", "b"]), unique=True))
    schema["properties"] = {name: draw(st.sampled_from([{}, {"type": "integer"}])) for name in names}
    schema |= draw(st.fixed_dictionaries({}, optional={"minProperties": COUNTS, "maxProperties": COUNTS}))
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(["a", "b", "x"]), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([False, {"type": "string"}]))
    return schema


@settings(max_examples=examples(120), deadline=None)
@given(objects(), st.lists(MEMBERS, min_size=3, max_size=6))
@example({"type": "object", "maxProperties": 2}, [[("x", "1"), ("x", "1")], [("x", "1"), ("y", "1")]])
@example({"type": "object", "properties": {"a": {}}, "minProperties": 1}, [[], [("a", "1")], [("x", "1")]])
def test_an_object_has_as_many_members_as_the_counts_say_each_key_once(schema: dict[str, Any], found: list[list[tuple[str, str]]]) -> None:
    try:
        accepts = json_schema(schema, key_order="any", whitespace="none").accepts
    except EmptyLanguage:
        accepts = lambda text: False  # noqa: E731
    for members in found:
        text = "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
        is_distinct = len({name for name, _ in members}) == len(members)
        assert accepts(text) == (is_distinct and is_valid(schema, json.loads(text))), text


LIMITS = st.sampled_from(
    [
        0, 1, -1, 9, 10, 99, 100, -100, 2**31, 2**53 - 1, 2**53, 2**53 + 2, -(2**53), 2**63, 10**16, 10**22, 0.5, 0.1, -2.25,
        1e-7,
    ]
)  # fmt: skip
BOUNDS = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])


@settings(max_examples=examples(120), deadline=None)
@given(BOUNDS, LIMITS, st.sampled_from(["integer", "number"]))
@example("maximum", 2**53, "integer")
@example("minimum", -(2**53), "number")
def test_a_number_next_to_a_bound_is_on_its_right_side(keyword: str, limit: float, kind: str) -> None:
    accepts = json_schema({"type": kind, keyword: limit}).accepts
    if isinstance(limit, int):
        step = max(int(math.ulp(limit)), 1)  # a number that a reader with doubles tells from the bound
        values: list[float] = [limit - step, limit, limit + step]
    else:
        values = [
            math.nextafter(limit, -math.inf), limit, math.nextafter(limit, math.inf), math.floor(limit), math.ceil(limit),
        ]  # fmt: skip
    for value in values:
        written = json.dumps(value)
        if "e" in written or (kind == "integer" and not isinstance(value, int)):
            continue
        valid = is_valid({"type": kind, keyword: limit}, value)
        if abs(value) <= 2**53 or value == limit:
            assert accepts(written) == valid, written
        else:  # the shortest spelling of the nearest double may lie a little further away
            assert valid or not accepts(written), written


VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b'"a', b"a1", b'": ', b"12", None], [260])
MAX_SECONDS = 10  # some ten times what the slowest takes; the bound that counts is that of work


def each(count: int, *options: Any, **beside: Any) -> dict[str, Any]:
    """All of `count` choices, each an `anyOf`; in the options `N` stands for the number of the choice."""
    written = json.dumps({"anyOf": list(options)})
    return {"allOf": [json.loads(written.replace('"N"', str(n)).replace("N", str(n))) for n in range(1, count + 1)], **beside}


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
