"""JSON schemas: what each keyword accepts, which schemas are refused and how, and that nothing grows out of bounds."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import importlib.util
import ipaddress
import json
import pathlib
import re
import uuid
from itertools import product
from random import Random
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from typing_extensions import TypeAliasType, TypedDict

from fsm import BudgetExceeded, EmptyLanguage, SchemaError, grammar, json_schema, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.limits import Limits
from tests.examples import examples, first
from tests.walks import random_text


def accepts(schema: Any, *texts: str, **options: Any) -> list[bool]:
    expression = json_schema(schema, **options)
    return [expression.accepts(text) for text in texts]


def assert_texts(schema: Any, good: list[str], bad: list[str], **options: Any) -> None:
    expression = json_schema(schema, **options)
    assert good == [text for text in good if expression.accepts(text)]
    assert [text for text in bad if expression.accepts(text)] == []


CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "null"}, ["null"], ["nil", "", "false"]),
    ({"type": "integer"}, ["0", "-1", "9" * 40], ["-0", "01", "1.0", "1e3", "+1", "", "9" * 41]),
    (
        {"type": "number"},
        ["0", "-1.5", "0.10", "1e5", "1.5e+300", "2e-324", "-0.0", "1e307", "12e99", "1e-07"],
        ["-0", "1e308", "12e100", "1.", ".5", "1e", "00", "1E5", "Infinity"],
    ),
    ({"type": "string"}, ['""', '"é😀"', '"\\n\\"\\\\"', '"\\u0001"', '"/"', '"\x7f"'], ['"\n"', '"\\/"', '"\\u0041"', "a", '"']),
    ({"type": "string", "pattern": "^a\\n$"}, ['"a\\n"'], ['"a\n"', '"a"']),
    ({"enum": ["a", 1, None, True, 1.5]}, ['"a"', "1", "1.0", "null", "true", "1.5"], ["1.00", "1.50", "false", '"b"']),
    ({"const": {"a": [1, {}], "b": "x"}}, ['{"a": [1,{}],"b":"x"}'], ['{"a":[1]}', '{"a":[1,{}],"b":"x","c":1}']),
    ({"const": 1e300}, ["1e+300"], ["1"]),
    ({"const": 2.0}, ["2", "2.0"], ["2.00"]),
    ({"type": "array"}, ["[]", '[1, "a",[null]]'], ["[1,]", "[,]", "[ 1]", "[1  ,2]", "[1,  2]"]),
    ({"type": "object"}, ["{}", '{"a": 1}', '{"":{"b":[]}, "c":2}'], ["{1:2}", "{ }", '{"a" :1}', '{"a":  1}']),
    (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"], "additionalProperties": False},
        ['{"b":2}', '{"a":1,"b":2}', '{"a": 1, "b": 2}'],
        ["{}", '{"a":1}', '{"b":2,"a":1}', '{"b":2,"c":3}', '{"a":1,"a":1,"b":2}'],
    ),
    ({"properties": {'q"\n': {"const": 1}}, "required": ['q"\n']}, ['{"q\\"\\n":1}'], ["{}"]),
    ({"$defs": {"a/b~c d": {"type": "null"}}, "$ref": "#/$defs/a~1b~0c%20d"}, ["null"], ["1"]),
    ({"$id": "https://example.org/x", "$defs": {"a": {"type": "null"}}, "$ref": "https://example.org/x#/$defs/a"}, ["null"], ["1"]),
    ({"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False}, ["{}", '{"n":{"n":{}}}'], ['{"n":1}']),
    (True, ["1", '{"a":[]}'], ["", "tru"]),
    ({"title": "t", "x-note": 1, "default": 5, "examples": [1], "$comment": "c"}, ["1", "null"], [""]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), CASES, ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict | bool) else ""
)
def test_keywords_mean_what_the_standard_says(schema: Any, good: list[str], bad: list[str]) -> None:
    assert_texts(schema, good, bad)
    if not isinstance(schema, bool):
        assert_texts(json.dumps(schema), good, bad)


OPENAPI: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "integer", "format": "int32"}, ["2147483647", "-2147483648"], ["2147483648", "-2147483649", "1099511627776", "1.0"]),
    ({"type": "number", "format": "int32"}, ["5", "5.0"], ["5.5", "1099511627776"]),
    ({"type": "integer", "format": "int64"}, [str(2**63 - 1), str(-(2**63))], [str(2**63), str(-(2**63) - 1)]),
    ({"type": "integer", "format": "int32", "minimum": 2**31 - 2}, ["2147483646", "2147483647"], ["2147483648", "5"]),
    ({"type": "number", "format": "float"}, ["1e37", "-1.5e-7", "0.1"], ["1e39", "4" + "0" * 38, "12e38"]),
    ({"type": "number", "format": "float", "minimum": 0}, ["3" + "0" * 38, "0.5"], ["4" + "0" * 38, "-1"]),
    ({"type": "number", "format": "double"}, ["1e307", "0.1"], ["1e309", "1e400"]),
    ({"format": "int32"}, ["5", '"any text"', "null", "[1.5]"], ["2147483648", "1.5"]),
    ({"type": "string", "format": "int64"}, ['"any text"', '""'], ["1"]),
    ({"type": "string", "format": "byte"}, ['""', '"QQ=="', '"QUI="', '"QUJD+/8="'], ['"QQ"', '"Q==="', '"QR=="', '"_-8="', '"QQ==QQ=="']),
    ({"format": "byte"}, ["5", '"QQ=="'], ['"QQ"']),
    ({"type": "string", "format": "binary"}, ['"any text"'], ["1"]),
    ({"type": "string", "format": "password", "minLength": 2}, ['"any"'], ['"a"']),
    ({"not": {"format": "int32"}}, ["2147483648", "1.5", "1.50"], ["0", "-5.0", "2147483647", '"a"', "null"]),
    ({"not": {"format": "byte"}}, ['"QQ"'], ['"QQ=="', "1"]),
    ({"not": {"format": "float"}, "type": "number"}, ["4" + "0" * 38], ["1", "0.5", "1e5"]),
    ({"enum": [1, 2**40, 1.5], "format": "int32"}, ["1"], [str(2**40), "1.5"]),
    ({"const": 2**40, "type": "integer", "format": "int64"}, [str(2**40)], []),
    ({"anyOf": [{"type": "integer", "format": "int32"}, {"type": "string", "format": "byte"}]}, ["7", '"QQ=="'], [str(2**31), '"QQ"']),
    ({"oneOf": [{"type": "integer", "format": "int32"}, {"type": "integer", "minimum": 5}]}, ["4", str(2**31)], ["5", str(-(2**31) - 1)]),
    (
        {"items": {"if": {"type": "number", "format": "int32"}, "then": True, "else": {"const": "x"}}, "uniqueItems": True},
        ["[5]", '["x"]'],
        ["[2147483648]", "[1.5]"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), OPENAPI, ids=str)
def test_formats_of_openapi_are_enforced_for_the_type_that_they_are_for(schema: Any, good: list[str], bad: list[str]) -> None:
    assert_texts(schema, good, bad)
    assert json_schema({"type": "integer", "format": "int32"}, formats="annotate").accepts(str(2**40))


def test_a_check_knows_the_formats_of_numbers() -> None:
    denied = {"allOf": [{"format": "int32"}, {"type": ["integer", "array"]}, {"uniqueItems": True}]}
    expression = json_schema({"not": denied})
    assert expression.has_checks
    assert [expression.accepts(text) for text in ("5", str(2**40), "[1,1]", "[1]")] == [False, True, True, False]


def test_a_bound_in_schema_text_is_compared_digit_by_digit() -> None:
    exact = '{"type":"number","maximum":0.1234567890123456789,"minimum":0}'
    assert accepts(exact, "0.1234567890123456789", "0.1234567890123456790") == [True, False]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "number", "multipleOf": 3e-20}, "/multipleOf"),
        ({"items": {"pattern": "^(a)\\1$"}}, "/items/pattern"),
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems"),
        ({"minProperties": 2}, "/minProperties"),
    ],
)
def test_what_is_only_checked_is_refused_where_all_must_be_exact(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaError, match="not exact here") as caught:
        json_schema(schema, strict=True)
    assert f"#{pointer}" == caught.value.pointer
    expression = json_schema(schema)
    assert expression.has_checks
    if pointer != "/minProperties":  # exact with the check that no key comes twice
        (line,) = (line for line in expression.report if line.pointer == f"#{pointer}")
        assert line.level == "checked"
        assert f"({line.note})" in str(caught.value)
        assert line.note


EMPTY: list[Any] = [
    False,
    {"enum": []},
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "pattern": "^a{3}$", "maxLength": 2},
    {"type": "string", "enum": [1, 2]},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "object", "properties": {"b": {"type": "null"}, "a": {"$ref": "#"}}, "required": ["a"]},
    {"allOf": [{"type": "string"}, {"type": "null"}]},
    {"anyOf": [False, {"type": "null", "enum": [1]}]},
    {"items": [{"type": "null"}], "minItems": 2, "additionalItems": False, "type": "array"},
    *({"not": anything} for anything in ({"minLength": 0}, {"minItems": 0}, {"minProperties": 0}, {"contains": {}, "minContains": 0}, {})),
]


@pytest.mark.parametrize("schema", EMPTY, ids=lambda value: json.dumps(value)[:60])
def test_a_schema_that_nothing_satisfies_is_an_error_at_once(schema: Any) -> None:
    with pytest.raises(EmptyLanguage, match="no JSON value"):
        json_schema(schema)


def nested(keyword: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {keyword: {"a": schema}} if keyword == "properties" else {keyword: [schema] if keyword.endswith("Of") else schema}
    return schema


def test_deep_schemas_give_a_named_limit_and_never_exhaust_the_stack() -> None:
    for keyword in ("properties", "items"):
        with pytest.raises(BudgetExceeded) as caught:
            json_schema(nested(keyword, 5_000))
        assert caught.value.limit == "max_depth"
        assert not json_schema(nested(keyword, 1_200), limits=Limits(max_depth=2_000)).is_empty()
    assert accepts(nested("anyOf", 5_000), "1", "null") == [True, False]
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    with pytest.raises(BudgetExceeded):
        json_schema({"enum": [value]})
    with pytest.raises(BudgetExceeded):
        json_schema({"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5_000)}})


def test_every_limit_has_a_name_and_can_be_raised() -> None:
    cases: list[tuple[str, Any, int]] = [
        ("max_schema_characters", '{"type":"null"}', 20),
        ("max_properties", {"properties": {"a": {}, "b": {}, "c": {}}}, 3),
        ("max_enum_values", {"enum": [1, 2, 3]}, 3),
        ("max_pattern_length", {"pattern": "aaaa"}, 10),
        ("max_number_digits", {"minimum": 123456}, 6),
        ("max_alternatives", {"type": "integer", "anyOf": [{"minimum": n} for n in range(5)]}, 10),
        ("max_subschemas", {"properties": {"a": {"minimum": 1}, "b": {"minimum": 2}}}, 10),
    ]
    for name, schema, enough in cases:
        with pytest.raises(BudgetExceeded) as caught:
            json_schema(schema, limits=Limits(**{name: 2}))
        assert name == caught.value.limit
        assert name in str(caught.value)
        json_schema(schema, limits=Limits(**{name: enough}))


@pytest.mark.parametrize(("count", "level"), [(8, "exact"), (9, "checked")])
def test_the_opposite_of_one_of_many_is_exact_up_to_eight(count: int, level: str) -> None:
    expression = json_schema({"not": {"oneOf": [{"minimum": n} for n in range(count)]}, "type": "integer"})
    assert [level] == [line.level for line in expression.report if line.pointer == "#/not/oneOf"]
    assert [expression.accepts(text) for text in ("0", "1")] == [False, True]


def test_alternatives_that_multiply_are_checked_and_many_give_a_named_limit() -> None:
    choice = {"anyOf": [{"minimum": n} for n in range(10)]}
    schema = {"allOf": [dict(choice) for _ in range(12)], "type": "integer"}
    expression = json_schema(schema)
    assert {"checked"} == {line.level for line in expression.report if line.pointer.startswith("#/allOf/5/any")}
    assert expression.accepts("0")
    assert not expression.accepts("-1")
    with pytest.raises(SchemaError, match="too many combinations"):
        json_schema(schema, strict=True)
    with pytest.raises(BudgetExceeded) as caught:
        json_schema({"anyOf": [{"minimum": n} for n in range(10_001)], "type": "integer"})
    assert caught.value.limit == "max_alternatives"


def test_huge_numbers_in_a_schema_cost_nothing() -> None:
    for schema in ({"minimum": 10**5000}, {"enum": [10**5000]}, {"multipleOf": 10**5000}):
        with pytest.raises(BudgetExceeded) as caught:
            json_schema(schema)
        assert caught.value.limit == "max_number_digits"
    with pytest.raises(BudgetExceeded):
        json_schema('{"maximum": 1e-999999999}')
    with pytest.raises(SchemaError):
        json_schema('{"const": 1e999999999}')
    for schema in ({"minItems": 10**9, "type": "array"}, {"maxLength": 10**12, "type": "string"}, {"maxItems": 10**9}):
        assert len(Automaton(json_schema(schema).node)) < 10


def test_large_schemas_stay_linear() -> None:
    optional = json_schema(
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(2_000)}, "additionalProperties": False}
    )
    assert optional.accepts(json.dumps({f"p{n}": n for n in range(0, 2_000, 97)}))
    assert not optional.accepts('{"p3":1,"p2":1}')
    automaton = Automaton(optional.node)
    assert automaton.next_state(1, b'{"p1999": 5}') != 0
    assert len(automaton) < 100
    words = json_schema({"enum": [f"word {n}" for n in range(50_000)]})
    assert words.accepts('"word 49999"')
    assert not words.accepts('"word 50000"')


def test_the_report_has_a_line_for_every_keyword() -> None:
    report = json_schema({"title": "t", "type": "object", "properties": {"a/": {"enum": [[1]]}}, "required": ["a/"]}).report
    assert [(line.pointer, line.keyword) for line in report] == [
        ("#/type", "type"),
        ("#/properties", "properties"),
        ("#/required", "required"),
        ("#/properties/a~1/enum", "enum"),
    ]
    assert {"exact"} == {line.level for line in report}


def test_a_report_prints_as_a_table() -> None:
    expression = json_schema({"type": "array", "uniqueItems": True}) + "\n"
    table = str(expression.report).splitlines()
    assert table[:2] == ["exact      #/type", "checked    #/uniqueItems  an automaton cannot remember so many items"]
    assert table[2:] == [f"spelling   {sentence}" for sentence in expression.report.spelling]
    assert str(regex("a").report) == ""
    assert "no two items are equal (`uniqueItems` at '#/uniqueItems')" in expression.checks


@pytest.mark.parametrize("first", [[], [{"const": "c"}]])
def test_more_different_items_than_there_are_values_are_no_language(first: list[Any]) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b", 1, 1.0]}, "uniqueItems": True}
    if first:
        schema["prefixItems"] = first
    assert not json_schema({**schema, "minItems": 3 + len(first)}).is_empty()
    with pytest.raises(EmptyLanguage):
        json_schema({**schema, "minItems": 4 + len(first)})


@pytest.mark.parametrize("seed", first(12, range(60)))
def test_arrays_of_few_different_values_are_exact(seed: int) -> None:
    """All arrays of up to four values of some kinds, equal ones in several spellings, against the validator of the standard."""
    random = Random(seed)
    values = random.sample([1, 1.0, 2, True, False, None, "1", "a", [], [1], [1.0], {"a": 1}, {"a": True}], random.randint(1, 4))
    listed: dict[str, Any] = {"enum": values}
    few = {"type": random.choice(["boolean", "null", ["null", "integer"]]), "minimum": 1, "maximum": 2}
    branches = {"anyOf": [{"const": value} for value in values]}
    items = random.choice([listed, branches, few, {"$ref": "#/$defs/one"}, {"allOf": [few, {"not": {"enum": values}}]}])
    schema = {"type": "array", "items": items, "uniqueItems": True, "$defs": {"one": listed}}
    schema |= random.choice([{}, {"minItems": 1}, {"maxItems": 2}, {"minItems": 2, "maxItems": 3}])
    allowed = jsonschema.Draft202012Validator(schema).is_valid
    pool = [1, 1.0, 2, True, None, "a", [1], {"a": 1}, *values][: 7 + len(values)]
    arrays = [list(chosen) for length in range(4) for chosen in product(pool, repeat=length)]
    try:
        expression = json_schema(schema, strict=True)
    except EmptyLanguage:
        assert not any(map(allowed, arrays))
        return
    assert not expression.has_checks
    for array in random.sample(arrays, min(len(arrays), 150)):
        texts = {json.dumps(array), json.dumps(array, separators=(",", ":"))}
        canonical = {json.dumps(array).replace(".0", "")}
        assert all(allowed(array) for text in texts if expression.accepts(text))
        if allowed(array):
            assert any(map(expression.accepts, texts | canonical)), array


Texts = TypeAliasType("Texts", "list[Texts] | str")  # type: ignore[misc]
Bytes = TypeAliasType("Bytes", "dict[str, Bytes] | bytes")  # type: ignore[misc]


class Short(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_max_length=2, val_json_bytes="hex")
    texts: Texts | None = None
    data: Bytes | None = None


class Around(Short):
    model_config = pydantic.ConfigDict(str_max_length=1)
    inner: Short | None = None


class Rooted(pydantic.RootModel[Texts]):
    model_config = pydantic.ConfigDict(str_max_length=2)


@pytest.mark.parametrize("annotation", [Short, list[Short], Around, Rooted, Texts], ids=str)
def test_named_recursive_types_have_the_configuration_of_the_class_around_them(annotation: Any) -> None:
    expression, adapter, passed = json_schema(annotation), pydantic.TypeAdapter(annotation), 0
    for seed in range(examples(60)):
        text = random_text(expression.node, Random(seed), 30)
        if expression.accepts(text):
            adapter.validate_json(text)
            passed += 1
    assert passed > examples(10)
    texts = ['{"texts":["abc"]}', '{"texts":"ab"}', '{"data":{"a":"zz"}}', '{"data":{"a":"6f"}}', '{"data":"6"}', '["ab"]', '[["abc"]]']
    for text in (*texts, *(f"[{text}]" for text in texts)):
        try:
            adapter.validate_json(text)
        except pydantic.ValidationError:
            assert not expression.accepts(text), text


def test_how_many_different_items_are_remembered_is_a_limit() -> None:
    schema = {"type": "array", "items": {"enum": [f"tag{number:02}" for number in range(60)]}, "uniqueItems": True, "minItems": 3}
    assert not json_schema(schema).has_checks
    assert json_schema(schema, limits=Limits(max_different=59)).has_checks
    both = json_schema(schema) & regex(".{1,400}")  # a shortest text of it is found among 60 ** 3
    assert not both.is_empty()
    assert both.accepts('["tag00","tag07","tag59"]')
    assert not both.accepts('["tag00","tag07","tag07"]')


def test_an_array_of_different_items_in_a_grammar_is_checked_so_that_its_end_is_found() -> None:
    schema = {"type": "array", "items": {"enum": [f"tag{number}" for number in range(16)]}, "uniqueItems": True}
    expression = grammar(f"start: /[a-z]+/ items /[0-9]+/\nitems: %json {json.dumps(schema)}\n%ignore / /")
    assert expression.has_checks
    assert expression.accepts('x ["tag1","tag2"] 12')
    assert not expression.accepts('x ["tag1","tag1"] 12')


def test_a_path_in_the_place_of_a_schema_is_told_from_one() -> None:
    with pytest.raises(SchemaError, match="A path is not read"):
        json_schema("order.json")


def test_closed_schemas_are_regular_so_that_algebra_works_on_them() -> None:
    closed = json_schema(
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": False}
    )
    other = json_schema({"type": "object", "properties": {"b": {"const": 1}}, "additionalProperties": False})
    both = closed & ~other
    assert [both.accepts(t) for t in ('{"a":1}', '{"b":1}', "{}")] == [True, False, False]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, pydantic.Field(ge=0, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Tree(pydantic.BaseModel):
    value: float
    children: list[Tree] = []


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = pydantic.Field(alias="α")


class Order(pydantic.BaseModel):
    id: uuid.UUID
    on: datetime.date
    at: datetime.datetime
    colour: Colour
    price: Annotated[decimal.Decimal, pydantic.Field(gt=0, max_digits=7, decimal_places=2)]
    animal: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    code: Annotated[str, pydantic.Field(pattern=r"^\S{2}\D$")]
    tags: Annotated[list[str], pydantic.Field(max_length=2)] = []
    more: dict[str, int] = {}


@dataclasses.dataclass
class Point:
    x: int
    y: list[str] = dataclasses.field(default_factory=list)


class Movie(TypedDict, total=False):
    title: str
    year: int


HAS_EMAIL = importlib.util.find_spec("email_validator") is not None
TYPES: list[Any] = [
    *([pydantic.EmailStr] if HAS_EMAIL else []),
    int, float, str, bool, bytes, type(None), datetime.date, datetime.datetime, datetime.time, uuid.UUID, pydantic.UUID4,
    decimal.Decimal, pathlib.Path, ipaddress.IPv4Address, ipaddress.IPv6Address, pydantic.IPvAnyAddress, pydantic.HttpUrl,
    pydantic.AnyUrl, pydantic.SecretStr, pydantic.AwareDatetime, pydantic.NaiveDatetime, pydantic.PositiveInt, list[int],
    dict[str, int], tuple[int, str], tuple[int, ...], int | None, int | str, Literal["a", 1, None, True], Any, Colour, Cat, Dog,
    Tree, Open, Order, Point, Movie, pydantic.RootModel[list[int]], Annotated[float, pydantic.Field(gt=0, lt=1)],
    pydantic.constr(min_length=2, max_length=3), pydantic.constr(pattern=r"[^\w]x"), pydantic.conint(multiple_of=7),
]  # fmt: skip


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_whatever_finishes_passes_pydantic(annotation: Any) -> None:
    expression, adapter, random = json_schema(annotation), pydantic.TypeAdapter(annotation), Random(7)
    for steps in (0, 3, 10, 25, 60):
        for _ in range(3):
            adapter.validate_json(random_text(expression.node, random, steps))


class Checked(pydantic.BaseModel):
    a: int

    @pydantic.field_validator("a")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Stripped(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_strip_whitespace=True)
    a: Annotated[str, pydantic.Field(min_length=1)]


class Chain(pydantic.BaseModel):
    """Refers to itself, so that its validator is asked about whole texts."""

    parts: list[Checked]
    next: Chain | None = None

    @pydantic.model_validator(mode="after")
    def is_short(self) -> Chain:
        if len(self.parts) > 1:
            raise ValueError("long")
        return self


@dataclasses.dataclass
class Positive:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


class Named(pydantic.BaseModel):
    """Its fields have the names of keywords."""

    default: datetime.time
    enum: datetime.time


def call(a: int, b: list[str] = [], *, c: Literal["x", "y"]) -> None:  # noqa: B006
    """Stands for its arguments."""


@pytest.mark.parametrize(
    ("annotation", "has_checks"),
    [
        (Checked, True), (Chain, True), (Positive, True), (Stripped, True), (pydantic.PastDate, True), (set[int], True),
        (pydantic.constr(strip_whitespace=True, min_length=1), True), (frozenset[Literal[1, 2, 3]], False),
        (Annotated[datetime.date, pydantic.Field(gt=datetime.date(2020, 1, 1))], True), (dict[int, bool], True),
        (dict[Annotated[int, pydantic.Field(ge=0)], int], True), (dict[Colour, int], False), (dict[uuid.UUID, int], True),
        (datetime.timedelta, False),
    ],
    ids=str,
)  # fmt: skip
def test_whatever_passes_its_checks_passes_pydantic(annotation: Any, has_checks: bool) -> None:
    expression, adapter, passed = json_schema(annotation), pydantic.TypeAdapter(annotation), 0
    assert expression.has_checks == has_checks
    for steps in range(40):
        text = random_text(expression.node, Random(steps), steps)
        if expression.accepts(text):
            adapter.validate_json(text)
            passed += 1
    assert passed > 4


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (call, ['{"a":1,"c":"x"}', '{"a":1,"b":["s"],"c":"y"}'], ['{"a":1}', '{"a":1,"c":"z"}']),
        (Dog, ['{"kind":"dog"}'], ['{"kind":"dog","x":1}']),
        (Open, ['{"α":1,"x":1}'], ['{"a":1}']),
        (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], ['{"kind":"cat","lives":3}'], ['{"lives":3}']),
        (Named, ['{"default":"10:00:00","enum":"10:00:00"}'], ['{"default":"10:00:00Z","enum":"10:00:00"}']),
    ],
)
def test_types_are_closed_unless_they_allow_more_and_a_tag_is_required(annotation: Any, good: list[str], bad: list[str]) -> None:
    assert_texts(annotation, good, bad)


CROSSED = {"type": "integer", "minimum": 5, "maximum": 3}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "object", "properties": {"a": {}, "n": CROSSED}, "required": ["a", "n"]}, "#/properties/n"),
        ({"type": "array", "items": CROSSED, "minItems": 1}, "#/items"),
        ({"allOf": [{"type": "integer"}, CROSSED]}, "#/allOf/1"),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{}, {"type": "array", "minItems": 1, "items": CROSSED}]}}},
            "#/$defs/n/allOf/1/items",
        ),
    ],
)
def test_the_innermost_part_that_is_empty_is_named(schema: Any, pointer: str) -> None:
    with pytest.raises(EmptyLanguage, match=re.escape(f"what is at {pointer!r} excludes everything, ")):
        json_schema(schema)


@pytest.mark.parametrize("schema", [CROSSED, False, {"allOf": [{"minimum": 5}, {"type": "integer", "maximum": 3}]}, {"not": {}}])
def test_no_part_is_named_where_only_the_whole_is_empty(schema: Any) -> None:
    with pytest.raises(EmptyLanguage, match="no JSON value satisfies the schema [^:]*(: [^w].*)?Look for bounds") as refused:
        json_schema(schema)
    assert "what is at" not in str(refused.value)
