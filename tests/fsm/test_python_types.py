"""Python types: what is written validates with pydantic, and what pydantic writes in JSON is accepted in our spelling."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import uuid
import zoneinfo
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from random import Random
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, TypeAdapter, condecimal, networks

from fsm import json_schema
from fsm.errors import EmptyLanguage
from tests.examples import examples
from tests.walks import RANDOMS, random_text

Draw = Callable[[st.SearchStrategy[Any]], Any]
relaxed = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

STEPS = st.sampled_from([Decimal(t) for t in ("0.01", "0.05", "0.3", "1", "2.5", "7", "0.001", "1E+1", "0.10")])
SMALL = st.decimals(-1000, 1000, places=3) | st.sampled_from([Decimal(t) for t in ("0", "9.90", "10.00", "100", "-0.5", "0.0000001")])
FAR = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=20).map(tuple),
    st.integers(-12, 4) | st.integers(-280, 280),
)
KEYS = ["gt", "ge", "lt", "le", "multiple_of", "max_digits", "decimal_places"]


@st.composite
def decimal_types(draw: Draw) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True)):
        if key in ("max_digits", "decimal_places"):
            said[key] = draw(st.integers(0 if key == "decimal_places" else 1, 12))
        else:
            said[key] = draw(STEPS if key == "multiple_of" else SMALL | FAR | st.sampled_from([0, 100, 0.1]))
    return said


def is_plain(value: Decimal) -> bool:
    """Whether `str` writes it as digits, and it is no signed zero: multiples are."""
    return "E" not in str(value) and str(value).strip("0.") != "-"


@relaxed
@given(decimal_types(), RANDOMS, st.integers(0, 40))
@example({"gt": 0, "multiple_of": Decimal("0.01")}, Random(1), 6)
@example({"max_digits": 3}, Random(2), 30)
@example({"max_digits": 1, "decimal_places": 1, "multiple_of": Decimal("0.01")}, Random(0), 0)
@example({}, Random(3), 60)
def test_a_decimal_is_written_as_pydantic_writes_it(said: dict[str, Any], random: Random, steps: int) -> None:
    adapter: TypeAdapter[Decimal] = TypeAdapter(condecimal(**said))
    try:
        node = json_schema(condecimal(**said)).node
    except EmptyLanguage:
        return
    text = random_text(node, random, steps)
    note(text)
    assert text == adapter.dump_json(adapter.validate_json(text))


@relaxed
@given(decimal_types(), st.lists(SMALL | FAR | st.decimals(-100, 100, allow_nan=False), min_size=4, max_size=8), st.integers(0, 6))
@example({"decimal_places": 2}, [Decimal("9.90"), Decimal("10.00"), Decimal(10)], 0)
@example({"gt": 0, "multiple_of": Decimal("0.05")}, [Decimal("9.90"), Decimal("0.05"), Decimal("0.04")], 2)
@example({}, [Decimal(t) for t in ("1E-10", "-1.50E-7", "1E+3", "-12E+20", "-0", "-0.00", "0E-9", "-0E+7", "5E-324")], 0)
@example({"ge": 0, "le": Decimal("2E-9")}, [Decimal(t) for t in ("2E-9", "1.99E-9", "2.1E-9", "-1E-10", "0E-10", "-0.0")], 0)
@example({"max_digits": 9, "decimal_places": 8}, [Decimal(t) for t in ("1E-7", "1.1E-7", "1.11E-7", "1E+1", "0E-8")], 0)
def test_what_pydantic_writes_of_a_decimal_is_accepted(said: dict[str, Any], values: list[Decimal], places: int) -> None:
    adapter: TypeAdapter[Decimal] = TypeAdapter(condecimal(**said))
    try:
        accepts = json_schema(condecimal(**said)).accepts
    except EmptyLanguage:
        accepts = lambda text: False  # noqa: E731
    with localcontext() as context:
        context.prec = 60
        rounded = [value.quantize(Decimal((0, (1,), -places))) for value in values if value.adjusted() < 30]
    for value in [*values, *rounded]:
        try:
            adapter.validate_python(value)
            is_valid = True
        except pydantic.ValidationError:
            is_valid = False
        text = adapter.dump_json(value).decode()
        note(text)
        if not is_valid:
            assert not accepts(text)
        elif not value or ((is_plain(value) or "multiple_of" not in said) and not _has_digits_too_many(value, said)):
            assert accepts(text)


ZEROS = [f"{sign}0{end}" for sign in ("", "-") for end in ("", ".0", ".00", ".000000", ".0000000", "E+1", "E-7", "E-30", "E+308")]


@pytest.mark.parametrize("step", [None, Decimal(3)])
@pytest.mark.parametrize("places", [None, 0, 1, 3])
@pytest.mark.parametrize("most", [None, 1, 3])
def test_the_zeros_of_a_decimal_are_those_of_pydantic(most: int | None, places: int | None, step: Decimal | None) -> None:
    kind = condecimal(max_digits=most, decimal_places=places, multiple_of=step)
    adapter, language = TypeAdapter[Decimal](kind), json_schema(kind)
    for text in ZEROS:
        try:
            is_same = adapter.dump_json(adapter.validate_json(f'"{text}"')).decode() == f'"{text}"'
        except pydantic.ValidationError:
            is_same = False
        assert is_same == language.accepts(f'"{text}"'), text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Decimal, "9.90"), (Annotated[Decimal, pydantic.Field(ge=0, max_digits=4)], "1"), (dict[Decimal, int], {"1.5": 2}),
        (Decimal | None, None), (list[Decimal], ["1E-7"]), (pydantic.AnyUrl, "http://a.example/"), (pydantic.HttpUrl, "https://a.example/x"),
        (ipaddress.IPv4Network, "10.0.0.0/8"), (uuid.UUID, "12345678-1234-1234-1234-123456789abc"), (datetime.timedelta, "PT1S"),
        (Fraction, "1/3"), (zoneinfo.ZoneInfo, "UTC"),
    ],
)  # fmt: skip
def test_a_type_with_a_text_of_its_own_is_one_in_definitions_that_are_shared(kind: Any, value: Any) -> None:
    inner = pydantic.create_model("Inner", x=(kind, ...))
    outer = pydantic.create_model("Outer", many=(list[inner], ...), one=(inner, ...), named=(dict[str, inner], ...))  # type: ignore[valid-type]
    made = outer.model_validate({"many": [{"x": value}, {"x": value}], "one": {"x": value}, "named": {"a": {"x": value}}})
    language = json_schema(outer)
    assert language.accepts(made.model_dump_json())
    for seed in range(3):
        outer.model_validate_json(random_text(language.node, Random(seed), 30))


def _has_digits_too_many(value: Decimal, said: dict[str, Any]) -> bool:
    """More digits than the type, or the step of a multiple, is written with: pydantic looks at the value without its zeros."""
    exponent, step = int(value.as_tuple().exponent), said.get("multiple_of")
    decimals, whole = max(-exponent, 0), max(len(value.as_tuple().digits) + exponent, 0 if value else 1)
    most, places = said.get("max_digits"), said.get("decimal_places")
    room = None if most is None else most - (places or 0)
    if step is not None and places is None:
        places = max(-int(Decimal(step).as_tuple().exponent), 1)
    limits = ((decimals, places), (whole, room), (decimals + whole, most))
    return any(limit is not None and count > limit for count, limit in limits)


class _Pair(NamedTuple):
    first: int
    second: str = "x"


class _Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class _Pay(BaseModel):
    amount: Decimal


class _Bills(BaseModel):
    pays: list[_Pay]
    first: _Pay | None = None
    rates: dict[Decimal, _Pay] = {}


UTC = datetime.timezone.utc  # noqa: UP017, as the tests of 3.11 have it
INDIA = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(10**39), 10**39)),
    (float, st.floats(allow_nan=False, allow_infinity=False, max_value=9e307, min_value=-9e307)),
    (Annotated[float, pydantic.Field(ge=-5, le=5)], st.integers(-5000, 5000).map(lambda n: n / 1000)),
    (pydantic.PositiveFloat, st.floats(5e-324, 9e307)),
    (Annotated[float, pydantic.Field(gt=-1e-5, lt=1e18)], st.floats(-1e-6, 9e17).map(lambda x: x + 0.0)),
    (pydantic.FiniteFloat, st.sampled_from([0.0, 1.5, 1e300])),
    (bool, st.booleans()),
    (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes(timezones=st.sampled_from([UTC, INDIA]))),
    (pydantic.NaiveDatetime, st.datetimes()),
    (datetime.time, st.times()),
    (datetime.timedelta, st.timedeltas(datetime.timedelta(days=-300_000), datetime.timedelta(days=300_000))),
    (uuid.UUID, st.uuids()),
    (pydantic.UUID4, st.uuids(version=4)),
    (bytes, st.text('aé日\n"', max_size=8).map(str.encode)),
    (pydantic.conbytes(min_length=1, max_length=3), st.sampled_from([b"a", b"abc", "é".encode(), "日".encode()])),
    (pydantic.Base64Bytes, st.binary(max_size=5)),
    (pydantic.Base64UrlBytes, st.binary(max_size=5)),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    (ipaddress.IPv6Address, st.ip_addresses(v=6)),
    (ipaddress.IPv4Interface, st.ip_addresses(v=4).map(lambda a: ipaddress.ip_interface(f"{a}/24"))),
    (pydantic.IPvAnyInterface, st.ip_addresses().map(ipaddress.ip_interface)),
    (pydantic.IPvAnyAddress, st.ip_addresses()),
    (dict[Decimal, int], st.dictionaries(st.sampled_from([Decimal("1.50"), Decimal(0)]), st.integers(0, 9), max_size=1)),
    (ipaddress.IPv4Network, st.sampled_from(["10.0.0.0/8", "1.2.3.4/32", "0.0.0.0/0"]).map(ipaddress.ip_network)),
    (ipaddress.IPv6Network, st.sampled_from(["2001:db8::/33", "::1/128", "::/0"]).map(ipaddress.ip_network)),
    (pydantic.IPvAnyNetwork, st.sampled_from(["10.0.0.0/8", "2001:db8::/32"]).map(ipaddress.ip_network)),
    (Fraction, st.fractions(max_denominator=99)),
    (zoneinfo.ZoneInfo, st.sampled_from(["Europe/Oslo", "UTC"]).map(zoneinfo.ZoneInfo)),
    (Counter[str], st.just(Counter("aab"))),
    (_Pair, st.integers(0, 9).map(_Pair)),
    (dict[float, int], st.just({1e-7: 1, 2.5: 2})),
    (dict[bool, int], st.just({True: 1})),
    (dict[_Rank, int], st.just({_Rank.LOW: 1})),
    (Decimal | float, st.sampled_from([2.5, Decimal("2.50")])),
]


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=lambda value: str(value)[:30])
def test_what_is_written_is_read_and_what_pydantic_writes_is_accepted(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    expression, adapter = json_schema(annotation), TypeAdapter(annotation)

    @settings(max_examples=examples(8), deadline=None)
    @given(values, RANDOMS)
    def check(value: Any, random: Random) -> None:
        assert expression.accepts(adapter.dump_json(value))
        text = random_text(expression.node, random, 12)
        if expression.accepts(text):
            assert expression.accepts(adapter.dump_json(adapter.validate_json(text)))

    check()


@pytest.mark.parametrize(("kind", "good", "bad"), [("base64", '"_-8="', '"+/8="'), ("hex", '"ff0e"', '"ff0"')])
def test_bytes_are_written_as_the_type_reads_them(kind: Any, good: str, bad: str) -> None:
    model = pydantic.create_model("Model", __config__=pydantic.ConfigDict(val_json_bytes=kind), b=(bytes, ...))
    expression = json_schema(model)
    assert [expression.accepts(f'{{"b": {text}}}') for text in (good, bad)] == [True, False]
    model.model_validate_json(f'{{"b": {good}}}')
    for seed in range(examples(8)):
        model.model_validate_json(random_text(expression.node, Random(seed), 4 * seed))


@pytest.mark.parametrize("annotation", [_Bills, list[_Pay], dict[str, _Pay | int], tuple[_Pay, _Pay], RootModel[list[_Pay]]], ids=str)
def test_a_definition_may_contain_decimals(annotation: Any) -> None:
    for seed in range(4):
        text = random_text(json_schema(annotation).node, Random(seed), 20 * seed)
        TypeAdapter(annotation).validate_json(text)


_Key = Annotated[str, pydantic.StringConstraints(pattern="^[a-z]+$")]
KEYS_OF_DICTS: list[tuple[Any, list[str], list[str]]] = [
    (dict[_Key, int], ["abc"], ["A", "", "a1"]),
    (Mapping[_Key, int], ["abc"], ["A"]),
    (list[dict[_Key, dict[_Key, int]]], [], ["A"]),
    (dict[Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2)], int], ["ab", " ab "], ["a ", "  "]),
    (dict[Annotated[str, pydantic.StringConstraints(to_lower=True, pattern="^[a-z]$")], int], ["a"], ["ab"]),
    (dict[Annotated[str, pydantic.StringConstraints(to_upper=True, max_length=1)], int], ["a", "B"], ["ab"]),
    (dict[Annotated[int, pydantic.Field(ge=10, multiple_of=5)], int], ["10", "15"], ["5", "11", "010"]),
    (dict[Annotated[float, pydantic.Field(gt=0)], int], ["1.5", "1e-7"], ["0", "-1"]),
    (dict[int | datetime.date, int], ["1", "2024-02-29"], ["a", "2024-02-30"]),
    (dict[pydantic.Base64Str, int], ["aGk="], ["a"]),
    (dict[_Rank, int], ["1", "2"], ["3", "LOW"]),
]


@pytest.mark.parametrize(("annotation", "good", "bad"), KEYS_OF_DICTS, ids=str)
def test_keys_are_those_that_pydantic_reads(annotation: Any, good: list[str], bad: list[str]) -> None:
    expression, adapter = json_schema(annotation), TypeAdapter(annotation)
    assert good == [key for key in good if expression.accepts(f'{{"{key}":1}}')]
    assert [key for key in bad if expression.accepts(f'{{"{key}":1}}')] == []
    for seed in range(examples(12)):
        text = random_text(expression.node, Random(seed), 4 * seed)
        if expression.accepts(text):
            adapter.validate_json(text)


URLS: list[tuple[Any, list[str], list[str]]] = [
    (
        pydantic.HttpUrl,
        [
            "http://localhost:8000/x", "https://a.b/c", "https://EXAMPLE.com/", "https://a.b/ü/日本?q=é#ß", "http://127.0.0.1:65535",
            "http://[::1]:80/?x", "https://user:p%20w@my-host.example.org/a//b/../c?x[]=1&y=%zz#top", "https://a.b?x#y", "http://1a.b",
        ],
        [
            "ftp://a.b/", "http://", "http://a.b:65536", "http://256.1.1.1/", "http://a.1/", "https://a.b/ x", "http://xn--a.b/",
            "http://a_/b c", "x",
        ],
    ),
    (pydantic.AnyUrl, ["foo+bar://a.b/c", "https://a.b", "file:///etc/x"], ["file://a.b:80/", "a.b", "1x://a.b"]),
    (pydantic.FtpUrl, ["ftp://a.b/x"], ["http://a.b/x"]),
    (pydantic.FileUrl, ["file:///x/y"], ["file:/x", "http://a.b"]),
    (pydantic.WebsocketUrl, ["wss://a.b/x", "ws://localhost"], ["http://a.b"]),
    (pydantic.AnyHttpUrl, ["http://a.b"], ["ws://a.b"]),
    (pydantic.PostgresDsn, ["postgresql+asyncpg://u:p@localhost:5432/db"], ["mysql://a/b", "postgresql://,u@a.b/"]),
    (pydantic.RedisDsn, ["redis://localhost:6379/0"], ["http://a.b"]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "good", "bad"), URLS, ids=lambda value: getattr(value, "__name__", ""))
def test_urls(annotation: Any, good: list[str], bad: list[str]) -> None:
    expression, adapter = json_schema(annotation), TypeAdapter(annotation)
    assert good == [text for text in good if expression.accepts(f'"{text}"')]
    assert [text for text in bad if expression.accepts(f'"{text}"')] == []
    for text in good:
        adapter.validate_python(text)
    for seed in range(examples(12)):
        adapter.validate_json(random_text(expression.node, Random(seed), 15 * seed))


DSNS = [name for name in networks.__all__ if name.endswith(("Dsn", "Url")) and name != "UrlConstraints"]


@pytest.mark.parametrize("name", DSNS)
def test_every_url_type_of_pydantic_is_written_as_it_reads_it(name: str) -> None:
    annotation = getattr(networks, name)
    expression, adapter = json_schema(annotation), TypeAdapter(annotation)
    for seed in range(4):
        text = random_text(expression.node, Random(seed), 20 * seed)
        value = adapter.validate_json(text)
        assert value == adapter.validate_json(adapter.dump_json(value))


WORDS = "abcXYZ019-._~!$&'()*+,;=:@/?%[]#é日😀"


@relaxed
@given(
    st.sampled_from(["http", "https"]),
    st.sampled_from(["", "u@", "u:p%@"]),
    st.lists(st.text("abZ09-", min_size=1, max_size=5), min_size=1, max_size=4).map(".".join),
    st.sampled_from(["", ":0", ":80", ":65535"]),
    st.text(WORDS, max_size=12),
)
def test_a_url_that_is_accepted_is_read_and_most_that_are_read_are_accepted(
    scheme: str, user: str, host: str, port: str, tail: str
) -> None:
    expression, adapter = json_schema(pydantic.HttpUrl), TypeAdapter(pydantic.HttpUrl)
    text = f"{scheme}://{user}{host}{port}/{tail}"
    try:
        adapter.validate_python(text)
        is_valid = True
    except pydantic.ValidationError:
        is_valid = False
    accepted = expression.accepts(f'"{text}"')
    assert is_valid or not accepted
    labels = host.split(".")
    is_usual = not any(label.startswith("-") or label.endswith("-") or label[2:4] == "--" for label in labels)
    if is_valid and is_usual and labels[-1][0].isalpha() and tail.count("#") <= 1:
        assert accepted
