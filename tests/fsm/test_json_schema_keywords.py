"""Every keyword of JSON Schema, in any combination and alone with its opposites, against the `jsonschema` validator."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, example, given, note, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, FSMError, Limits, SchemaError, json_schema
from fsm.automaton.checker import has_checks
from fsm.automaton.lazy_dfa import Automaton
from fsm.pattern.ecma_pattern import ecma_search
from fsm.schema.documents import cases
from fsm.schema.key_minterms import KeyMinterms
from fsm.terms import node as nodes
from fsm.terms.characters import utf8
from fsm.terms.derivative import Derivatives
from tests.examples import examples
from tests.judged import at_least, judged
from tests.walks import RANDOMS, random_text

Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMES = ["a", "b", "ab", "c", 'é"']
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 3, 4.5, 0.5, -1, -0.125, 10**20, "", "a", "b", "ab", "abc", "é😀", "\n\\"])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^$", "c|^b"])
SMALL = st.integers(0, 3)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


@cache
def values(depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return SCALARS
    below = values(depth - 1)
    return SCALARS | st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=3)


def keywords(below: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """What each keyword may be."""
    some = st.lists(below, min_size=1, max_size=3)
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(values(1), min_size=1, max_size=4),
        "const": values(1),
        "minimum": st.sampled_from([0, 1, 2, 0.5]),
        "exclusiveMaximum": st.sampled_from([1, 3, 4.5]),
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.25]),  # as floats, 5.4 is no multiple of 0.3
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), SMALL),
        **dict.fromkeys(("minProperties", "maxProperties"), SMALL),
        **dict.fromkeys(("items", "contains", "unevaluatedItems", "unevaluatedProperties"), below),
        **dict.fromkeys(("additionalProperties", "propertyNames", "not", "if", "then", "else"), below),
        **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), some),
        **dict.fromkeys(("properties", "dependentSchemas"), st.dictionaries(st.sampled_from(NAMES), below, max_size=3)),
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
        "patternProperties": st.dictionaries(PATTERNS, below, max_size=2),
        "required": names,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "$ref": st.sampled_from(["#/$defs/list", "#/$defs/tree", "#name"]),
    }


DEFINITIONS = {
    "list": {"type": "array", "items": {"$ref": "#/$defs/list"}},
    "tree": {"$anchor": "name", "properties": {"a": {"$ref": "#name"}}, "maxProperties": 1},
}


@st.composite
def drawn(draw: Draw, below: st.SearchStrategy[Any]) -> Any:
    kinds = keywords(below)
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=4, unique=True))
    return {name: draw(kinds[name]) for name in chosen}


@cache
def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return st.booleans() | TYPES.map(lambda name: {"type": name}) | values(1).map(lambda value: {"const": value})
    return schemas(0) | drawn(schemas(depth - 1))


DOCUMENTS = schemas(3).map(lambda s: {"$defs": DEFINITIONS} | s if isinstance(s, dict) else s)
relaxed = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def texts_of(value: Any) -> list[str]:
    return [json.dumps(value, ensure_ascii=False, separators=s) for s in ((",", ":"), (", ", ": "))]


@at_least(30)
@relaxed
@given(DOCUMENTS, RANDOMS, st.integers(0, 40), st.booleans())
def test_every_text_that_passes_is_valid_json(schema: Any, random: Random, steps: int, strict: bool) -> None:
    try:
        expression = json_schema(schema, strict=strict)
    except (EmptyLanguage, SchemaError, BudgetExceeded):
        return
    text = random_text(expression.node, random, steps)
    note(repr(text))
    keys: list[str] = []
    value = json.loads(text, object_pairs_hook=lambda pairs: keys.extend(k for k, _ in pairs) or dict(pairs))
    if strict or expression.accepts(text):
        judged()
        assert is_valid(schema, value)


def places(item: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value, as its container and its key."""
    keys = [*item] if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else []
    return [place for key in keys for place in [(item, key), *places(item[key])]]


@pytest.mark.filterwarnings("ignore::fsm.errors.SchemaWarning")
@relaxed
@given(DOCUMENTS, values() | st.sampled_from([{"$ref": "#"}, "#/$defs/none", "(", -1, 10**20]), RANDOMS)
def test_a_schema_with_a_mistake_is_read_or_refused_by_an_error_of_this_package(schema: Any, mistake: Any, random: Random) -> None:
    whole = copy.deepcopy({"allOf": [schema], "properties": {"a": schema}})
    container, key = random.choice(places(whole))
    container[key] = mistake
    note(json.dumps(whole))
    with suppress(FSMError):
        json_schema(whole)


