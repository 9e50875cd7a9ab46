"""JSON texts of random schemas: the order of members and white space, against the `jsonschema` validator; and what is left to checks."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fsm import Expression, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, EmptyLanguage, SchemaError, SchemaWarning
from tests.examples import examples
from tests.fsm.test_json_schema_keywords import DEFINITIONS, DOCUMENTS, NAMES, SCALARS, is_valid, relaxed, schemas
from tests.judged import at_least, judged
from tests.walks import RANDOMS, random_text


def compiled(schema: Any, whitespace: Any = "one_space") -> Expression | None:
    with catch_warnings():
        simplefilter("ignore", SchemaWarning)  # of properties that no value satisfies
        try:
            return json_schema(schema, whitespace=whitespace)
        except (EmptyLanguage, SchemaError, BudgetExceeded):
            return None


MEMBERS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from(NAMES), schemas(1), max_size=4),
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    },
    optional={"additionalProperties": st.just(False) | schemas(1)},
)


@at_least(20)
@settings(relaxed, max_examples=examples(60))
@given(MEMBERS, st.lists(st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4), min_size=3, max_size=6))
def test_members_in_the_order_of_the_schema_are_accepted_exactly_if_valid(schema: dict[str, Any], values: list[dict[str, Any]]) -> None:
    rank = {name: position for position, name in enumerate(dict.fromkeys([*schema["properties"], *schema["required"]]))}
    whole = {"$defs": DEFINITIONS, **schema}
    expression = compiled(whole, "none")
    for value in values:
        ordered = dict(sorted(value.items(), key=lambda item: rank.get(item[0], len(rank))))
        text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
        if is_valid(whole, value):
            judged()
        assert is_valid(whole, value) == (expression is not None and expression.accepts(text))


def repeats_a_key(text: bytes) -> bool:
    objects: list[list[tuple[str, Any]]] = []
    json.loads(text, object_pairs_hook=lambda pairs: objects.append(pairs) or dict(pairs))
    return any(len(dict(pairs)) < len(pairs) for pairs in objects)


@settings(relaxed, max_examples=examples(50))
@given(DOCUMENTS, RANDOMS, st.integers(10, 60), st.sampled_from(["none", "one_space", "spaced"]))
def test_a_space_may_stand_behind_each_colon_and_comma_and_nowhere_else(schema: Any, random: Random, steps: int, whitespace: Any) -> None:
    schema_of_containers = {**(schema if isinstance(schema, dict) else {}), "type": ["array", "object"]}
    expression = compiled(schema_of_containers, whitespace)
    if expression is None:
        return
    text = random_text(expression.node, random, steps)
    json.loads(text.decode())
    assert has_spaces_only_where_they_may_be(text.decode(), whitespace)
    is_told = expression.accepts(text)
    if all(line.level == "exact" for line in expression.report):
        assert is_told != repeats_a_key(text)  # keys that nobody declares are checked
    parts = [part for part in PARTS.findall(text.decode()) if not part.isspace()]
    places = [place for place, part in enumerate(parts) if part in ":,"]
    chosen = {place for place in places if random.random() < 0.5}
    respelt = with_spaces(parts, dict.fromkeys(chosen, " "))
    note(f"{text!r} {respelt!r}")
    asked = {"none": set(), "spaced": set(places)}.get(whitespace, chosen)
    assert expression.accepts(respelt) == (is_told and chosen == asked)
    none, spaced = (compiled(schema_of_containers, kind) for kind in ("none", "spaced"))
    if none is not None and spaced is not None:
        assert (none | spaced).accepts(respelt) == (is_told and chosen in (set(), set(places)))
    for place in range(-1, len(parts)) if is_told else ():
        space = random.choice(["  ", "\n", "\t", " \n"] if place in places else [" ", "\n", "\t", "\r"])
        assert not expression.accepts(with_spaces(parts, {place: space}))


PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+|\s+')
"""The strings, punctuation, other values and white space of a JSON text."""


def has_spaces_only_where_they_may_be(text: str, whitespace: str) -> bool:
    """Whether all white space outside strings is one space behind `:` or `,`; none with "none", behind each with "spaced"."""
    parts = PARTS.findall(text)
    assert text == "".join(parts)
    spaces = [place for place, part in enumerate(parts) if part.isspace()]
    if whitespace == "none":
        return not spaces
    if whitespace == "spaced" and len(spaces) < sum(part in ":," for part in parts):
        return False
    return all(parts[place] == " " and place and parts[place - 1] in ":," for place in spaces)


def with_spaces(parts: list[str], spaces: dict[int, str]) -> str:
    """A text of these parts with white space behind some of them, by number; -1 is in front of the first."""
    return spaces.get(-1, "") + "".join(part + spaces.get(place, "") for place, part in enumerate(parts))


_TWICE = "^(a+)b\\1$"  # no regular language


def _patterns(count: int) -> dict[str, Any]:
    return {"patternProperties": {f"^k{n}$": {"const": n} for n in range(count)}}


def _counts(count: int) -> dict[str, Any]:
    return {"allOf": [{"contains": {"const": n}} for n in range(count)], "type": "array"}


def _subsets(count: int) -> dict[str, Any]:
    return {"anyOf": [{"required": [f"p{n}"], "properties": {f"p{n}": True}} for n in range(count)], "unevaluatedProperties": False}


CASES: list[tuple[dict[str, Any], str, str, list[Any], list[Any]]] = [
    (_patterns(17), "/patternProperties", "too many patterns", [{"k3": 3}, {"k16": 16, "x": 1}], [{"k3": 4}, {"k16": 1}]),
    ({"propertyNames": {"pattern": _TWICE}}, "/propertyNames", "keys would have to be checked", [{"aba": 1}, {}], [{"ab": 1}]),
    (
        {"patternProperties": {_TWICE: {"const": 1}}},
        "/patternProperties", "the pattern is not regular", [{"aba": 1}, {"ab": 2}], [{"aba": 2}],
    ),
    (
        {"patternProperties": {_TWICE: {"const": 1}}, "additionalProperties": False},
        "/patternProperties", "the pattern is not regular", [{"aba": 1}, {}], [{"aba": 2}, {"ab": 1}],
    ),
    (
        {"not": {"patternProperties": {_TWICE: {"const": 1}}}, "type": "object"},
        "/not/patternProperties", "the pattern is not regular", [{"aba": 2}], [{"aba": 1}, {"ab": 2}],
    ),
    (
        {"not": {"propertyNames": {"pattern": _TWICE}}, "type": "object"},
        "/not/propertyNames/not/pattern", "the pattern is not regular", [{"ab": 1}], [{"aba": 1}, {}],
    ),
    (_counts(9), "/allOf/0/contains", "too many counts", [[*range(9)], [*range(10)]], [[*range(8)], []]),
    (_subsets(7), "/anyOf", "", [{"p0": 1}, {"p5": 1}], [{"p0": 1, "x": 2}, {"x": 1}]),
    ({"if": {"uniqueItems": True}, "then": {"maxItems": 1}}, "/if/uniqueItems", "", [[1], [1, 1], "a"], [[1, 2]]),
    (
        {"$defs": {"c": {"$id": "http://x.org/c", "contains": {"const": 1}}}, "$ref": "http://x.org/c", "unevaluatedItems": {"const": 2}},
        "/unevaluatedItems", "`contains` is in another resource", [[1], [1, 2]], [[1, 3], [2]],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer", "reason", "good", "bad"), CASES)
def test_what_is_left_to_checks_is_said_and_still_holds(
    schema: dict[str, Any], pointer: str, reason: str, good: list[Any], bad: list[Any]
) -> None:
    expression = json_schema(schema, key_order="any")
    told = {line.pointer: line for line in expression.report if line.level == "checked"}
    assert f"#{pointer}" in told, told
    assert reason in told[f"#{pointer}"].note
    for value in (*good, *bad):
        assert (value in good) == expression.accepts(json.dumps(value, separators=(",", ":"))), value
    with pytest.raises(SchemaError, match="is not exact here"):
        json_schema(schema, key_order="any", strict=True)


@pytest.mark.parametrize("schema", [_patterns(16), _subsets(6), {"if": {"maxItems": 1}, "then": {"minItems": 1}}])
def test_what_is_just_within_the_bounds_is_exact(schema: dict[str, Any]) -> None:
    assert not any(line.level == "checked" for line in json_schema(schema, strict=True).report)


def test_listed_values_beside_a_pattern_that_is_checked_are_the_only_ones_that_the_automaton_holds() -> None:
    expression = json_schema({"enum": ["ab", "aa", 7], "pattern": r"(.)\1"})
    assert {line.pointer: line.level for line in expression.report} == {"#/enum": "exact", "#/pattern": "checked"}
    automaton = Automaton(expression.node)
    assert [automaton.accepts(text) for text in (b'"ab"', b'"aa"', b"7", b'"bb"')] == [True, True, True, False]
    assert [expression.accepts(text) for text in ('"ab"', '"aa"', "7")] == [False, True, True]
