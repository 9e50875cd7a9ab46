"""JSON schemas against the `jsonschema` validator: instances near a schema, random texts of its language, and what is left to checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any
from warnings import catch_warnings, simplefilter

import jsonschema
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import EmptyLanguage, SchemaError, SchemaWarning
from fsm.expression import Expression
from fsm.schema import json_schema
from tests.judged import at_least, judged
from tests.walks import RANDOMS, random_text

NAMES = ["a", "b", "ab", "é", 'q"', "k\n"]
TEXTS = st.sampled_from(["", "a", "b", "ab", "abc", "é", "😀😀", "\n", '"', "\\", "a1", "2024-02-29", "2023-02-29"]) | st.text(max_size=6)
WHOLE = st.integers(-130, 130) | st.sampled_from([0, -1, 10**20, -(10**20)])
FRACTIONS = st.integers(-40_000, 40_000).map(lambda n: n / 4) | st.integers(-3000, 3000).map(lambda n: n / 1000)
FORMATS = ["date", "ipv4", "ipv6", "uuid"]
FORMATTED = st.sampled_from(
    [
        "2024-02-29", "2023-02-29", "0000-01-01", "1900-02-29", "2000-02-29", "2024-13-01", "2024-1-01", "20240101", "9999-12-31",
        "1.2.3.4", "01.2.3.4", "256.1.1.1", "1.2.3", "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::1:2:3:4:5:6:7",
        "1::2::3", ":::", "12345::", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", "fe80::1%eth0",
        "123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000", "123e4567e89b12d3a456426614174000",
    ]
)  # fmt: skip
CHECKER = jsonschema.FormatChecker(FORMATS)

Draw = Callable[[st.SearchStrategy[Any]], Any]


def scalars() -> st.SearchStrategy[Any]:
    return st.none() | st.booleans() | WHOLE | FRACTIONS.map(plain) | TEXTS


def plain(value: Any) -> Any:
    """Spell a whole float as int, as the language does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def values(depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return scalars()
    below = values(depth - 1)
    return scalars() | st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=3)


@st.composite
def numeric(draw: Draw) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    bound = WHOLE if draw(st.booleans()) else FRACTIONS
    for keyword in draw(st.lists(st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]), max_size=2)):
        schema[keyword] = draw(bound)
    if draw(st.integers(0, 2)) == 0:
        whole = st.sampled_from([1, 2, 3, 7, 10, 12])
        schema["multipleOf"] = draw(whole if schema["type"] == "integer" else whole | st.sampled_from([0.5, 0.25, 0.125]))
    return schema


