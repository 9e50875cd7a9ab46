"""What is refused while a schema, a Python type or a term is read: each with what was expected, received, and where."""

from __future__ import annotations

import datetime
import re
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetPydanticSchema, Tag
from pydantic_core import core_schema

from fsm import json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, ExpressionError, SchemaError
from fsm.pattern.ecma_pattern import ecma_search
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import preferred_texts, regex
from fsm.terms import node as nodes
from fsm.terms.characters import utf8
from fsm.terms.rule import Rule


@pytest.mark.parametrize(
    ("schema", "expected", "received", "pointer"),
    [
        ({"uniqueItems": 1}, "true or false", "1", "#/uniqueItems"),
        ({"uniqueItems": None}, "true or false", "None", "#/uniqueItems"),
        ({"properties": [1]}, "an object whose values are schemas", "[1]", "#/properties"),
        (
            {"properties": {"a": {"dependentRequired": 3}}},
            "an object whose values are lists of names",
            "3",
            "#/properties/a/dependentRequired",
        ),
        ({"dependentRequired": {"a/b": "c"}}, "a list of strings", "'c'", "#/dependentRequired/a~1b"),
        ({"dependencies": 5}, "an object whose values are schemas or lists of names", "5", "#/dependencies"),
        ({"anyOf": []}, "a list of at least one schema", r"\[\]", "#/anyOf"),
        ({"anyOf": [{}, 7]}, "a schema", "7", "#/anyOf/1"),
        ({"properties": {"a": 7}}, "a schema", "7", "#/properties/a"),
        ({"allOf": {"a": 1}}, "a list of at least one schema", "'a': 1", "#/allOf"),
        ({"minLength": -1}, "a whole number of at least zero", "-1", "#/minLength"),
        ({"minLength": 1.5}, "a whole number of at least zero", "1.5", "#/minLength"),
        ({"multipleOf": 0}, "a number above zero", "0", "#/multipleOf"),
        ({"maximum": "1"}, "a finite number", "'1'", "#/maximum"),
        ({"maximum": True}, "a finite number", "True", "#/maximum"),
        ({"pattern": 5}, "a string", "5", "#/pattern"),
        ({"required": ["a", 5]}, "a string", "5", "#/required/1"),
        ({"required": "a"}, "a list of strings", "'a'", "#/required"),
        ({"type": "txt"}, "a JSON type", "'txt'", "#/type"),
        ({"items": {3: 4}}, "a string as keyword", "3", "#/items"),
    ],
)
def test_a_keyword_of_another_shape_is_refused_where_it_stands(
    schema: Any, expected: str, received: str, pointer: str
) -> None:
    with pytest.raises(SchemaError, match=rf"expected {expected}.*received .*{received}") as caught:
        json_schema(schema)
    assert caught.value.pointer == pointer


def _with(schema: Any) -> Any:
    return Annotated[Any, GetPydanticSchema(lambda *_: schema)]


class _OwnInit(BaseModel):
    a: int

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)


class _ByNameOnly(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    a: int = Field(alias="b")


class _Pairs(Enum):
    A = (1, 2)


class _Left(BaseModel):
    a: int


class _Right(BaseModel):
    b: int


_UNION = Annotated[
    Annotated[_Left, Tag("l")] | Annotated[_Right, Tag("r")], Discriminator(lambda value: "l" if "a" in value else "r")
]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (_OwnInit, "`__init__` of _OwnInit"),
        (_ByNameOnly, "validate_by_alias=False"),
        (Annotated[str, Field(pattern=re.compile("a", re.IGNORECASE))], "a pattern with flags"),
        (Annotated[str, Field(pattern="[a&&b]")], "the set operation '&&', in pattern '[a&&b]',"),
        (Annotated[str, Field(pattern="[[a]]")], "a set inside a set, in pattern '[[a]]',"),
        (Annotated[str, Field(pattern=r"[\D]")], r"'\\D' inside a set, in pattern"),
        (_Pairs, "_Pairs, whose values are not all JSON scalars"),
        (Literal[b"a"], "a Literal of other than JSON scalars"),
        (_with(core_schema.datetime_schema(tz_constraint=3600)), "a datetime of one fixed offset"),
        (_UNION, "a union with a discriminator that is not one field"),
        (_with(core_schema.url_schema() | {"new": 1}), "`new` of a `url`"),
        (_with(core_schema.decimal_schema() | {"new": 1}), "`new` of a `decimal`"),
    ],
)
def test_a_type_that_a_schema_cannot_promise_is_refused_and_named(kind: Any, named: str) -> None:
    with pytest.raises(SchemaError) as caught:
        json_schema(kind)
    assert f"{named}" in str(caught.value)
    assert "is not supported yet" in str(caught.value)