BOUNDS = {
    "MAX_EXACT": (0, 1, 2, 5), "_FEW_STEPS": (0, 3, 10), "MAX_STEPS": (2, 10, 30), "MAX_JOINED": (0, 3, 20),
    "_MAX_MULTIPLIED": (1, 2, 4), "_MAX_APART": (1, 2), "MAX_SPENT": (0, 1, 4, 10), "_CASE_COST": (0, 1),
    "_MAX_SMALL": (0, 1, 2), "_MAX_SUBSETS": (1, 2), "_MAX_KEPT": (0, 1),
}  # fmt: skip
"""Bounds of the cases of one value, each with some that are soon reached."""

SOME_BOUNDS = st.just({}) | st.fixed_dictionaries({}, optional={name: st.sampled_from(small) for name, small in BOUNDS.items()})
WORK = st.sampled_from([60, 500, Limits().max_work, Limits().max_work])


@settings(relaxed, max_examples=examples(120))
@given(DOCUMENTS, SOME_BOUNDS, st.lists(values(), min_size=4, max_size=8), st.booleans(), WORK, st.sampled_from(["any", "any", "schema"]))
@example({"not": {"type": "integer", "multipleOf": 2}}, {}, [1, 2, 4.5], False, Limits().max_work, "any")
@example(
    {"contains": {"const": 1}, "maxContains": 1, "unevaluatedItems": False}, {}, [[1], [1, 1], [1, 2]], False, Limits().max_work, "any"
)
@example(
    {"anyOf": [{"minimum": 1}, {"maxLength": 1}], "oneOf": [{"type": "string"}, {"not": {"const": 3}}]},
    {"MAX_JOINED": 0},
    ["a", "ab", 0, 2, 3],
    False,
    Limits().max_work,
    "any",
)
def test_an_instance_is_accepted_exactly_if_it_is_valid_whatever_is_left_to_checks(
    schema: Any, bounds: dict[str, int], found: list[Any], strict: bool, most: int, key_order: Any
) -> None:
    try:
        with patch.multiple(cases, **{"MAX_EXACT": cases.MAX_EXACT} | bounds):
            expression = json_schema(schema, key_order=key_order, strict=strict, limits=Limits(max_work=most))
    except EmptyLanguage:
        assert not any(is_valid(schema, value) for value in found)
        return
    except (SchemaError, BudgetExceeded) as error:
        if bounds or strict or most < Limits().max_work:
            return
        assume(getattr(error, "limit", "") != "max_alternatives")  # refused
        if "refers to itself" not in str(error):
            raise
        return
    is_exact = all(line.level == "exact" for line in expression.report)
    assert is_exact or not strict
    automaton = Automaton(expression.node)
    for value in found:
        note(repr(value))
        valid = is_valid(schema, value)
        accepted = {expression.accepts(text) for text in texts_of(value)}
        alone = {automaton.accepts(text.encode()) for text in texts_of(value)}
        if key_order == "any":
            assert accepted == {valid}
            assert alone <= {valid} if is_exact else alone == {True} or not valid
        else:  # of what is valid some orders are left out
            assert valid or accepted == {False}
            assert valid or not is_exact or alone == {False}


VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 4.5, 0.3, -1, 10),
    *("", "a", "b", "ab", "abc", "é", "é🙂", "2020-01-01"),
    *([], [1], [2], [1, 1], [1, 2], [2, 1], ["a"], ["a", 1], [1, 1, 1], [1, "a", None], [[1]], [{}]),
    *({}, {"a": 1}, {"b": 1}, {"a": "a"}, {"a": 1, "b": 1}, {"a": 1, "b": "b"}, {"ab": 1}, {"a": 1, "ab": 1}),
    *({"a": 1, "b": 1, "c": 1}, {"c": None}, {"a": {"a": 1}}, {"b": [1, 2]}, {"abc": 2}, {"a": 2, "c": 1}),
]

