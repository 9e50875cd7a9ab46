"""Values so far of JSON that is being written: what is whole in one stays in all later ones, and the last is the final value."""

from __future__ import annotations

import dataclasses
import itertools
import json
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, field_validator, model_validator
from typing_extensions import TypedDict

from outlines_cont.events.partial_type import MISSING, PartialType
from outlines_cont.events.partial_value import PartialValue


class Color(Enum):
    """A value that comes whole or not at all."""

    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """A nested model."""

    city: str
    zip: Annotated[str, Field(min_length=3)] = "000"


class Cat(BaseModel):
    """One of a union."""

    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    """Another one."""

    kind: Literal["dog"]
    name: str


class Order(BaseModel):
    """Fields of every kind."""

    model_config = ConfigDict(frozen=True)

    name: str
    number: Annotated[int, Field(alias="no", ge=0)]
    price: Decimal
    due: date | None = None
    color: Color
    place: Place | None
    places: list[Place]
    counts: dict[str, int]
    pair: tuple[int, str]
    pet: Cat | Dog
    inner: Order | None = None
    other: Any = None

    @field_validator("number")
    @classmethod
    def check_number(cls, number: int) -> int:
        """Refuse seven."""
        if number == 7:
            raise ValueError("seven")
        return number

    @model_validator(mode="after")
    def check_all(self) -> Order:
        """Needs all fields, so it can run at the end only."""
        assert self.counts is not None
        assert self.pair is not None
        return self


class Extra(BaseModel):
    """A model with an alias and further fields."""

    model_config = ConfigDict(extra="allow", alias_generator=str.upper, strict=True)

    name: str


class Pair(TypedDict):
    """A dict with fields."""

    name: str
    number: int


@dataclasses.dataclass(frozen=True)
class PairClass:
    """A dataclass, which cannot be shown in parts."""

    name: str
    number: int


class PairTuple(NamedTuple):
    """A tuple with names, which cannot either."""

    name: str
    number: int


TEXTS = st.text(max_size=6)
PLACES = st.fixed_dictionaries({"city": TEXTS}, optional={"zip": st.text(min_size=3, max_size=5)})
PETS = st.one_of(
    st.builds(lambda lives: {"kind": "cat", "lives": lives}, st.integers()), st.builds(lambda name: {"kind": "dog", "name": name}, TEXTS)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=8,
)


