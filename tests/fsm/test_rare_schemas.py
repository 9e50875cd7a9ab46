"""Rare schemas, types, patterns and grammars, findings of fuzzing, properties that cannot be, and words of older drafts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, UrlConstraints
from typer.testing import CliRunner

import fsm
from fsm import SchemaError, json_schema, regex
from fsm.errors import EmptyLanguage
from fsm.schema.check import Translation
from fsm.schema.keywords.resource import LATEST
from fsm.terms.rendering import render
from fsm.tokens.character_loop import is_character_class
from outlines_cont.cli.__main__ import app
from tests.examples import examples


def test_a_number_that_python_does_not_print_is_named_all_the_same() -> None:
    with pytest.raises(SchemaError, match="received a very long int"):
        json_schema({"minLength": -(10**5000)})


class Tree(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: Annotated[str, Field(min_length=1)]
    below: list[Tree] = []


def test_a_recursive_type_that_changes_texts_first_is_asked_as_a_whole() -> None:
    expression = json_schema(Tree)
    assert expression.has_checks
    assert any("accepts the value" in check or "Tree" in check for check in expression.checks)
    for value, expected in (
        ({"name": "a", "below": []}, True),
        ({"name": " ", "below": []}, False),
        ({"name": "a", "below": [{"name": "b", "below": []}]}, True),
        ({"name": "a", "below": [{"name": "  ", "below": []}]}, False),
    ):
        assert expected is expression.accepts(json.dumps(value, separators=(",", ":"))), value


def test_a_url_may_have_a_length_of_its_own() -> None:
    expression = json_schema(Annotated[AnyUrl, UrlConstraints(max_length=20)])
    assert expression.accepts('"http://a.bc/de"')
    assert not expression.accepts('"http://a.bc/defghijklmnop"')


def test_loops_over_characters_are_told_by_their_first_bytes_and_their_ends() -> None:
    for pattern, expected in (("[a-z]", True), ("[a-c]", False), ("[a-z]|[a-z]b", False), ("[a-z]?", False), ("[a-z]b", True)):
        assert expected is is_character_class(regex(pattern).node), pattern
    assert is_character_class(regex("[a-c]").node, min_bytes=3)
    assert not is_character_class(regex("[a-c]").node, min_bytes=4)
    assert not is_character_class(regex("[a-z]bcdef").node, max_states=3)


ARITHMETIC = """
start: sum
sum: product | sum "+" product
product: N | product "*" N | "(" sum ")"
N: /[0-9]+/
"""


@pytest.mark.parametrize("places", [1, 10, 50_000])
def test_a_grammar_means_the_same_however_much_is_known_of_its_parser(places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsm.lark.conflict.MAX_PLACES", places)
    expression = fsm.grammar(ARITHMETIC)
    for text, expected in (("1+2*3", True), ("(1+2)*3", True), ("1+", False), ("()", False), ("12", True)):
        assert expected is expression.accepts(text), text


def test_a_pattern_that_looks_around_is_shown_as_one_that_does() -> None:
    assert "<what looks around>" in render(regex("(?:a(?=[bc])|[bc])*").node)


CLOSED = {"patternProperties": {"b$": True}, "additionalProperties": False}
NOT_ALL = [{"not": {"additionalProperties": {"type": kind}}} for kind in ("string", "integer")]


@pytest.mark.parametrize("key_order", ["any", "schema"])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"allOf": [{"not": CLOSED}, {"not": dict(CLOSED)}]}, '{"c": 1}', ['{"ab": 1}']),
        ({"allOf": NOT_ALL, "maxProperties": 1}, '{"c": null}', ['{"c": 1}', '{"c": "x"}', '{"c": 1, "d": "x"}']),
    ],
)
def test_one_member_may_be_what_two_negations_ask_for(schema: Any, good: str, bad: list[str], key_order: Literal["any", "schema"]) -> None:
    expression = json_schema({"type": "object", **schema}, key_order=key_order)
    assert expression.accepts(good)
    assert [text for text in bad if expression.accepts(text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://[x"},
        {"$ref": "#a", "$defs": {"x": {"$anchor": {}}}},
        {"$ref": "#a", "$defs": {"x": {"$id": 5}}},
        {"$ref": "x#a", "$defs": {"x": {"$id": "http://[x", "$anchor": "a"}}},
        {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": []}}},
    ],
)
def test_a_malformed_identifier_is_refused_by_a_schema_error(schema: Any) -> None:
    with pytest.raises(SchemaError, match="Correct it"):
        json_schema(schema)


COPRIME = {"type": "integer", "allOf": [{"not": {"multipleOf": prime}} for prime in (2, 3, 5, 7)]}  # only checked


def test_a_reference_that_is_no_proper_uri_is_followed_by_checks_too() -> None:
    rows = {"type": "array", "items": {"$ref": "#/$defs/Row<Cell>"}, "maxItems": 2}
    schema = {"$ref": "#/$defs/Rows<Row>", "$defs": {"Rows<Row>": rows, "Row<Cell>": COPRIME}}
    expression = json_schema(schema)
    assert expression.has_checks
    assert expression.accepts("[11]")
    assert not expression.accepts("[14]")


def test_a_schema_that_the_validator_does_not_take_is_refused_by_a_schema_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise ValueError("an unknown keyword")

    expression = json_schema({"type": "string", "pattern": "(a)\\1[^]"})
    assert (expression.accepts('"aab"'), expression.accepts('"aa"')) == (True, False)
    monkeypatch.setattr("jsonschema_rs.validator_for", refuse)
    expression = json_schema({"type": "string", "pattern": "(a)\\1[^]b"})
    with pytest.raises(SchemaError, match="the validator does not take"):
        expression.accepts('"a"')


CROSSED = {"type": "string", "minLength": 5, "maxLength": 3}


def told(schema: Any, **options: Any) -> list[str]:
    """The lines of the warning that a schema gives, without the first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fsm.SchemaWarning)
        fsm.json_schema(schema, **options)
    return [line for one in caught for line in str(one.message).splitlines()[1:]]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (CROSSED, "'minLength': 5"),
        ({"type": "string", "pattern": "^a{5}$", "maxLength": 3}, "a{5}"),
        ({"enum": []}, "'enum': []"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "'minimum': 3"),
        ({"type": "integer", "enum": ["x"]}, "'enum': ['x']"),
        ({"properties": {"b": CROSSED}, "required": ["b"], "type": "object"}, "'#/properties/a/properties/b'"),
        ({"$ref": "#/$defs/loop"}, "loop"),
    ],
)
def test_an_optional_property_that_cannot_be_is_told(schema: Any, said: str) -> None:
    pointer = "#/properties/a"
    loop = {"type": "object", "properties": {"in": {"$ref": "#/$defs/loop"}}, "required": ["in"]}
    whole = {"type": "object", "properties": {"a": schema, "b": {"type": "null"}}, "$defs": {"loop": loop}}
    (line,) = told(whole)
    assert line.startswith(f"'{pointer}': no value satisfies it")
    assert said in line
    with warnings.catch_warnings(action="ignore"):
        expression = fsm.json_schema(whole)
    assert [pointer] == [line.pointer for line in expression.report if "no value satisfies it" in line.note]
    assert not any(line.level == "annotated" for line in expression.report)
    assert expression.accepts('{"b":null}')
    with pytest.raises(fsm.SchemaError, match="no value satisfies it"):
        fsm.json_schema(whole, strict=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": False}},
        {"properties": {"a": {"not": {}}}},
        {"properties": {"a": {"$ref": "#/$defs/no"}, "b": {"$dynamicRef": "#/$defs/no"}}, "$defs": {"no": False}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"type": "string", "minLength": 3, "maxLength": 3}}},
        {
            "properties": {"kind": {"const": "x"}},
            "oneOf": [{"properties": {"kind": {"const": "x"}}}, {"properties": {"kind": {"const": "y"}}}],
        },
        {"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {"const": 2}}}},
        {"type": "object", "properties": {"n": {"$ref": "#"}, "m": {"type": "array", "items": {"$ref": "#"}}}},
    ],
)
def test_what_is_meant_or_can_be_is_not_told(schema: Any) -> None:
    assert told(schema) == []