ALONE: dict[str, list[Any]] = {
    "type": ["integer", "number", ["string", "null"]],
    "enum": [[1, "a", None, [1], {"a": 1}]],
    "const": [{"a": 1, "b": 1}, 0],
    **{word: [1] for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    **{word: [0, 1, 2] for word in ("maxLength", "maxItems", "maxProperties")},
    **{word: [1, 2] for word in ("minLength", "minItems", "minProperties")},
    "multipleOf": [2, 0.5],
    "pattern": ["^a", "b$"],
    "items": [{"type": "integer"}, False],
    "prefixItems": [[{"const": 1}, True], [True, {"const": 1}]],
    "contains": [{"const": 1}],
    "required": [["a"], ["a", "b"]],
    "properties": [{"a": {"type": "integer"}, "b": True}, {"a": False}],
    "patternProperties": [{"^a": {"type": "integer"}, "c": {"const": 1}}, {"b": False}],
    "additionalProperties": [{"type": "integer"}],
    "propertyNames": [{"maxLength": 1}, {"enum": ["a", "b"]}],
    "dependentRequired": [{"a": ["b"], "c": []}, {"b": ["a", "c"]}],
    "dependentSchemas": [{"a": {"maxProperties": 1}}, {"a": False, "b": {"required": ["c"]}}],
    "allOf": [[{"minimum": 1}, {"type": ["integer", "object"]}]],
    "anyOf": [[{"type": "integer"}, {"required": ["a"]}]],
    "oneOf": [
        [{"type": "integer"}, {"minimum": 2}], [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}],
        [{"minItems": 1}, {"maxItems": 1}, {"type": "string"}],
    ],
    "format": ["date"],
    "$ref": ["#/$defs/one"],
}  # fmt: skip
SCHEMAS: list[dict[str, Any]] = [
    *({keyword: value} for keyword, values in ALONE.items() for value in values),
    {"minLength": 2, "maxLength": 2},
    {"prefixItems": [{"type": "integer"}], "items": {"const": "a"}},
    *({"contains": {"const": 1}} | counts for counts in ({"minContains": 2}, {"maxContains": 1}, {"minContains": 0, "maxContains": 2})),
    {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
    {"properties": {"a": {"const": 1}}, "required": ["b"]},
    {"properties": {"a": True}, "additionalProperties": False},
    {"properties": {"a": True}, "patternProperties": {"^b": True}, "additionalProperties": {"const": 1}},
    {"if": {"type": "integer"}, "then": {"minimum": 2}},
    {"if": {"type": "integer"}, "else": {"type": "object"}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"minProperties": 1}},
    {"if": {"type": "array"}, "then": {"minItems": 2}, "else": {"not": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/one"}}, "required": ["a"]},
]  # fmt: skip
KEYWORDS_DEFINITIONS = {"$defs": {"one": {"enum": [1, "a"]}}}


@settings(relaxed, max_examples=examples(20))
@given(DOCUMENTS)
def test_a_part_has_checks_if_one_is_among_its_parts_whatever_is_known_of_others(schema: Any) -> None:
    try:
        root = json_schema(schema).node
    except FSMError:
        return
    known: dict[nodes.Node, bool] = {}
    for part in list(nodes.all_parts(root))[:60]:
        is_checked = any(one.kind is nodes.Kind.CHECK for one in nodes.all_parts(part))
        assert is_checked is has_checks(part, known) is has_checks(part)


@cache
def _texts() -> list[tuple[Any, str]]:
    return [(value, texts_of(value)[0]) for value in VALUES]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_a_keyword_and_its_opposites_take_what_the_validator_takes(schema: dict[str, Any]) -> None:
    def without(wanted: Any) -> Any:
        return {**KEYWORDS_DEFINITIONS, "not": wanted}

    asserted = jsonschema.Draft202012Validator.FORMAT_CHECKER if "format" in schema else None
    plain = jsonschema.Draft202012Validator({**KEYWORDS_DEFINITIONS, **schema}, format_checker=asserted)
    expected = [value for value in VALUES if plain.is_valid(value)]
    assert 0 < len(expected) < len(VALUES)
    for made, holds in (({**KEYWORDS_DEFINITIONS, **schema}, True), (without(schema), False), (without({"not": schema}), True)):
        expression = json_schema(made, key_order="any")
        for value, text in _texts():
            is_expected = any(value is other for other in expected) is holds
            assert is_expected == expression.accepts(text), (made, text)


LETTER = nodes.byte_range(ord("a"), ord("b"))
TEXTS = [bytes(letters) for size in range(6) for letters in itertools.product(b"ab", repeat=size)]
ATOMS = st.sampled_from([b"a", b"b", b"ab", b"ba"]).map(nodes.literal) | st.sampled_from(
    [LETTER, nodes.repeat(LETTER), nodes.repeat(LETTER, 0, 2), nodes.words([b"a", b"bb", b"aba"])]
)
LANGUAGES = st.lists(ATOMS, min_size=1, max_size=3).map(nodes.sequence)


@settings(deadline=None)
@given(LANGUAGES | st.just(nodes.repeat(LETTER)), st.lists(LANGUAGES, max_size=3))
def test_sets_and_few_texts_are_those_of_brute_force(base: nodes.Node, languages: list[nodes.Node]) -> None:
    kinds = KeyMinterms(base, tuple(languages), Derivatives())
    automata = [Automaton(node) for node in languages]
    by_kind: dict[int, list[bytes]] = {}
    inside = Automaton(base)
    for text in TEXTS:
        if inside.accepts(text):
            number = sum(1 << n for n, automaton in enumerate(automata) if automaton.accepts(text))
            by_kind.setdefault(number, []).append(text)
    assert kinds.is_complete
    assert set(by_kind) <= set(kinds.found)
    for number in kinds.found:
        few = kinds.few_texts(number, 20)
        if kinds.is_infinite(number):
            assert few is None
        elif few is not None:
            assert sorted(by_kind.get(number, [])) == [text for text in few if len(text) < 6]


MINTERMS_NAMES = st.lists(st.sampled_from(["a", "b", "ab", "ba", "c"]), min_size=1, max_size=3, unique=True).map(
    lambda names: {"enum": names}
) | st.sampled_from([{"pattern": "^a"}, {"maxLength": 1}, {"pattern": "^[ab]{1,2}$"}])
MEMBERS = st.dictionaries(
    st.sampled_from(["^a", "b$", "^ab$", "."]), st.sampled_from([{"const": 1}, True, False, {"type": "integer"}]), max_size=3
)
OBJECTS = st.fixed_dictionaries(
    {"type": st.just("object"), "propertyNames": MINTERMS_NAMES, "patternProperties": MEMBERS},
    optional={"additionalProperties": st.sampled_from([False, {"const": 2}]), "properties": st.just({"a": {"minimum": 1}})},
)
KEYS = [keys for size in range(3) for keys in itertools.combinations(["a", "b", "ab", "c"], size)]
MINTERMS_VALUES = [dict(zip(keys, drawn, strict=True)) for keys in KEYS for drawn in itertools.product([1, 2], repeat=len(keys))]


@pytest.mark.parametrize("max_states", [0, 1_000])
@settings(max_examples=examples(12), deadline=None)
@given(schema=OBJECTS)
def test_an_object_accepts_the_same_where_its_kinds_of_keys_are_searched_one_by_one(max_states: int, schema: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsm.schema.key_minterms._MAX_STATES", max_states)
        try:
            accepts = json_schema(schema, key_order="any").accepts
        except EmptyLanguage:
            accepts = lambda text: False  # noqa: E731
    valid = jsonschema_rs.validator_for(schema).is_valid
    assert [value for value in MINTERMS_VALUES if valid(value)] == [value for value in MINTERMS_VALUES if accepts(json.dumps(value))]


def test_kinds_that_are_searched_one_by_one_have_a_limit() -> None:
    """The two patterns have too many states together, and divide the keys into four kinds."""
    patterns = {"a.{10}$": {"type": "integer"}, "b.{5}$": {"type": "string"}}
    schema = {"type": "object", "patternProperties": patterns}
    base, *languages = [nodes.repeat(LETTER), *(ecma_search(pattern, utf8) for pattern in patterns)]
    assert not KeyMinterms(base, tuple(languages), Derivatives()).is_complete
    with pytest.raises(BudgetExceeded, match=r"kinds of keys: 4 are more than the 3 .* \(at '#'\)") as caught:
        json_schema(schema, limits=Limits(max_key_kinds=3))
    assert caught.value.limit == "max_key_kinds"
    expression = json_schema(schema, limits=Limits(max_key_kinds=4), strict=True)
    assert expression.accepts(json.dumps({"a" * 11: 1, "b" * 6: "x", "c": None}))
    assert not expression.accepts(json.dumps({"a" * 11: "x"}))
    assert not expression.accepts(json.dumps({"a" * 6 + "b" + "a" * 5: 1}))
    assert not expression.accepts(json.dumps({"b" * 6: 1}))


def test_many_kinds_that_would_be_searched_one_by_one_are_left_to_a_check() -> None:
    """Seven patterns divide the keys into 128 kinds, twice what is allowed."""
    schema = {"type": "object", "patternProperties": {f"a{n}.*x$": {"const": n} for n in range(7)}}
    expression = json_schema(schema)
    assert ("#/patternProperties", "checked") in [(line.pointer, line.level) for line in expression.report]
    with pytest.raises(BudgetExceeded, match="128 are more than the 64") as caught:
        json_schema(schema, strict=True, limits=Limits(max_work=1_000_000))
    assert caught.value.limit == "max_key_kinds"
    assert expression.accepts('{"a3 x": 3}')
    assert not expression.accepts('{"a3 x": 4}')
