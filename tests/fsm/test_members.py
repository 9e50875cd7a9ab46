"""Members of objects and branches that exclude each other, nesting and its bound, against the validator and plain counting."""

from __future__ import annotations

import gc
import itertools
import json
from itertools import permutations
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, Limits, TokenFSM, Vocabulary, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms.members import MemberEntry, MemberTable
from tests.examples import examples
from tests.walks import random_text

BYTES = Vocabulary([bytes((n,)) for n in range(256)] + [None], [256])
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "integer"}, "left": {"$ref": "#"}, "all": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
    "additionalProperties": False,
}
# Every node holds another, unless it is a leaf of three levels.
LONG_WAY: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"], "additionalProperties": False},
        {"const": [[[1]]]},
    ]
}


def depth(value: Any) -> int:
    """Arrays and objects one inside the other."""
    if isinstance(value, dict | list):
        return 1 + max((depth(v) for v in (value.values() if isinstance(value, dict) else value)), default=0)
    return 0


def nested(levels: int, kind: str) -> str:
    if kind == "list":
        return "[" * levels + "]" * levels
    if kind == "tree":
        return '{"name":1,"left":' * (levels - 1) + '{"name":1}' + "}" * (levels - 1)
    return '{"next":' * (levels - 3) + "[[[1]]]" + "}" * (levels - 3)


@pytest.mark.parametrize(("schema", "kind"), [(True, "list"), (TREE, "tree"), (LONG_WAY, "next")])
@pytest.mark.parametrize("most", [4, 5, 17, 64])
def test_texts_are_as_deep_as_the_bound_and_no_deeper(schema: Any, kind: str, most: int) -> None:
    language = json_schema(schema, limits=Limits(max_nesting=most))
    for levels in (3, most - 1, most):
        assert language.accepts(nested(levels, kind)), levels
    for levels in (most + 1, most + 2, 2 * most):
        assert not language.accepts(nested(levels, kind)), levels


def test_the_default_is_64() -> None:
    assert json_schema({}).accepts(nested(64, "list"))
    assert not json_schema({}).accepts(nested(65, "list"))
    inside = json_schema({"type": "object", "properties": {"a": {}}, "required": ["a"]})
    assert inside.accepts('{"a":' + nested(48, "list") + "}")
    assert not inside.accepts('{"a":' + nested(64, "list") + "}")


@pytest.mark.parametrize("schema", [True, TREE, LONG_WAY, {"type": "array", "items": {"anyOf": [{"$ref": "#"}, True]}}])
@pytest.mark.parametrize("most", [4, 5, 7])
def test_no_walk_comes_to_a_dead_end(schema: Any, most: int) -> None:
    language = json_schema(schema, limits=Limits(max_nesting=most), whitespace="none")
    random = Random(most)
    automaton = Automaton(language.node)
    for steps in [*range(0, 60, 3)] * 2:
        text = random_text(language.node, random, steps)
        assert depth(json.loads(text)) <= most
        state = automaton.initial_state
        for byte in text:
            assert automaton.moves(state), text
            state = automaton.next_state(state, bytes((byte,)))


def test_a_key_whose_value_has_no_room_is_not_begun() -> None:
    fsm = TokenFSM(json_schema(TREE, limits=Limits(max_nesting=2), whitespace="none"), BYTES)
    state = fsm.automaton.next_state(fsm.initial_state, b'{"name":1,"left":{"name":1')
    assert sorted(b"0123456789}") == fsm.allowed_token_ids(state).tolist()
    state = fsm.automaton.next_state(fsm.initial_state, b'{"name":1,"')
    assert sorted(b"la") == fsm.allowed_token_ids(state).tolist()
    state = fsm.automaton.next_state(state, b'all":[')
    assert [ord("]")] == fsm.allowed_token_ids(state).tolist()


def test_two_kinds_that_hold_each_other() -> None:
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "additionalProperties": False},
            "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
        },
    }
    language = json_schema(schema, limits=Limits(max_nesting=5), whitespace="none")
    for text, fits in (
        ("{}", True),
        ('{"b":[]}', False),
        ('{"b":[{}]}', True),
        ('{"b":[{"b":[{}]}]}', True),
        ('{"b":[{"b":[{"b":[{}]}]}]}', False),
    ):
        assert fits == language.accepts(text), text


def test_levels_are_built_when_a_text_comes_there_and_go_with_the_expression() -> None:
    language = json_schema(TREE)
    automaton = Automaton(language.node)
    few = len(automaton)
    automaton.next_state(automaton.initial_state, b'{"name":1,"left":{"name"')
    assert len(automaton) < few + 40
    del language, automaton
    gc.collect()


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