def test_of_a_type_it_is_told_too() -> None:
    class Crossed(BaseModel):
        name: Annotated[str, Field(min_length=5, max_length=3)] = ""
        age: int = 0

    (line,) = told(Crossed)
    assert line.startswith("'#/properties/name': no value satisfies it")


def test_the_command_tells_it(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps({"type": "object", "properties": {"a": CROSSED}}))
    shown = CliRunner().invoke(app, ["schema", str(tmp_path / "schema.json")])
    assert "exact: #/properties/a: no value satisfies it" in shown.stdout.replace("\n", " ")


_COUNT = st.integers(0, 3)
_VALUES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": _COUNT, "maxLength": _COUNT, "pattern": st.sampled_from(["^a{2}$", "b", "^$"])}
    ),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": _COUNT, "maximum": _COUNT, "multipleOf": st.just(2)}),
    st.fixed_dictionaries({"type": st.just("integer"), "enum": st.lists(st.sampled_from([1, "a"]), max_size=2)}),
)
_NESTED = st.recursive(
    _VALUES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"properties": st.fixed_dictionaries({"in": inner}), "required": st.just(["in"]), "type": st.just("object")}),
        st.fixed_dictionaries({"items": inner, "minItems": _COUNT, "type": st.just("array")}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=3,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), _NESTED, max_size=3), st.booleans())
