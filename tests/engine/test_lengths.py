"""Values of a schema that may be of any length: `Report.unbounded`, what is said of them, and that nothing else is of any length."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typer.testing import CliRunner

import fsm
from fsm import EmptyLanguage, SchemaWarning, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms.distance import is_unbounded
from fsm.terms.node import Node
from outlines_cont import continuous, generate
from outlines_cont.cli.__main__ import app
from outlines_cont.errors import LengthWarning, UnboundedWarning
from outlines_cont.generation.options import named_lengths
from tests.examples import examples
from tests.fakes import random_model


class Person(BaseModel):
    name: str
    nick: str | None = None
    code: str = Field(pattern="^[A-Z]{3}$")
    kind: Literal["a", "b"]
    tags: list[str]
    few: list[int] = Field(max_length=3)
    ages: dict[str, int] = {}
    other: Any = None
    count: int


class Pair(BaseModel):
    one: Person
    other: Person


def test_the_report_names_what_may_be_of_any_length() -> None:
    properties = {
        "name": "maxLength", "nick/anyOf/0": "maxLength", "tags": "maxItems", "tags/items": "maxLength",
        "ages": "maxProperties", "other": "type",
    }  # fmt: skip
    assert {f"#/properties/{at}": bound for at, bound in properties.items()} == dict(fsm.json_schema(Person).report.unbounded)
    found = fsm.json_schema(Pair).report.unbounded  # each once, where it is written
    assert tuple((f"#/$defs/Person/properties/{at}", bound) for at, bound in properties.items()) == found


@pytest.mark.parametrize(
    ("schema", "unbounded"),
    [
        ({"type": "string"}, {"#": "maxLength"}),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, {}),
        ({"$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}, "maxLength": 4}, {}),
        ({"type": "string", "pattern": "^a{3,9}$"}, {}),
        ({"type": "string", "pattern": "a{3}"}, {"#": "maxLength"}),
        ({"type": "string", "pattern": "a{3}", "maxLength": 9}, {}),
        ({"type": "string", "format": "date"}, {}),
        ({"type": "string", "not": {"const": "a"}}, {"#": "maxLength"}),
        ({"enum": ["a", ["b"]]}, {}),
        ({"type": "array", "items": {"type": "integer"}}, {"#": "maxItems"}),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, {}),
        ({"type": "array", "maxItems": 3}, {"#": "type"}),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, {}),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}}, {"#": "maxItems"}),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, {"#": "maxProperties"}),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"#/properties/a": "type"}),
        ({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "null"}}, {"#": "propertyNames"}),
        (True, {"#": "type"}),
        ({"type": ["string", "null"]}, {"#": "maxLength"}),
    ],
)
def test_a_schema_is_bounded_by_all_that_holds_for_a_value(schema: Any, unbounded: dict[str, str]) -> None:
    assert unbounded == dict(fsm.json_schema(schema).report.unbounded)


def test_what_is_bounded_from_outside_is_not_named() -> None:
    string = fsm.json_schema({"type": "string"})
    named = (("#", "maxLength"),)
    assert named == (string + "x").report.unbounded == ("a" | string).report.unbounded == (string + string).report.unbounded
    assert () == (string & fsm.regex(".{9}")).report.unbounded == (~string).report.unbounded


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a{3}|b", False), ("(a|b?c){2,9}", False), ("a*", True), ("x(a+|b)", True), ("(ab*){2}", True), ("(?!b)a{2}", False),
    ],
)  # fmt: skip
def test_a_pattern_is_endless_where_a_part_repeats_without_a_bound(pattern: str, expected: bool) -> None:
    assert expected is is_unbounded(fsm.regex(pattern).node, {})


def test_lengths_are_told_once_where_no_call_bounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.generation.options.DEFAULT_MAX_TOKENS", 5)
    model = random_model()
    model.memo.pop("told_lengths", None)
    short = generate.json(model, {"type": "string", "maxLength": 1})
    long = generate.json(model, {"type": "array", "minItems": 30, "items": {"type": "integer", "minimum": 0, "maximum": 9}})
    with warnings.catch_warnings(action="error"):
        continuous(short)("a")
        state = continuous(long)("a", max_tokens=4)
        generate.regex(model, "a?b*c")  # a pattern shows its length
    said = r"^'#' \(`maxItems`\) may be of any length, .* cut after 5 tokens"
    with pytest.warns(LengthWarning) as told:
        continuous(long)("a")
    assert [(UnboundedWarning, True)] == [(one.category, bool(re.search(said, str(one.message)))) for one in told[:1]]
    assert __file__ == told[0].filename  # the line of the user
    with pytest.warns(LengthWarning) as again:
        assert {"length"} == {done.finish_reasons[0][0] for done in (continuous(long)("a"), continuous(long).resume(state))}
    assert [LengthWarning, LengthWarning] == [one.category for one in again]  # they were cut


def test_the_command_says_so_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("")
    (tmp_path / "name.json").write_text('{"type": "object", "properties": {"name": {"type": "string"}}}')
    given = ["extract", str(tmp_path / "rows.txt"), "--schema", str(tmp_path / "name.json")]
    told = CliRunner().invoke(app, given)
    assert told.stderr.startswith(
        "Note: '#' (`maxProperties`), '#/properties/name' (`maxLength`) may be of any length; a record is cut after 1024 tokens. "
        "Set --max-tokens"
    )
    assert "Note" not in CliRunner().invoke(app, [*given, "--max-tokens", "1024"]).stderr
    described = CliRunner().invoke(app, ["schema", str(tmp_path / "name.json")])
    assert "any length: '#' (`maxProperties`), '#/properties/name' (`maxLength`)" in described.stdout.replace("\n", " ")


def test_five_values_are_named_and_more_are_counted() -> None:
    unbounded = [(f"#/properties/{name}", "maxLength") for name in "abcdefg"]
    assert " and " not in named_lengths(unbounded[:5])
    assert named_lengths(unbounded[:5]).count("maxLength") == 5
    assert named_lengths(unbounded[:6]).endswith("'#/properties/e' (`maxLength`) and 1 more")
    assert named_lengths(unbounded).endswith(" and 2 more")


_MAX_STATES = 400
_COUNTS = st.integers(0, 3)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


# None of them excludes another: what is named inside of what cannot be is no error.
_STRINGS = st.one_of(
    _some(minLength=_COUNTS, maxLength=st.integers(3, 6), pattern=st.sampled_from(["^a{1,3}$", "b", "^x*$", "^(y|z{2,})$"])),
    st.sampled_from([{"format": "date"}, {"format": "uuid"}, {"format": "email", "maxLength": 90}]),
).map(lambda schema: {"type": "string", **schema})
_SCALARS = _STRINGS | st.sampled_from([{"const": "c"}, {"enum": ["a", "b"]}, {"type": "boolean"}, {"type": "null"}])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = _some(items=inner, maxItems=st.integers(1, 3), prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=_COUNTS)
    objects = _some(
        properties=st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        additionalProperties=inner | st.booleans(),
        maxProperties=st.integers(1, 3),
        propertyNames=st.sampled_from([{"maxLength": 3}, {"pattern": "^[a-d]$"}]),
    )
    together = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        arrays.map(lambda schema: {"type": "array", **schema}),
        objects.map(lambda schema: {"type": "object", **schema}),
        together.map(lambda schemas: {"anyOf": schemas}),
        inner.map(lambda schema: {"allOf": [schema, {"maxLength": 90, "maxItems": 4}]}),
    )


def _is_infinite(node: Node) -> bool | None:
    """Whether texts of a term may be of any length, by a look at its states: is there a circle from which an end can be reached?

    None where there are too many states to look at, as for values of any type.
    """
    automaton = Automaton(node)
    states, targets = [automaton.initial_state], dict[int, set[int]]()
    for state in states:
        if len(states) > _MAX_STATES:
            return None
        targets[state] = {target for _, target in automaton.arcs(state)}
        states += [target for target in targets[state] if target not in states]
    sources: dict[int, set[int]] = {state: set() for state in states}
    for state, found in targets.items():
        for target in found:
            sources[target].add(state)
    live = {state for state in states if automaton.is_accepting(state)}
    queue = [*live]
    for state in queue:
        new = sources[state] - live
        queue += new
        live |= new
    left = {state: len(targets[state] & live) for state in live}  # states without a way on are taken away, one after the other
    ended = [state for state in live if not left[state]]
    for state in ended:
        for source in sources[state] & live:
            left[source] -= 1
            ended += [source] if not left[source] else []
    return len(ended) < len(live)


@settings(max_examples=examples(60), deadline=None)
@given(st.recursive(_SCALARS, _containers, max_leaves=4))
def test_what_is_not_named_is_bounded_and_what_is_named_is_not(schema: Any) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=SchemaWarning):
            expression = json_schema(schema)
    except EmptyLanguage:
        return
    is_infinite = _is_infinite(expression.node)
    if is_infinite is not None:
        event(f"{is_infinite}")
        assert bool(expression.report.unbounded) is is_infinite
