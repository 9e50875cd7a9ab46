"""The minterms of languages of keys, against every short text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, Limits, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.pattern.ecma_pattern import ecma_search
from fsm.schema.key_minterms import KeyMinterms
from fsm.terms import node as nodes
from fsm.terms.characters import utf8
from fsm.terms.derivative import Derivatives

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


def test_a_walk_that_is_too_long_says_so() -> None:
    words = nodes.words(b"%08x" % (number * number * 7_919) for number in range(2_000))
    assert not KeyMinterms(words, (), Derivatives()).is_complete


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "ba", "c"]), min_size=1, max_size=3, unique=True).map(
    lambda names: {"enum": names}
) | st.sampled_from([{"pattern": "^a"}, {"maxLength": 1}, {"pattern": "^[ab]{1,2}$"}])
MEMBERS = st.dictionaries(
    st.sampled_from(["^a", "b$", "^ab$", "."]),
    st.sampled_from([{"const": 1}, True, False, {"type": "integer"}]),
    max_size=3,
)
OBJECTS = st.fixed_dictionaries(
    {"type": st.just("object"), "propertyNames": NAMES, "patternProperties": MEMBERS},
    optional={
        "additionalProperties": st.sampled_from([False, {"const": 2}]),
        "properties": st.just({"a": {"minimum": 1}}),
    },
)
KEYS = [keys for size in range(3) for keys in itertools.combinations(["a", "b", "ab", "c"], size)]
VALUES = [dict(zip(keys, drawn, strict=True)) for keys in KEYS for drawn in itertools.product([1, 2], repeat=len(keys))]


@pytest.mark.parametrize("max_states", [0, 1_000])
@settings(max_examples=20, deadline=None)
@given(schema=OBJECTS)
def test_an_object_accepts_the_same_where_its_kinds_of_keys_are_searched_one_by_one(
    max_states: int, schema: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsm.schema.key_minterms._MAX_STATES", max_states)
        try:
            accepts = json_schema(schema, key_order="any").accepts
        except EmptyLanguage:
            accepts = lambda text: False  # noqa: E731
    valid = jsonschema_rs.validator_for(schema).is_valid
    assert [value for value in VALUES if valid(value)] == [value for value in VALUES if accepts(json.dumps(value))]


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
