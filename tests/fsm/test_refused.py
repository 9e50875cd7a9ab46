"""What `fsm` refuses: schemas, Python types, options, states and token ids, each with what was expected, received, and where."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

import fsm
from fsm import json_schema, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, ExpressionError, SchemaError
from fsm.pattern.ecma_pattern import ecma_search
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import preferred_texts
from fsm.terms import node as nodes
from fsm.terms.characters import utf8
from fsm.terms.rule import Rule

SCHEMAS: list[tuple[Any, str, str]] = [
    ({"type": "strnig"}, "/type", "Did you mean 'string'"),
    ({"type": []}, "/type", "a list of them"),
    ({"type": 5}, "/type", "one of null"),
    ({"properties": {"a/b": {"type": "x"}}}, "/properties/a~1b/type", "received 'x'"),
    ({"properties": {"a": 5}}, "/properties/a", "a schema"),
    ({"properties": {1: {}}}, "/properties", "a string"),
    ({"additionalProperties": "no"}, "/additionalProperties", "a schema"),
    ({"items": [{}], "prefixItems": [{}]}, "/items", "a schema"),
    ({"prefixItems": []}, "/prefixItems", "at least one schema"),
    ({"maxLength": 1.5}, "/maxLength", "whole number"),
    ({"maxLength": np.int64(3)}, "/maxLength", r"by its `tolist\(\)`"),
    ({"enum": np.array(["a", "b"])}, "/enum", r"by its `tolist\(\)`"),
    ({"enum": {"a": 1}.keys()}, "/enum", r"`list\(...\)` of it"),
    ({"type": "object", "required": ("a",)}, "/required", r"`list\(...\)` of it"),
    ({"minLength": True}, "/minLength", "whole number"),
    ({"minimum": "0"}, "/minimum", "finite number"),
    ({"maximum": float("inf")}, "/maximum", "finite number"),
    ({"exclusiveMinimum": "1"}, "/exclusiveMinimum", "finite number"),
    ({"pattern": "("}, "/pattern", "pattern"),
    ({"format": 5}, "/format", "a string"),
    ({"enum": "abc"}, "/enum", "a list of values"),
    ({"enum": ["ok", "\ud800"]}, "/enum/1", "surrogate"),
    ({"enum": [1, float("nan")]}, "/enum/1", "a JSON value"),
    ({"const": {1, 2}}, "/const", "a JSON value"),
    ({"const": {1: 2}}, "/const", "a string"),
    ({"anyOf": [1]}, "/anyOf/0", "a schema"),
    ({"$ref": 5}, "/$ref", "a string"),
    ({"$ref": "#/$defs/Persn", "$defs": {"Person": {}}}, "/$ref", "leads nowhere"),
    ({"$ref": "http://example.org/schema"}, "/$ref", "Nothing is ever fetched"),
    ({"$ref": "file:///etc/passwd"}, "/$ref", "Nothing is ever fetched"),
    ({"$ref": "#name"}, "/$ref", "not there"),
    ({"$ref": "#"}, "/$ref", "refers to itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "/anyOf/1/$ref", "refers to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "items": {"$ref": "#/$defs/a"}}, "/$defs/b/$ref", "refers to"),
    ({"$schema": 5}, "/$schema", "the URI of a draft"),
    ([1], "", "a schema"),
    (5, "", "a schema"),
    (None, "", "a schema"),
    ("{", "", "not JSON"),
    ('{"minimum": NaN}', "", "not JSON"),
    ("[]", "", "a schema"),
    ("[" * 100_000, "", "nested too deeply"),
    ({"uniqueItems": 1}, "/uniqueItems", "expected true or false.*received 1"),
    ({"uniqueItems": "yes"}, "/uniqueItems", "expected true or false.*received 'yes'"),
    ({"properties": [1]}, "/properties", r"expected an object whose values are schemas.*received \[1\]"),
    ({"properties": {"a": {"dependentRequired": 3}}}, "/properties/a/dependentRequired", "an object whose values are lists of names.*3"),
    ({"dependentRequired": {"a/b": "c"}}, "/dependentRequired/a~1b", "a list of strings.*received 'c'"),
    ({"dependencies": 5}, "/dependencies", "an object whose values are schemas or lists of names.*received 5"),
    ({"anyOf": []}, "/anyOf", r"a list of at least one schema.*received \[\]"),
    ({"allOf": {"a": 1}}, "/allOf", "a list of at least one schema.*received .*'a': 1"),
    ({"minLength": -1}, "/minLength", "a whole number of at least zero.*received -1"),
    ({"multipleOf": 0}, "/multipleOf", "a number above zero.*received 0"),
    ({"maximum": True}, "/maximum", "a finite number.*received True"),
    ({"pattern": 5}, "/pattern", "a string.*received 5"),
    ({"required": ["a", 5]}, "/required/1", "a string.*received 5"),
    ({"required": "a"}, "/required", "a list of strings.*received 'a'"),
    ({"items": {3: 4}}, "/items", "a string as keyword.*received .*3"),
    ({"items": [5]}, "/prefixItems/0", "a schema"),
    ({"dependencies": {"a": 5}}, "/dependentSchemas/a", "a schema"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer", "message"), SCHEMAS, ids=lambda value: repr(value)[:50])
def test_a_bad_schema_is_refused_with_a_pointer(schema: Any, pointer: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        json_schema(schema)
    assert f"#{pointer}" == caught.value.pointer
    assert str(caught.value).endswith(f"(at '#{pointer}')")


class _Pathed(BaseModel):
    a: int = Field(validation_alias=pydantic.AliasPath("p", 0))


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


class _Plain(Enum):
    A = "a"


class _Numbers(Enum):
    A = 1


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
        (Literal[b"a"], "b'a' in a Literal, which is no JSON scalar"),
        (re.Pattern[bytes], "`re.Pattern[bytes]`"),
        (pydantic.ImportString, "`ImportString`, which imports"),
        (dict[Literal[1, 2], int], "literal, from which pydantic reads no key of JSON,"),
        (dict[_Plain, _Plain] | dict[_Numbers, int], "keys of type enum"),
        (complex, "a complex number"),
        (_with(core_schema.datetime_schema(tz_constraint=3600)), "a datetime of one fixed offset"),
        (_with(core_schema.url_schema() | {"new": 1}), "`new` of a `url`"),
        (_with(core_schema.decimal_schema() | {"new": 1}), "`new` of a `decimal`"),
        (dict[tuple[int, int], int], "keys of type `tuple`"),
        (dict[None, int], "keys of type `none`"),
        (pydantic.constr(pattern=r"[a\S]"), "inside a set"),
    ],
)
def test_a_type_that_a_schema_cannot_promise_is_refused_and_named(kind: Any, named: str) -> None:
    with pytest.raises(SchemaError) as caught:
        json_schema(kind)
    assert f"{named}" in str(caught.value)
    assert "is not supported yet" in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (_Pathed, "alias"), (pydantic.Json[int], "Json"), (complex, "complex"), (object(), "pydantic"), (lambda x: x, "annotation"),
        (type("Plain", (), {}), "pydantic"), (Literal[_Plain.A], r"reads the member _Plain.A .* no JSON text. Make _Plain a `str, Enum`"),
        (list["NotDefined"], "NotDefined"),  # noqa: F821
    ],
)  # fmt: skip
def test_what_is_no_type_of_a_schema_is_refused(annotation: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        json_schema(annotation)


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
    with pytest.raises(SchemaError):
        json_schema({"$ref": "x"}, registry={"x": 5})  # type: ignore[dict-item]
    assert json_schema({}, strict=True).report == ()


def test_a_malformed_schema_of_a_property_is_refused_though_the_object_lists_its_values() -> None:
    with pytest.raises(SchemaError, match="a finite number, received 'x'.*#/properties/a/minimum"):
        json_schema({"enum": [{"a": 1}, 2], "properties": {"a": {"minimum": "x"}}})
    report = json_schema({"enum": [{"a": 1}], "properties": {"a": {"minimum": 0}}}).report
    assert [line.pointer for line in report] == ["#/enum", "#/properties", "#/properties/a/minimum"]


TOKEN_FSM = fsm.TokenFSM(fsm.regex("ab+"), fsm.Vocabulary([None, b"a", b"b"], [0]))


@pytest.mark.parametrize("wrong", ["1", None, 1.5, [1], np.array([1, 1])])
def test_what_is_no_state_or_no_token_id_is_refused(wrong: Any) -> None:
    for ask in (TOKEN_FSM.bitmask, TOKEN_FSM.allowed_token_ids, TOKEN_FSM.is_accepting, TOKEN_FSM.forced_text):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask(wrong)
    for ask_both in (TOKEN_FSM.next_state, TOKEN_FSM.explain):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask_both(wrong, 1)
        with pytest.raises(TypeError, match="expected one token id, an int, received"):
            ask_both(1, wrong)
    for call in (regex("a").blame, regex("a").accepts, lambda text: TOKEN_FSM.explain(1, 1, text), lambda text: TOKEN_FSM.wanted(1, text)):
        for text in (5, ["a", 5], bytearray(b"a")):
            with pytest.raises(TypeError, match="expected a text, str or bytes"):
                call(text)


class _Color(Enum):
    RED = "red"


CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: TOKEN_FSM.next_state(1, 3), fsm.TokenNotAllowed, "no id of this vocabulary of 3"),
    *((lambda n=n: TOKEN_FSM.bitmask(n), fsm.UnknownState, f"received {n}") for n in (0, -1, 99)),
    (lambda: fsm.TokenFSM("ab", TOKEN_FSM.vocabulary), TypeError, "expected an expression, such as"),  # type: ignore[arg-type]
    (lambda: fsm.TokenFSM(fsm.regex("a"), [b"a"]), TypeError, r"Write `fsm\.Vocabulary\("),  # type: ignore[arg-type]
    (lambda: fsm.Vocabulary([b"a", None], 1), fsm.VocabularyError, r"Write \[1\]"),  # type: ignore[arg-type]
    (lambda: fsm.Vocabulary([], []), fsm.VocabularyError, "at least one"),
    (lambda: fsm.Vocabulary([None], [0]), fsm.VocabularyError, "at least one"),
    (lambda: fsm.Vocabulary(["a"], []), fsm.VocabularyError, "bytes or None"),  # type: ignore[list-item]
    (lambda: fsm.Vocabulary([b"a"], [5]), fsm.VocabularyError, "EOS ids"),
    (lambda: fsm.Vocabulary([b"a"], [True]), fsm.VocabularyError, "EOS ids"),
    (lambda: fsm.regex("a").repeat("1"), TypeError, "count of a repetition"),  # type: ignore[arg-type]
    (lambda: fsm.regex("a").repeat(0, 1.5), TypeError, "count of a repetition"),  # type: ignore[arg-type]
    (lambda: fsm.regex("a").union(3), TypeError, "expected an expression or a str"),  # type: ignore[arg-type]
    (lambda: fsm.regex("a").named(3), TypeError, "expected a str as the name"),  # type: ignore[arg-type]
    (lambda: fsm.regex("a").named("x").captures(3), TypeError, "str or bytes"),  # type: ignore[arg-type]
    *((lambda n=n: fsm.choice(n), ExpressionError, "expected a list of options") for n in ({"a": 1}, 5, None, "ab")),
    *((lambda n=n: fsm.choice(n), ExpressionError, "generate.format") for n in (_Color, [_Color.RED])),
    (lambda: fsm.choice([]), ExpressionError, "at least one"),
    (lambda: fsm.choice(["a", 3]), ExpressionError, "position 1.*Convert it with str"),  # type: ignore[list-item]
    *(
        (lambda n=n: fsm.substring(n[0], end=n[1]), ExpressionError, "`text`|`end`")
        for n in ((3, ""), ("a", None), ("\ud800", ""), ("a", "\ud800"))
    ),
    (lambda: fsm.grammar('begin: "x"'), fsm.GrammarError, "expected a rule 'start'"),
    (lambda: fsm.grammar("start: 'x'"), fsm.GrammarError, "double quotes"),
    (lambda: fsm.grammar("start: A\nA: 'b'"), fsm.GrammarError, "double quotes"),
    (lambda: fsm.grammar("start: ?"), fsm.GrammarError, "cannot be read"),
    (lambda: fsm.Limits(max_depth=0), ValueError, "max_depth"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), CALLS)
def test_a_call_is_refused_with_what_to_write(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
