"""Optional properties that no value satisfies: they are never written, and a warning says so."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typer.testing import CliRunner

import fsm
from outlines_cont.cli.__main__ import app

CROSSED = {"type": "string", "minLength": 5, "maxLength": 3}


def told(schema: Any, **options: Any) -> list[str]:
    """The lines of the warning that a schema gives, without the first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fsm.SchemaWarning)
        fsm.json_schema(schema, **options)
    return [line for one in caught for line in str(one.message).splitlines()[1:]]


@pytest.mark.parametrize(
    ("schema", "pointer", "said"),
    [
        (CROSSED, "#/properties/a", "'minLength': 5"),
        ({"type": "string", "pattern": "^a{5}$", "maxLength": 3}, "#/properties/a", "a{5}"),
        ({"enum": []}, "#/properties/a", "'enum': []"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "#/properties/a", "'minimum': 3"),
        ({"type": "integer", "enum": ["x"]}, "#/properties/a", "'enum': ['x']"),
        (
            {"properties": {"b": CROSSED}, "required": ["b"], "type": "object"},
            "#/properties/a",
            "'#/properties/a/properties/b'",
        ),
        ({"$ref": "#/$defs/loop"}, "#/properties/a", "loop"),
    ],
)
def test_an_optional_property_that_cannot_be_is_told(schema: Any, pointer: str, said: str) -> None:
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
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"n": {"$ref": "#/$defs/n"}, "m": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                }
            },
            "$ref": "#/$defs/n",
        },
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
        {"type": st.just("string")},
        optional={"minLength": _COUNT, "maxLength": _COUNT, "pattern": st.sampled_from(["^a{2}$", "b", "^$"])},
    ),
    st.fixed_dictionaries(
        {"type": st.just("integer")}, optional={"minimum": _COUNT, "maximum": _COUNT, "multipleOf": st.just(2)}
    ),
    st.fixed_dictionaries({"type": st.just("integer"), "enum": st.lists(st.sampled_from([1, "a"]), max_size=2)}),
)
_NESTED = st.recursive(
    _VALUES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"properties": st.fixed_dictionaries({"in": inner}), "required": st.just(["in"]), "type": st.just("object")}
        ),
        st.fixed_dictionaries({"items": inner, "minItems": _COUNT, "type": st.just("array")}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=3,
)


@settings(max_examples=60, deadline=None)
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
