"""A keyword of one's own is one object: it works alone, under `not`, `enum`, `allOf`, `oneOf`, `$ref`, in reports and in blame.

`maxBytes` says only how a value is checked; `startsWith` also has a language, so that it is exact; `maxTotal` is one of arrays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsm
from fsm.automaton.lazy_dfa import Automaton
from fsm.limits import Limits
from fsm.schema.keywords import KEYWORDS, Keyword
from fsm.schema.keywords.keyword import NoNegation, Role
from fsm.schema.keywords.place import COUNT, FLAG, TEXT, Place
from fsm.schema.scalars.string import CHARACTERS
from fsm.terms import node as nodes
from fsm.terms.characters import json_text
from fsm.terms.node import Node

STRING, ARRAY = frozenset({"string"}), frozenset({"array"})


def starting_with(prefix: str, pointer: str, limits: Limits) -> Node:
    """The inside of the strings that begin so."""
    return nodes.concat(nodes.literal(json_text(prefix)), CHARACTERS)


MAX_BYTES = Keyword("maxBytes", COUNT, STRING, accepts=lambda most, text: len(text.encode()) <= most)
STARTS_WITH = Keyword("startsWith", TEXT, STRING, accepts=lambda p, text: text.startswith(p), language=starting_with)
MAX_TOTAL = Keyword("maxTotal", COUNT, ARRAY, accepts=lambda most, items: sum(items) <= most)


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with KEYWORDS.adding(MAX_BYTES), KEYWORDS.adding(STARTS_WITH), KEYWORDS.adding(MAX_TOTAL):
        yield


TEXTS = ["", "a", "b", "é", "ab", "aé", "éa", 'a"', "éé", "a\n", "€", "aaa", "aéa", "😀", "ab€"]
VALUES: list[Any] = [*TEXTS, None, True, False, 0, 1, 2, [], ["é"], {}]

counts = st.integers(0, 5)
atoms = st.one_of(
    st.builds(lambda n: {"maxBytes": n}, counts),
    st.builds(lambda text: {"startsWith": text}, st.sampled_from(TEXTS)),
    st.builds(lambda n: {"minLength": n}, counts),
    st.builds(lambda n: {"maxLength": n}, counts),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(VALUES), max_size=5)),
    st.builds(lambda value: {"const": value}, st.sampled_from(VALUES)),
    st.sampled_from([{"type": "string"}, {"type": ["string", "integer"]}, {"type": "null"}, {"$ref": "#/$defs/short"}, True, False]),
)  # fmt: skip
dicts = atoms.filter(lambda atom: isinstance(atom, dict))
together = st.builds(lambda parts: {k: v for part in parts for k, v in part.items()}, st.lists(dicts, max_size=3))


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that apply others to the same value."""
    some, dicts = st.lists(inner, min_size=1, max_size=3), inner.filter(lambda schema: isinstance(schema, dict))
    return st.one_of(
        st.builds(lambda schema: {"not": schema}, inner),
        st.builds(lambda word, parts: {word: parts}, st.sampled_from(["allOf", "anyOf", "oneOf"]), some),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
        st.builds(lambda a, b: a | b, dicts, dicts),
    )


flat = atoms | together
schemas = flat | combined(flat | combined(flat))