def test_types_like_them_are_taken() -> None:
    for kind in (
        Annotated[str, Field(pattern=re.compile("a"))],
        Annotated[str, Field(pattern="[a&-]")],
        Annotated[str, Field(pattern=r"[\[a]")],
        Annotated[str, Field(pattern=r"[^\D]")],
        Literal["a", 1],
        _with(core_schema.datetime_schema(tz_constraint="naive")),
        _with(core_schema.url_schema(max_length=3000, host_required=True)),
        datetime.datetime,
    ):
        json_schema(kind)


def test_a_rule_has_one_body_that_reads_something() -> None:
    rule = Rule("r")
    with pytest.raises(ExpressionError, match="rule 'r' has no body"):
        assert rule.body
    with pytest.raises(ExpressionError, match="rule 'r' matches the empty text"):
        rule.define(nodes.EPSILON)
    assert not rule.is_built
    rule.define(nodes.literal(b"a"))
    assert rule.is_built
    assert rule.body is nodes.literal(b"a")
    with pytest.raises(ExpressionError, match="rule 'r' is defined already"):
        rule.define(nodes.literal(b"b"))


@pytest.mark.parametrize(("lo", "hi"), [(-1, None), (-1, 2), (3, 2), (1, 0)])
def test_the_bounds_of_a_repetition_are_in_order(lo: int, hi: int | None) -> None:
    with pytest.raises(ExpressionError, match=f"received lo={lo}, hi={hi}"):
        nodes.repeat(nodes.literal(b"a"), lo, hi)


def test_a_pattern_has_a_length_and_counts_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 10**15
    assert ecma_search(f"a{{0,{most}}}", utf8) is not nodes.EMPTY
    with pytest.raises(SchemaError, match="a count above 1,000,000,000,000,000"):
        ecma_search(f"a{{0,{most + 1}}}", utf8)
    with pytest.raises(SchemaError, match="a pattern is a string, received int"):
        ecma_search(5, utf8)  # type: ignore[arg-type]
    monkeypatch.setattr("fsm.pattern.ecma_pattern.MAX_PATTERN_LENGTH", 5)
    assert ecma_search("abcde", utf8) is not nodes.EMPTY
    with pytest.raises(SchemaError, match="a pattern of more than 5 characters"):
        ecma_search("abcdef", utf8)


def test_the_order_of_a_pattern_is_found_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsm.pattern.leftmost_first.MAX_STEPS", 1_000)
    for pattern, is_within in (("a|ab", True), ("((a{0,9}){0,9}){0,9}b", False)):
        taken, language = preferred_texts(pattern), regex(pattern).node
        if is_within:
            assert simplest(taken, language) is taken  # `re` never takes "ab" whole
            continue
        with pytest.raises(BudgetExceeded, match="more than 1,000 steps") as caught:
            simplest(taken, language)
        assert (caught.value.limit, caught.value.value) == ("max_steps", 1_000)
        assert Automaton(taken).accepts(b"aab")  # the bound holds for that comparison only


@pytest.mark.parametrize(
    ("option", "allowed", "others"),
    [
        ("whitespace", ["none", "one_space"], ["two", None, ""]),
        ("key_order", ["schema", "any"], ["none", None]),
        ("formats", ["assert", "annotate"], ["assertion", True]),
        ("strict", [True, False], ["yes", None, 2]),
    ],
)
def test_an_option_has_the_values_that_are_named(option: str, allowed: list[Any], others: list[Any]) -> None:
    schema = {"type": "string", "maxLength": 2}
    for value in allowed:
        assert json_schema(schema, **{option: value}).accepts('"ab"')
    for value in others:
        with pytest.raises(SchemaError, match=f"`{option}` is one of .*, received {value!r}"):
            json_schema(schema, **{option: value})


def test_a_malformed_schema_of_a_property_is_refused_though_the_object_lists_its_values() -> None:
    with pytest.raises(SchemaError, match="a finite number, received 'x'.*#/properties/a/minimum"):
        json_schema({"enum": [{"a": 1}, 2], "properties": {"a": {"minimum": "x"}}})
    report = json_schema({"enum": [{"a": 1}], "properties": {"a": {"minimum": 0}}}).report
    assert [line.pointer for line in report] == ["#/enum", "#/properties", "#/properties/a/minimum"]
