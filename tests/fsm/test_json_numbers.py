"""Numbers under every keyword against the `jsonschema` validator, which is given decimals: as written, and as doubles are printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from fsm import json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import EmptyLanguage
from fsm.schema.scalars.number_range import Bound, multiples
from fsm.terms.node import EMPTY
from tests.examples import examples
from tests.judged import at_least, judged
from tests.walks import RANDOMS, random_text

Draw = Callable[[st.SearchStrategy[Any]], Any]

STEPS = [
    "1", "2", "3", "7", "12", "0.5", "0.25", "0.01", "0.05", "0.1", "0.3", "2.5", "0.001", "1.5", "0.10", "1e-2", "0.0007",
]  # fmt: skip
VALUES = st.sampled_from(
    [
        "0", "1", "10", "-10", "9.9", "9.90", "0.1", "0.3", "-0.25", "2.5", "3.0", "99.99", "100", "1e2", "0.07", "7.5", "12",
    ]
)  # fmt: skip
FAR = st.sampled_from(["9007199254740993", "1e60", "-1e60", "123456789012345678", "1e-9", "0.30000000000000001", "2147483648"])


@st.composite
def places(draw: Draw, depth: int = 1) -> str:
    """A schema as JSON text, so that its numbers stay as they are written."""
    said: dict[str, str] = {}
    if draw(st.integers(0, 3)):
        said["type"] = draw(st.sampled_from(['"number"', '"number"', '"integer"', '["integer", "string"]']))
    for keyword in draw(st.lists(st.sampled_from(KEYWORDS), max_size=2, unique=True)):
        if keyword == "multipleOf":
            said[keyword] = draw(st.sampled_from(STEPS))
        elif keyword == "enum":
            said[keyword] = f"[{', '.join(draw(st.lists(VALUES, min_size=1, max_size=4)))}]"
        elif keyword == "format":
            said[keyword] = draw(st.sampled_from(['"int32"', '"int64"', '"float"', '"double"']))
        else:
            said[keyword] = draw(VALUES | VALUES | FAR)
    if depth:
        for keyword in draw(st.lists(st.sampled_from(["not", "anyOf", "allOf", "oneOf"]), max_size=2, unique=True)):
            below = draw(st.lists(places(depth - 1), min_size=1, max_size=2))
            said[keyword] = below[0] if keyword == "not" else f"[{', '.join(below)}]"
    return "{" + ", ".join(f'"{keyword}": {value}' for keyword, value in said.items()) + "}"


KEYWORDS = [
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "multipleOf", "const", "enum", "format",
]  # fmt: skip


def spelled(value: Decimal, decimals: int = 0) -> str:
    """In plain digits, with zeros up to so many decimals."""
    text = format(value, "f")
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0").ljust(decimals, "0")
    whole = "0" if whole == "-0" and not fraction.strip("0") else whole
    return f"{whole}.{fraction}" if fraction else whole


NUMBERS = (
    st.integers(-40_000, 40_000).map(lambda n: Decimal(n) / 1000)
    | st.integers(-4_000, 4_000).map(lambda n: Decimal(n) / 20)
    | st.integers(-300, 300).map(Decimal)
    | (VALUES | FAR).map(Decimal)
)
TEXTS = (
    st.tuples(NUMBERS, st.integers(0, 4)).map(lambda pair: spelled(*pair))
    | VALUES
    | st.sampled_from(["-0", "-0.0", "0.0", "0.00", "1.0e1", "10.00", "10.0000000", "1e1", "9007199254740993.0", "00", "1.", "-0.000"])
)


def _is_integer(checker: object, value: object) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "float": (-3.4028234663852886e38, 3.4028234663852886e38)}


def _format(validator: Any, name: str, value: Any, schema: Any) -> Any:
    if not isinstance(value, int | Decimal) or isinstance(value, bool) or name not in _RANGES:
        return
    low, high = map(Decimal, _RANGES[name])
    if not low <= value <= high or (name != "float" and not _is_integer(None, value)):
        yield jsonschema.ValidationError(f"no {name}")


VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"format": _format},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


def is_valid(schema: str, text: str, read: Callable[[str], Decimal] = Decimal, listed: Callable[[str], Decimal] = Decimal) -> bool:
    """Whether a number is valid where its text is read by `read`, and the numbers of `const` and `enum` by `listed`."""

    def heard(rules: dict[str, Any]) -> dict[str, Any]:
        if isinstance(rules.get("const"), Decimal):
            rules["const"] = listed(str(rules["const"]))
        if "enum" in rules:
            rules["enum"] = [listed(str(item)) if isinstance(item, Decimal) else item for item in rules["enum"]]
        return rules

    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 2_000, 10_000, -10_000
        rules = json.loads(schema, parse_float=Decimal, object_hook=heard)
        return bool(VALIDATOR(rules).is_valid(json.loads(text, parse_float=read)))


def as_double(text: str) -> Decimal:
    return Decimal(repr(float(text)))


def is_valid_as_double(schema: str, text: str) -> bool:
    """Whether a number is valid as a double; one with more digits than a double has equals a `const` that is read as a double, too."""
    return is_valid(schema, text, as_double) or is_valid(schema, text, as_double, as_double)


# As many as find a bound that is given twice, once exclusive: half of them did not.
relaxed = settings(max_examples=examples(140), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@at_least(20)
@relaxed
@given(places(), st.lists(TEXTS, min_size=5, max_size=12))
@example('{"not": {"const": 10}}', ["10", "10.0", "10.00", "1e1", "10.0000000000000001", "1.0e1"])
@example('{"oneOf": [{"type": "integer"}, {"multipleOf": 0.5}]}', ["1", "1.0", "1.5", "0.50"])
@example('{"not": {"enum": [0]}, "type": "number"}', ["0", "0.0", "-0.0", "0e5", "0.000", "0.1"])
@example('{"minimum": 1e300}', ["1" + "0" * 300, "2" + "0" * 300, "1.5", "1e301"])
@example('{"minimum": 1, "exclusiveMinimum": 1, "maximum": 2.5, "exclusiveMaximum": 2.5}', ["1", "1.0", "1.01", "2.49", "2.5", "2.50"])
def test_a_number_is_accepted_only_if_it_is_valid_as_written_and_as_a_double(schema: str, texts: list[str]) -> None:
    try:
        expression = json_schema(schema)
    except EmptyLanguage:
        return
    for text in texts:
        if expression.accepts(text):
            note(text)
            judged()
            assert is_valid(schema, text)
            assert is_valid_as_double(schema, text)


@at_least(80)
@relaxed
@given(places(), st.lists(NUMBERS, min_size=4, max_size=8))
@example('{"multipleOf": 0.01}', [Decimal("9.9"), Decimal(10), Decimal(100)])
@example('{"minimum": 9007199254740993}', [Decimal(9007199254740993), Decimal(9007199254740994)])
def test_a_valid_number_is_accepted_in_plain_digits_with_zeros_where_they_may_stand(schema: str, values: list[Decimal]) -> None:
    texts = [spelled(value) for value in values]
    if "integer" not in schema:
        texts += [spelled(value, 1) for value in values if abs(value) < 10**9]
    try:
        accepts = json_schema(schema).accepts
    except EmptyLanguage:
        accepts = lambda text: False  # noqa: E731
    for text in texts:
        is_short = len(text) < 20 and len(text.partition(".")[2]) <= 6
        # A whole number is read as a double, too, unless the type is `integer`.
        readings = [text] if "." in text or "integer" in schema else [text, str(int(float(text)))]
        if is_short and all(is_valid(schema, r) and is_valid_as_double(schema, r) for r in readings):
            note(text)
            judged()
            assert accepts(text)


@example('{"const": 0.30000000000000001}', Random(0), 0)
@relaxed
@given(places(), RANDOMS, st.integers(0, 60))
def test_every_number_that_is_written_is_valid_as_written_and_as_a_double(schema: str, random: Random, steps: int) -> None:
    try:
        node = json_schema(f'{{"type": ["number"], "allOf": [{schema}]}}').node
    except EmptyLanguage:
        return
    text = random_text(node, random, steps).decode()
    note(text)
    assert is_valid(schema, text)
    assert is_valid_as_double(schema, text)


@at_least(60)
@relaxed
@given(st.sampled_from(STEPS), st.integers(0, 3), st.lists(NUMBERS, min_size=3, max_size=6), st.integers(0, 3))
def test_multiples_are_those_of_the_step_with_at_most_so_many_decimals(step: str, decimals: int, values: list[Decimal], zeros: int) -> None:
    automaton = Automaton(multiples(Fraction(step), decimals, 15))
    for value in values:
        text = spelled(value, zeros)
        if len(text) < 12:
            judged()
            expected = (value % Decimal(step) == 0) and len(text.partition(".")[2]) <= decimals
            assert automaton.accepts(text.encode()) == expected


@relaxed
@given(st.integers(0, 2), st.integers(1, 60), st.lists(st.integers(1, 90), max_size=2), RANDOMS)
def test_states_of_multiples_are_alive_where_a_listed_number_begins_so(decimals: int, step: int, denied: list[int], random: Random) -> None:
    unit, room = 10**decimals, random.randint(1, 3)
    low, high = sorted(random.randint(-999 * unit, 999 * unit) for _ in range(2))
    excluded = random.sample(range(-2_000, 2_000), 40)

    def bound(units: int) -> Bound:
        return Bound(Decimal(units) / unit, random.random() < 0.5)

    ends = bound(low), bound(high)
    found = set[str]()
    for units in range(low + (not ends[0].inclusive), high + ends[1].inclusive):
        if units % step == 0 and all(units % other for other in denied) and units not in excluded:
            whole, sign = divmod(abs(units), unit), "-" if units < 0 else ""
            found |= {f"{sign}{whole[0]}"} if not whole[1] else set()
            digits = f"{whole[1]:0{decimals}}" if decimals else ""
            if decimals and len(str(whole[0])) <= room:
                shorter = range(max(len(digits.rstrip("0")), 1), decimals + 1)
                found |= {f"{sign}{whole[0]}.{digits[:length]}" for length in shorter}
    sizes = [Fraction(units, unit) for units in (step, *denied, *excluded)]
    node = multiples(sizes[0], decimals, decimals + room, *ends, sizes[1 : 1 + len(denied)], sizes[1 + len(denied) :])
    automaton, reached = Automaton(node), set[str]()
    stack = [("", automaton.initial_state)] if node is not EMPTY else []
    while stack:
        text, state = stack.pop()
        reached.add(text)
        assert automaton.is_accepting(state) == (text in found), text
        stack += [(text + chr(byte), target) for byte, target in automaton.moves(state).items()]
    assert reached == {text[:size] for text in found for size in range(len(text) + 1)}


BORDERS = [0, -1.5, 2, 1e-7, 5, 1e20, 1e-300, -1e-8, 1e300, 1.7e308, 5e-324, 9.99e15, 123456.789, -3e-5, 100, 0.1, 1e-323, -1.7e308]
KINDS_OF_BOUNDS = {
    "minimum": float.__ge__, "exclusiveMinimum": float.__gt__, "maximum": float.__le__, "exclusiveMaximum": float.__lt__,
}  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(st.sampled_from(list(KINDS_OF_BOUNDS)), st.sampled_from(BORDERS), min_size=1, max_size=2),
    st.lists(st.sampled_from(BORDERS) | st.floats(-1e307, 1e307) | st.floats(-1e-300, 1e-300), max_size=9),
    RANDOMS,
)
@example({"exclusiveMinimum": 0}, [5e-324, 1e-7, 1e22], Random(1))
@example({"minimum": -1e-8, "maximum": 1e-7}, [9.9e-8, 1.1e-7, -1e-8, -1.1e-8], Random(2))
def test_an_exponent_is_exact_within_bounds(bounds: dict[str, float], values: list[float], random: Random) -> None:
    def is_inside(value: float) -> bool:
        return all(KINDS_OF_BOUNDS[name](float(value), float(bound)) for name, bound in bounds.items())

    try:
        expression = json_schema({"type": "number", **bounds})
    except EmptyLanguage:
        return
    text = random_text(expression.node, random, 8)
    assert is_inside(float(text))
    for value in values:
        # Rounding a bound of many digits may leave out the bound itself.
        if value and abs(value) < 1e308 and value not in bounds.values():
            spelled = {json.dumps(value), repr(value).replace("e-0", "e-").replace("e+", "e")}
            assert {text for text in spelled if expression.accepts(text)} == (spelled if is_inside(value) else set())


STRINGS, LISTED, WHOLE = "strings: ", "listed numbers: ", "whole numbers: "


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"multipleOf": 0.1}, ["at most 1 decimal, and 14 digits before"]),
        ({"multipleOf": 0.001}, ["at most 3 decimals, and 12 digits before"]),
        ({"type": "integer"}, [WHOLE]),
        ({"type": "number"}, ["numbers: "]),
        ({"type": "number", "minimum": 0}, ["numbers with bounds: "]),
        ({"enum": ["a", 1.5]}, [STRINGS, LISTED]),
        ({"enum": ["a"]}, [STRINGS]),
        ({"enum": [1.5]}, [LISTED]),
        ({"type": "string", "enum": ["a", 1.5]}, [STRINGS]),
        ({"type": "integer", "enum": [1, "a"]}, [WHOLE]),
        ({"type": ["integer", "string"], "enum": [1, "a"]}, [STRINGS, WHOLE]),
        ({"type": "boolean", "enum": [True, 1]}, []),
    ],
    ids=repr,
)
def test_the_report_tells_how_numbers_and_strings_are_spelled(schema: dict[str, Any], told: list[str]) -> None:
    typed = schema if "type" in schema or "enum" in schema else {"type": "number", **schema}
    lines = [line for line in str(json_schema(typed).report).splitlines() if line.startswith("spelling ")]
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))