def _holding(keyword: Keyword) -> Any:
    def check(validator: Any, said: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        assert keyword.accepts is not None
        if isinstance(value, str) and not keyword.accepts(said, value):
            yield jsonschema.ValidationError(keyword.name)

    return check


ORACLE = jsonschema.validators.extend(jsonschema.Draft202012Validator, {one.name: _holding(one) for one in (MAX_BYTES, STARTS_WITH)})


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def at(schema: Any, pointer: str) -> Any:
    """What stands at a pointer."""
    for token in pointer.removeprefix("#").split("/")[1:]:
        schema = schema[int(token) if isinstance(schema, list) else token]
    return schema


@given(schemas, counts)
def test_own_keywords_mean_the_same_wherever_they_stand(schema: Any, short: int) -> None:
    document = {"allOf": [schema], "$defs": {"short": {"maxBytes": short}}}
    oracle = ORACLE(document)
    valid = [value for value in VALUES if oracle.is_valid(value)]
    try:
        expression = fsm.json_schema(document)
    except fsm.EmptyLanguage:
        assert valid == []
        return
    assert valid == [value for value in VALUES if expression.accepts(as_text(value))]
    automaton = Automaton(expression.node)
    if all(line.level == "exact" for line in expression.report):
        assert valid == [value for value in VALUES if automaton.accepts(as_text(value).encode())]
    for value in VALUES:
        if value not in valid:
            for pointer in expression.blame(as_text(value), is_whole=True):
                at(document, pointer)


def accepted(schema: Any, values: list[Any]) -> list[Any]:
    expression = fsm.json_schema(schema)
    return [value for value in values if expression.accepts(as_text(value))]


def levels(schema: Any) -> dict[str, str]:
    return {line.pointer: line.level for line in fsm.json_schema(schema).report}


def test_a_keyword_that_only_checks_is_reported_as_checked_and_refused_where_all_must_be_exact() -> None:
    assert levels({"maxBytes": 2}) == {"#/maxBytes": "checked"}
    assert levels({"not": {"maxBytes": 2}})["#/not/maxBytes"] == "checked"
    assert levels({"properties": {"a": {"maxBytes": 2}}})["#/properties/a/maxBytes"] == "checked"
    assert levels({"oneOf": [{"maxBytes": 2}, {"minLength": 2}]})["#/oneOf/0/maxBytes"] == "checked"
    for schema in ({"maxBytes": 2}, {"not": {"maxBytes": 2}}, {"items": {"maxBytes": 2}}):
        with pytest.raises(fsm.SchemaError, match="maxBytes"):
            fsm.json_schema(schema, strict=True)


def test_a_keyword_that_only_checks_says_nothing_of_other_types() -> None:
    assert levels({"type": "integer", "maxBytes": 2}) == {"#/type": "exact", "#/maxBytes": "exact"}


def test_listed_values_are_filtered_so_that_the_keyword_is_exact() -> None:
    schema = {"enum": ["é", "éé", 7], "maxBytes": 2}
    assert accepted(schema, ["é", "éé", 7, "a"]) == ["é", 7]
    assert {"exact"} == set(levels(schema).values())
    assert not fsm.json_schema(schema).has_checks
    assert accepted({"enum": ["é", "éé", 7], "not": {"maxBytes": 2}}, ["é", "éé", 7, "a"]) == ["éé"]
    assert accepted({"allOf": [{"const": "é"}, {"maxBytes": 2}]}, ["é", "éé"]) == ["é"]


def test_a_keyword_with_a_language_is_exact_under_not_too() -> None:
    for schema in ({"type": "string", "startsWith": "ab"}, {"not": {"startsWith": "ab"}}):
        assert {"exact"} == set(levels(schema).values())
        assert not fsm.json_schema(schema, strict=True).has_checks


def test_a_malformed_value_is_told() -> None:
    with pytest.raises(fsm.SchemaError, match="whole number of at least zero, received -1.*#/maxBytes"):
        fsm.json_schema({"maxBytes": -1})


def test_a_misspelling_is_told() -> None:
    with pytest.warns(fsm.SchemaWarning, match="maxBytes"):
        fsm.json_schema({"maxByte": 3})


@pytest.mark.parametrize(
    ("schema", "text", "is_whole", "pointers"),
    [
        ({"maxBytes": 2}, '"éé"', False, ("#/maxBytes",)),
        ({"type": "string", "maxBytes": 2}, '"éé"', True, ("#/maxBytes",)),
        ({"properties": {"a": {"maxBytes": 2}}}, '{"a": "éé",', False, ("#/properties/a/maxBytes",)),
        ({"items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"maxBytes": 2}}}, '["éé",', False, ("#/$defs/b/maxBytes",)),
        ({"type": "string", "startsWith": "ab"}, '"b', False, ("#/startsWith",)),
        ({"allOf": [{"maxBytes": 2}, {"maxBytes": 3}]}, '"éa"', True, ("#/allOf/0/maxBytes",)),
    ],
)
def test_it_is_to_blame(schema: Any, text: str, is_whole: bool, pointers: tuple[str, ...]) -> None:
    assert pointers == fsm.json_schema(schema).blame(text, is_whole=is_whole)


def test_a_keyword_of_arrays_is_one_object_as_well() -> None:
    lists: list[Any] = [[], [1], [2, 2], [3, 0], 7]
    numbers = {"items": {"type": "integer"}}
    assert accepted({"maxTotal": 3} | numbers, lists) == [[], [1], [3, 0], 7]
    assert accepted({"not": {"maxTotal": 3}} | numbers, lists) == [[2, 2]]
    assert accepted({"maxTotal": 3, "enum": [[1], [2, 2]]}, lists) == [[1]]
    assert accepted({"oneOf": [{"maxTotal": 3}, numbers], "type": "array"} | numbers, lists) == [[2, 2]]
    schema = {"anyOf": [{"maxTotal": 3}, {"minItems": 9}], "not": {"maxTotal": 0}}
    assert accepted(schema | numbers, [[1], [9], []]) == [[1]]
    assert levels({"maxTotal": 3} | numbers)["#/maxTotal"] == "checked"


def test_a_language_of_strings_says_nothing_of_other_types_so_that_those_are_checked() -> None:
    def accepts(start: str, value: object) -> bool:
        return value == 7 if isinstance(value, int) else str(value).startswith(start)

    types = frozenset({"string", "integer"})
    with KEYWORDS.adding(Keyword("begins", TEXT, types, accepts=accepts, language=starting_with)):
        assert accepted({"begins": "a"}, ["ab", "b", 7, 8]) == ["ab", 7]
        assert accepted({"not": {"begins": "a"}}, ["ab", "b", 7, 8]) == ["b", 8]
        assert levels({"begins": "a"})["#/begins"] == "checked"
        assert levels({"begins": "a", "type": "string"})["#/begins"] == "exact"


def test_a_condition_without_cases_is_checked() -> None:
    def accepts(needed: str, value: dict[str, Any]) -> bool:
        return not value or needed in value

    keyword = Keyword("some", TEXT, frozenset({"object"}), role=Role.CONDITION, accepts=accepts)
    with KEYWORDS.adding(keyword):
        assert accepted({"some": "a"}, [{}, {"a": 1}, {"b": 1}, 2]) == [{}, {"a": 1}, 2]
        assert accepted({"not": {"some": "a"}}, [{}, {"a": 1}, {"b": 1}, 2]) == [{"b": 1}]
        assert levels({"some": "a"})["#/some"] == "checked"


def test_a_keyword_that_nothing_would_enforce_is_refused() -> None:
    with pytest.raises(ValueError, match="give `accepts`"):
        Keyword("maxWords", COUNT, STRING)
    with pytest.raises(ValueError, match="not `is_built`"):
        Keyword("maxWords", COUNT, STRING, accepts=lambda most, text: True, is_built=True)


def test_the_negation_of_a_keyword_that_terms_hold_is_left_to_a_check_where_nothing_is_said_of_it() -> None:
    keyword = Keyword("distinct", FLAG, ARRAY, since="draft-04", is_built=True)
    with pytest.raises(NoNegation, match="distinct"):
        list(keyword.failures(keyword, Place(True, ""), True))


def test_it_is_forgotten_afterwards() -> None:
    with KEYWORDS.adding(Keyword("oddBytes", COUNT, STRING, accepts=lambda _, text: len(text.encode()) % 2 == 1)):
        assert accepted({"oddBytes": 1}, ["a", "é"]) == ["a"]
    assert accepted({"oddBytes": 1}, ["a", "é"]) == ["a", "é"]