@st.composite
def textual(draw: Draw) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for keyword in draw(st.lists(st.sampled_from(["minLength", "maxLength", "pattern", "format"]), max_size=2, unique=True)):
        if keyword == "pattern":
            schema[keyword] = draw(st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^.{2}$", "[0-9]", "^a|b", ""]))
        elif keyword == "format":
            schema[keyword] = draw(st.sampled_from(FORMATS))
        else:
            schema[keyword] = draw(st.integers(0, 4))
    return schema


@st.composite
def arrays(draw: Draw, below: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        schema["items"] = draw(below)
    if draw(st.integers(0, 2)) == 0:
        schema["prefixItems"] = draw(st.lists(below, min_size=1, max_size=3))
    for keyword in draw(st.lists(st.sampled_from(["minItems", "maxItems"]), max_size=2)):
        schema[keyword] = draw(st.integers(0, 4))
    return schema


@st.composite
def objects(draw: Draw, below: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    schema["properties"] = {name: draw(below) for name in names}
    schema["required"] = [name for name in NAMES if draw(st.integers(0, 3)) == 0]
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.just(False) | below)
    return schema


@cache  # making a strategy costs more than drawing from it
def leaves() -> st.SearchStrategy[Any]:
    lists = st.lists(values(1), min_size=1, max_size=4).map(lambda v: {"enum": v})
    names = st.sampled_from([{"type": "null"}, {"type": ["boolean", "null"]}])
    return st.booleans() | numeric() | textual() | lists | values(1).map(lambda v: {"const": v}) | names


@cache
def schemas(depth: int = 3) -> st.SearchStrategy[Any]:
    if not depth:
        return leaves()
    below = schemas(depth - 1)
    branches = st.lists(below, min_size=1, max_size=3)
    any_of, all_of = branches.map(lambda b: {"anyOf": b}), branches.map(lambda b: {"allOf": b[:2]})
    reference = st.sampled_from([{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/list"}])
    return varied(leaves() | arrays(below) | objects(below) | any_of | reference | all_of, branches)


@st.composite
def varied(draw: Draw, plain_schemas: st.SearchStrategy[Any], branches: st.SearchStrategy[Any]) -> Any:
    """Some schemas lose their `type`, some get `anyOf` beside what they say."""
    schema = draw(plain_schemas)
    if isinstance(schema, dict):
        if draw(st.integers(0, 4)) == 0:
            schema = {k: v for k, v in schema.items() if k != "type"}
        if draw(st.integers(0, 5)) == 0:
            schema = {"anyOf": draw(branches)} | schema
    return schema


DEFINITIONS = {
    "node": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"$ref": "#/$defs/list"}},
}


def documents() -> st.SearchStrategy[Any]:
    return schemas().map(lambda s: {"$defs": DEFINITIONS} | s if isinstance(s, dict) else s)


def leaf_values(schema: Any) -> st.SearchStrategy[Any]:
    """Values that are likely, but not sure, to satisfy a schema of numbers or of texts."""
    if not isinstance(schema, dict):
        return values(1)
    bounds = [schema[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in schema]
    near = st.sampled_from([b + d for b in bounds for d in (-1, -0.25, 0, 0.25, 1)] or [0])
    numbers = (near | WHOLE | FRACTIONS).map(plain)
    return values(1) | (numbers if schema["type"] != "string" else FORMATTED if "format" in schema else TEXTS)


@st.composite
def object_instances(draw: Draw, schema: dict[str, Any]) -> Any:
    properties = schema["properties"]
    names = [n for n in properties if n in schema["required"] or draw(st.booleans())]
    names += [n for n in [*schema["required"], *NAMES] if draw(st.integers(0, 3)) == 0]
    other = schema.get("additionalProperties", True)
    return {n: draw(leaf_values(properties.get(n, other))) for n in names}


def compiled(schema: Any, whitespace: Any = "one_space") -> Expression | None:
    with catch_warnings():
        simplefilter("ignore", SchemaWarning)  # of properties that no value satisfies
        try:
            return json_schema(schema, whitespace=whitespace)
        except EmptyLanguage:
            return None


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema, format_checker=CHECKER).is_valid(value))


relaxed = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@relaxed
@given(objects(numeric() | textual() | st.booleans()), st.data())
def test_members_in_the_order_of_the_schema_are_accepted_exactly_if_valid(schema: dict[str, Any], data: st.DataObject) -> None:
    value = data.draw(object_instances(schema))
    rank = {name: position for position, name in enumerate(dict.fromkeys([*schema["properties"], *schema["required"]]))}
    ordered = dict(sorted(value.items(), key=lambda item: rank.get(item[0], len(rank))))
    expression = compiled(schema, "none")
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    assert is_valid(schema, value) == (expression is not None and expression.accepts(text))


def repeats_a_key(text: bytes) -> bool:
    objects: list[list[tuple[str, Any]]] = []
    json.loads(text, object_pairs_hook=lambda pairs: objects.append(pairs) or dict(pairs))
    return any(len(dict(pairs)) < len(pairs) for pairs in objects)


@relaxed
@given(documents(), RANDOMS, st.integers(0, 60), st.sampled_from(["none", "one_space", "spaced"]))
def test_every_text_of_the_language_is_json_that_is_valid(schema: Any, random: Random, steps: int, whitespace: Any) -> None:
    expression = compiled(schema, whitespace)
    if expression is None:
        return
    text = random_text(expression.node, random, steps)
    note(repr(text))
    value = json.loads(text.decode())
    assert is_valid(schema, value)
    assert expression.accepts(text) != repeats_a_key(text)  # keys that nobody declares are checked
    assert has_spaces_only_where_they_may_be(text.decode(), whitespace)


@relaxed
@given(arrays(schemas(1)) | objects(schemas(1)), RANDOMS, st.integers(10, 60), st.sampled_from(["none", "one_space", "spaced"]))
def test_a_space_may_stand_behind_each_colon_and_comma_and_nowhere_else(schema: Any, random: Random, steps: int, whitespace: Any) -> None:
    expression = compiled({"$defs": DEFINITIONS} | schema, whitespace)
    if expression is None:
        return
    text = random_text(expression.node, random, steps)
    parts = [part for part in PARTS.findall(text.decode()) if not part.isspace()]
    places = [place for place, part in enumerate(parts) if part in ":,"]
    chosen = {place for place in places if random.random() < 0.5}
    respelt = with_spaces(parts, dict.fromkeys(chosen, " "))
    note(f"{text!r} {respelt!r}")
    is_told = not repeats_a_key(text)
    asked = {"none": set(), "spaced": set(places)}.get(whitespace, chosen)
    assert expression.accepts(respelt) == (is_told and chosen == asked)
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


@at_least(15)
@relaxed
@given(numeric(), RANDOMS, st.integers(0, 400))
def test_every_number_of_a_range_is_in_it_after_rounding_to_a_double(schema: Any, random: Random, steps: int) -> None:
    expression = compiled(schema)
    if expression is not None:
        text = random_text(expression.node, random, steps)
        note(repr(text))
        judged()
        assert is_valid(schema, json.loads(text))


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
