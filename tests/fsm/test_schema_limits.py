"""Values next to the limits of each keyword: one below, the limit itself, one above; also texts that repeat a key."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, json_schema

COUNTS = st.integers(0, 3)
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "x", "y", "z"]), st.sampled_from(["1", '"s"', "null"])), max_size=4
)


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """Objects with counts, of which some members are declared and some of these required."""
    schema: dict[str, Any] = {"type": "object"}
    names = draw(st.lists(st.sampled_from(["a", "b"]), unique=True))
    schema["properties"] = {name: draw(st.sampled_from([{}, {"type": "integer"}])) for name in names}
    schema |= draw(st.fixed_dictionaries({}, optional={"minProperties": COUNTS, "maxProperties": COUNTS}))
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(["a", "b", "x"]), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([False, {"type": "string"}]))
    return schema


@settings(max_examples=120, deadline=None)
@given(objects(), st.lists(MEMBERS, min_size=3, max_size=6))
@example({"type": "object", "maxProperties": 2}, [[("x", "1"), ("x", "1")], [("x", "1"), ("y", "1")]])
@example({"type": "object", "properties": {"a": {}}, "minProperties": 1}, [[], [("a", "1")], [("x", "1")]])
def test_an_object_has_as_many_members_as_the_counts_say_each_key_once(
    schema: dict[str, Any], found: list[list[tuple[str, str]]]
) -> None:
    try:
        accepts = json_schema(schema, key_order="any", whitespace="none").accepts
    except EmptyLanguage:
        accepts = lambda text: False  # noqa: E731
    for members in found:
        text = "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
        is_distinct = len({name for name, _ in members}) == len(members)
        assert accepts(text) == (is_distinct and is_valid(schema, json.loads(text))), text


LIMITS = st.sampled_from(
    [
        0,
        1,
        -1,
        9,
        10,
        99,
        100,
        -100,
        2**31,
        2**53 - 1,
        2**53,
        2**53 + 2,
        -(2**53),
        2**63,
        10**16,
        10**22,
        0.5,
        0.1,
        -2.25,
        1e-7,
    ]
)
BOUNDS = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])


@settings(max_examples=120, deadline=None)
@given(BOUNDS, LIMITS, st.sampled_from(["integer", "number"]))
@example("maximum", 2**53, "integer")
@example("minimum", -(2**53), "number")
def test_a_number_next_to_a_bound_is_on_its_right_side(keyword: str, limit: float, kind: str) -> None:
    accepts = json_schema({"type": kind, keyword: limit}).accepts
    if isinstance(limit, int):
        step = max(int(math.ulp(limit)), 1)  # a number that a reader with doubles tells from the bound
        values: list[float] = [limit - step, limit, limit + step]
    else:
        values = [
            math.nextafter(limit, -math.inf),
            limit,
            math.nextafter(limit, math.inf),
            math.floor(limit),
            math.ceil(limit),
        ]
    for value in values:
        written = json.dumps(value)
        if "e" in written or (kind == "integer" and not isinstance(value, int)):
            continue
        valid = is_valid({"type": kind, keyword: limit}, value)
        if abs(value) <= 2**53 or value == limit:
            assert accepts(written) == valid, written
        else:  # the shortest spelling of the nearest double may lie a little further away
            assert valid or not accepts(written), written


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(
        [
            ("string", "minLength", "maxLength"),
            ("array", "minItems", "maxItems"),
            ("array", "minContains", "maxContains"),
        ]
    ),
    COUNTS,
    COUNTS,
    st.booleans(),
    st.booleans(),
)
def test_lengths_and_counts_next_to_their_limits(
    words: tuple[str, str, str], low: int, high: int, has_low: bool, has_high: bool
) -> None:
    kind, least, most = words
    schema: dict[str, Any] = {"type": kind}
    schema |= {least: low} if has_low else {}
    schema |= {most: high} if has_high else {}
    if least == "minContains":
        schema["contains"] = {"const": 1}
    try:
        accepts = json_schema(schema).accepts
    except EmptyLanguage:
        assume(has_low and has_high and low > high)
        return
    for size in range(5):
        values: list[Any] = ["é" * size, "🙂" * size] if kind == "string" else [[1] * size, [1] * size + [2]]
        for value in values:
            assert accepts(json.dumps(value, ensure_ascii=False)) == is_valid(schema, value), value