def as_any_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [as_any_of(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: as_any_of(value) for key, value in schema.items()}


@pytest.mark.parametrize("name", APART)
def test_branches_that_exclude_each_other_are_like_any_of(name: str) -> None:
    assert json_schema(as_any_of(APART[name])) == json_schema(APART[name])


NAMES = ["a", "b"]
VALUES: list[Any] = [5, None, []]
VALUES += [
    {name: value for name, value in zip(NAMES, chosen, strict=True) if value is not None}
    for chosen in itertools.product([None, 0, 1, "x"], repeat=2)
]
NAME_LISTS = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
TAGS = st.lists(st.sampled_from([0, 1, "x"]), min_size=1, max_size=2, unique=True).map(lambda values: {"enum": values})
VALUE_TYPES = st.sampled_from([{"type": "integer"}, {"type": "string"}, {"anyOf": [{"const": 0}, {"const": "x"}]}, False])
OWN = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "required": NAME_LISTS,
        "properties": st.dictionaries(st.sampled_from(NAMES), TAGS | VALUE_TYPES | st.just(True), max_size=2),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "[^a]"]), st.just(True) | VALUE_TYPES, max_size=1),
        "additionalProperties": st.booleans() | VALUE_TYPES,
    },
)


def around(below: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    keyword = st.sampled_from(["oneOf", "anyOf", "allOf"])
    return st.builds(lambda own, key, parts: {**own, key: parts}, OWN, keyword, st.lists(below, min_size=1, max_size=3))


BRANCHES = st.lists(st.recursive(OWN, around, max_leaves=4), min_size=2, max_size=3)


@settings(max_examples=examples(18), deadline=None)
@given(OWN, BRANCHES)
def test_a_value_is_accepted_exactly_if_one_branch_holds(own: dict[str, Any], branches: list[Any]) -> None:
    schema = {**own, "oneOf": branches}
    validator = jsonschema.Draft202012Validator(schema)
    try:
        expression = json_schema(schema, key_order="any")
    except EmptyLanguage:
        assert not any(validator.is_valid(value) for value in VALUES)
        return
    for value in VALUES:
        note(repr(value))
        assert expression.accepts(json.dumps(value)) == validator.is_valid(value)


MEMBERS_NAMES = "abcd"


@settings(max_examples=examples(40))
@given(st.sets(st.sampled_from(MEMBERS_NAMES)), st.integers(0, 4), st.integers(0, 5), st.sampled_from(["schema", "any"]))
def test_required_members_are_never_passed_over(required: set[str], least: int, most: int, order: Any) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"const": 1} for name in MEMBERS_NAMES},
        "required": sorted(required),
        "additionalProperties": False,
        "minProperties": least,
        "maxProperties": most,
    }
    orders = [keys for size in range(len(MEMBERS_NAMES) + 1) for keys in permutations(MEMBERS_NAMES, size)]
    wanted = [keys for keys in orders if required <= {*keys} and least <= len(keys) <= most and (order == "any" or [*keys] == sorted(keys))]
    if not wanted:
        with pytest.raises(EmptyLanguage):
            json_schema(schema, key_order=order)
        return
    automaton = Automaton(json_schema(schema, key_order=order).node)
    texts = {keys: "{" + ", ".join(f'"{key}": 1' for key in keys) + "}" for keys in orders}
    dense = {keys: text.replace(" ", "") for keys, text in texts.items()}
    assert wanted == [keys for keys in orders if automaton.accepts(texts[keys].encode()) or automaton.accepts(dense[keys].encode())]


@pytest.mark.parametrize(
    ("lo", "hi", "duties", "expected"),
    [
        (0, None, 0, True), (1, None, 0, False), (0, 5, 0, False), (0, None, 1, False), (1, 5, 1, False), (1, None, 1, False),
    ],
)  # fmt: skip
def test_members_without_bounds_can_always_be_closed(lo: int, hi: int | None, duties: int, expected: bool) -> None:
    key, value, comma, close = (nodes.literal(text) for text in (b'"a"', b":1", b",", b"}"))
    entries = (MemberEntry(key, value, None, False, 0),)
    options = {"lo": lo, "hi": hi, "duties": duties, "is_ordered": False, "comma": comma, "close": close}
    assert expected is MemberTable(entries, **options).is_free  # type: ignore[arg-type]