def test_what_is_told_is_what_is_empty_by_itself(properties: dict[str, Any], is_any_order: bool) -> None:
    empty = []
    for name, schema in properties.items():
        try:
            with warnings.catch_warnings(action="ignore"):
                fsm.json_schema(schema)
        except fsm.EmptyLanguage:
            empty.append(f"'#/properties/{name}': no value satisfies it")
    lines = told({"type": "object", "properties": properties}, key_order="any" if is_any_order else "schema")
    outermost = [line for line in lines if line.split(":")[0].count("/") == 2]
    said = [line[: line.index(" satisfies it") + len(" satisfies it")] for line in outermost]
    assert set(said) <= set(empty)
    # Of an object inside whose keys are open, what its members have to be together is not looked at again.
    if not any("properties" in schema for schema in properties.values()):
        assert said == empty


NAMES = st.sampled_from("abc")
SCALARS = st.sampled_from([None, True, -2, 0, 1, 2, 0.5, "x", "y"])
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=6)


def _some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={**parts, "nullable": st.booleans()})


def _nested(schema: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    required = st.booleans() | st.lists(NAMES, unique=True)
    property_ = st.builds(lambda one, word: {**one, "required": word} if word in (True, False) else one, schema, st.none() | st.booleans())
    depended = NAMES | st.lists(NAMES, unique=True) | schema
    return st.one_of(
        _some(
            type=st.just("object"), properties=st.dictionaries(NAMES, property_, max_size=3), required=required,
            dependencies=st.dictionaries(NAMES, depended, max_size=2), additionalProperties=schema | st.booleans(),
        ),
        _some(type=st.just("array"), items=schema | st.lists(schema, max_size=2), additionalItems=schema | st.booleans()),
        _some(**{word: st.lists(schema, min_size=1, max_size=2) for word in ("anyOf", "allOf", "oneOf")}),
    )  # fmt: skip


TYPES = st.sampled_from(["string", "null", "integer", "any", ["string", "null"]])
SIMPLE = _some(type=TYPES, enum=st.lists(SCALARS, min_size=1, max_size=2)) | _some(
    type=st.just("number"), minimum=st.integers(-1, 1), exclusiveMinimum=st.booleans()
)
SCHEMAS = st.recursive(SIMPLE, _nested, max_leaves=5)


def in_draft_4(schema: Any) -> Any:
    """A schema in words of draft 4 alone."""
    if isinstance(schema, list):
        return [in_draft_4(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    parts = ("items", "additionalItems", "additionalProperties", "anyOf", "allOf", "oneOf")
    found = {word: in_draft_4(said) if word in parts else said for word, said in schema.items()}
    properties = schema.get("properties", {})
    needed = [*found.pop("required", [])] if isinstance(schema.get("required"), list) else []
    needed += [name for name, one in properties.items() if one.get("required") is True]
    found |= {"required": needed} if needed else {}
    for word in ("properties", "dependencies"):
        found |= {word: {name: in_draft_4(one) for name, one in found[word].items()}} if word in found else {}
    for name, one in found.get("dependencies", {}).items():
        found["dependencies"][name] = [one] if isinstance(one, str) else one
    left_out = {"nullable"} | {word for word, said in found.items() if said == "any" or (word, said) == ("required", False)}
    found = {word: said for word, said in found.items() if word not in left_out and not (word == "required" and said is True)}
    return {"anyOf": [{"type": "null"}, found]} if schema.get("nullable") is True else found


@settings(max_examples=examples(80))
@given(SCHEMAS, st.lists(VALUES, min_size=4, max_size=8))
def test_older_words_accept_what_they_say(schema: dict[str, Any], values: list[Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=fsm.SchemaWarning):
        try:
            expression = fsm.json_schema(schema, key_order="any")
        except EmptyLanguage:
            expression = None
    translated, oracle = Translation(schema, LATEST).root, jsonschema.Draft4Validator(in_draft_4(schema))
    for value in values:
        expected = oracle.is_valid(value)
        assert expected == (expression is not None and expression.accepts(json.dumps(value))), value
        assert expected == jsonschema_rs.is_valid(translated, value), value
