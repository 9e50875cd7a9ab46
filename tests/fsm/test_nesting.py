"""Texts of recursive schemas are nested to a bound, and what cannot be completed within it is never begun."""

from __future__ import annotations

import gc
import json
from random import Random
from typing import Any

import pytest

from fsm import EmptyLanguage, Limits, TokenFSM, Vocabulary, json_schema
from fsm.automaton.lazy_dfa import Automaton
from tests.walks import random_text

BYTES = Vocabulary([bytes((n,)) for n in range(256)] + [None], [256])
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "integer"},
        "left": {"$ref": "#"},
        "all": {"type": "array", "items": {"$ref": "#"}},
    },
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


def test_a_value_that_must_hold_its_own_kind_is_empty() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    with pytest.raises(EmptyLanguage):
        json_schema(endless)
    assert json_schema({"anyOf": [endless, {"const": 1}]}).accepts("1")


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