def orders(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Records as JSON; `inner` is one within another."""
    return st.fixed_dictionaries(
        {
            "name": TEXTS,
            "no": st.integers(8, 10**25),
            "price": st.sampled_from([1, "1.10", "0.1234567890123456789", 2.5]),
            "color": st.sampled_from(["red", "blue"]),
            "place": st.none() | PLACES,
            "places": st.lists(PLACES, max_size=3),
            "counts": st.dictionaries(TEXTS, st.integers(), max_size=3),
            "pair": st.tuples(st.integers(), TEXTS),
            "pet": PETS,
        },
        optional={"due": st.none() | st.dates().map(str), "inner": inner, "other": JSON},
    )


ORDERS = orders(st.none() | orders(st.none()))
CASES = st.one_of(
    st.tuples(st.just(Order), ORDERS),
    st.tuples(st.just(list[Order]), st.lists(ORDERS, max_size=2)),
    st.tuples(st.just(RootModel[list[Place]]), st.lists(PLACES, max_size=3)),
    st.tuples(st.just(Any), JSON),
)


def values_so_far(kind: Any, pieces: list[str]) -> list[Any]:
    """Return the values that differ."""
    partial, found = PartialValue(PartialType.of(kind)), []
    for piece in pieces:
        partial.push(piece)
        value = partial.value
        if value is not MISSING and not (found and value is found[-1]):
            found.append(value)
    return found


def plain(value: Any) -> Any:
    """Return a value as dicts and lists: a model as the fields that were set, in their order."""
    if isinstance(value, BaseModel):
        return {name: plain(item) for name, item in value.__dict__.items() if name in value.model_fields_set}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def is_beginning(earlier: Any, later: Any) -> bool:
    """Return whether all of an earlier value stands in a later one; of what was being written, the beginning."""
    if isinstance(earlier, str) and isinstance(later, str):
        return later.startswith(earlier)
    if isinstance(earlier, dict) and isinstance(later, dict):
        # One member at most was being written. It may stand anywhere: fields have the order of their model.
        unlike = [key for key, value in earlier.items() if key not in later or value != later[key]]
        return len(unlike) < 2 and all(key in later and is_beginning(earlier[key], later[key]) for key in unlike)
    if isinstance(earlier, list) and isinstance(later, list):
        last = len(earlier) - 1
        is_same_before = len(earlier) <= len(later) and (not earlier or earlier[:last] == later[:last])
        return is_same_before and (not earlier or is_beginning(earlier[last], later[last]))
    return bool(earlier == later)


@given(CASES, st.booleans(), st.data())
def test_what_is_whole_stays_and_the_last_is_the_final_value(case: Any, ascii: bool, data: st.DataObject) -> None:
    kind, wanted = case
    text = json.dumps(wanted, ensure_ascii=ascii, indent=data.draw(st.sampled_from([None, 1])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=60)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = values_so_far(kind, pieces)
    final = TypeAdapter[Any](kind).validate_json(text)
    if text[-1] in '"}]':  # a number alone may yet go on
        assert found[-1] == final
        assert plain(found[-1]) == plain(final)
        assert repr(found[-1]) == repr(final)
    for earlier, later in itertools.pairwise(found):
        assert type(earlier) is not type(later) or earlier != later
    for earlier, later in [*itertools.pairwise(found), *((one, final) for one in found[-8:])]:
        assert is_beginning(plain(earlier), plain(later))


ANN = {"name": "Ann", "no": 8, "price": 1, "color": "red", "place": None, "places": [], "counts": {}}
ALL_FIELDS = {**ANN, "pair": [1, ""], "pet": {"kind": "cat", "lives": 9}, "inner": None, "other": None, "due": "2024-01-02"}
"""Every field is given, `due` not where the model has it: without its last brace, the value so far is equal to the validated one."""


@given(ORDERS, st.floats(0, 1), st.floats(0, 1))
@example(ALL_FIELDS, 1.0, 1 / len(json.dumps(ALL_FIELDS)))
def test_taking_back_and_writing_again_changes_nothing(order: Any, written: float, taken: float) -> None:
    text = json.dumps(order)
    middle = round(written * len(text))
    back = round(taken * middle)
    straight, partial = PartialValue(PartialType.of(Order)), PartialValue(PartialType.of(Order))
    partial.push(text[:middle])
    assert partial.value is partial.value
    partial.take_back(back)
    straight.push(text[: middle - back])
    assert repr(straight.value) == repr(partial.value)
    partial.push(text[middle - back :])
    assert Order.model_validate_json(text) == partial.value
    assert repr(Order.model_validate_json(text)) == repr(partial.value)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (dict[str, Any], '{"a": 1,', '{"a": true,'),
        (dict[str, Any], '{"a": [{"b": 1.0}],', '{"a": [{"b": 1}],'),
        (list[float], "[0.0,", "[-0.0,"),
        (list[Decimal], '["1.10"', '["1.1"'),
        (dict[str, int], '{"a": 1, "b": 2,', '{"b": 2, "a": 1,'),
        (Order, '{"other": [1],', '{"other": [true],'),
        (Extra, '{"more": 1,', '{"more": 1.0,'),
    ],
)
def test_another_value_that_is_equal_is_shown_where_text_was_taken_back(kind: Any, before: str, after: str) -> None:
    partial, straight = PartialValue(PartialType.of(kind)), PartialValue(PartialType.of(kind))
    partial.push(before)
    first = partial.value
    partial.take_back(len(before))
    partial.push(before)
    assert partial.value is first
    partial.take_back(len(before))
    partial.push(after)
    straight.push(after)
    assert repr(straight.value) == repr(partial.value) != repr(first)


@pytest.mark.parametrize(
    ("kind", "text", "order"),
    [
        (Extra, '{"more": 1, "NAME": "a", "most": 2}', ["name", "more", "most"]),
        (Pair, '{"number": 1, "name": "a"}', ["name", "number"]),
        (Place, '{"zip": "123", "city": "a"}', ["city", "zip"]),
        (dict[str, str], '{"b": "1", "a": "a"}', ["b", "a"]),
    ],
)
def test_fields_have_the_order_of_validation(kind: Any, text: str, order: list[str]) -> None:
    for written in (text[:-1] + ",", text):
        partial = PartialValue(PartialType.of(kind))
        partial.push(written)
        assert order == [*dict(partial.value)]
    assert order == [*dict(TypeAdapter(kind).validate_json(text))]


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (dict[str, int], '{"a": 12', {}),
        (dict[str, int], '{"a": 12,', {"a": 12}),
        (list[bool], "[true, fal", [True]),
        (list[Color], '["red", "blu', [Color.RED]),
        (list[date], '["2024-01-02", "2024-01-0', [date(2024, 1, 2)]),
        (list[Annotated[str, Field(min_length=3)]], '["abc", "de', ["abc"]),
        (list[str], '["a\\\\b\\u00', ["a\\b"]),
        (list[str], '["\\ud83d', [""]),
        (list[str], '["\\ud83d\\ude00', ["😀"]),
        (dict[str, Any], '{"a": {"b": [{"c": nul', {"a": {"b": [{}]}}),
        (set[int], "[1, 2, 3", {1, 2}),
        (set[str], '["ab", "c', {"ab"}),
        (tuple[int, ...], "[1, 2, 3", (1, 2)),
        (list[int | str], '[1, "a', [1, "a"]),
        (int, "12", MISSING),
        (Color, '"red', MISSING),
        (list[Cat | Dog], '[{"kind": ', []),
        (list[Cat | Dog], '[{"kind": "dog", "name": "Re', [Dog.model_construct(kind="dog", name="Re")]),
        (Pair, '{"name": "a", "numb', {"name": "a"}),
        (PairClass, '{"name": "a", "number": 1', MISSING),
        (PairClass, '{"name": "a", "number": 1}', PairClass("a", 1)),
        (PairTuple, '["a", 1', MISSING),
    ],
)
def test_what_may_yet_change_is_left_out_and_text_goes_as_far_as_it_is(kind: Any, text: str, shown: Any) -> None:
    partial = PartialValue(PartialType.of(kind))
    partial.push(text)
    assert shown == partial.value


def test_a_field_that_fails_validation_is_left_out() -> None:
    partial = PartialValue(PartialType.of(Order))
    partial.push('{"name": "Ann", "no": 7, "price": ')
    assert {"name"} == partial.value.model_fields_set
    assert not hasattr(partial.value, "number")
    assert partial.value.model_dump() == {"name": "Ann"}


class Refused(BaseModel):
    """A model that is never valid."""

    name: str

    @model_validator(mode="after")
    def refuse(self) -> Refused:
        """Refuse."""
        raise SystemExit(3)


def test_a_whole_value_that_fails_validation_leaves_what_was_there() -> None:
    partial = PartialValue(PartialType.of(Refused))
    for character in '{"name": "Ann"}':
        partial.push(character)
        assert partial.value is not MISSING
    assert vars(partial.value) == {"name": "Ann"}


def test_fields_beyond_those_of_a_model_are_shown_in_parts_too() -> None:
    partial = PartialValue(PartialType.of(Extra))
    partial.push('{"NAME": "a", "more": [1, 2')
    assert vars(partial.value) == {"name": "a"}
    assert partial.value.model_extra == {"more": [1]}


def test_reading_costs_the_same_per_character_in_a_long_text() -> None:
    """Every validation is counted: one for each field alone, one with its object, and none again before the end of the list."""
    calls = []

    class Item(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def count(cls, number: int) -> int:
            calls.append(number)
            return number

    partial = PartialValue(PartialType.of(list[Item]))
    text = json.dumps([{"number": i, "note": ""} for i in range(200)])
    for character in text[:-1]:
        partial.push(character)
        assert partial.value is not MISSING or character == "["
    assert sorted([*range(200)] * 2) == sorted(calls)
