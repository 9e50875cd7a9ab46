"""Values that are checked when they close: the checker by itself, and a row that goes back and writes them otherwise."""

from __future__ import annotations

from itertools import product
from typing import Any

import jsonschema
import pydantic
import pytest
import torch

from fsm import choice, json_schema, regex
from fsm.automaton.checker import Checker, CheckFailure
from fsm.errors import BudgetExceeded
from fsm.schema.value_check import DISTINCT_KEYS
from fsm.terms.node import checked, literal, repeat, sequence
from outlines_cont import continuous, generate, models, samplers
from outlines_cont.errors import CheckFailed, OptionError
from tests.fakes import FakeTokenizer, random_network

_ITEM = {"enum": [1, 2, 3, True, "a"]}
# An automaton does not count items by place and value, so that this is checked.
UNIQUE = {"type": "array", "prefixItems": [_ITEM], "items": _ITEM, "minItems": 3, "maxItems": 5, "uniqueItems": True}


class Longer:
    """A text has more than so many bytes."""

    telling_bytes = frozenset[int]()

    def __init__(self, size: int) -> None:
        self.size = size

    def holds(self, data: bytes) -> bool:
        return len(data) > self.size

    def fault(self, data: bytes) -> int | None:
        return None

    def __str__(self) -> str:
        return f"there are more than {self.size} bytes"


def test_the_checker_is_a_product_of_the_automaton_and_the_checks() -> None:
    """Against all ways to part a text: `(a{1,3} checked)* b? (a* checked)`."""
    few, many = Longer(0), Longer(1)
    node = sequence((repeat(checked(repeat(literal(b"a"), 1, 3), many)), repeat(literal(b"b"), 0, 1), checked(repeat(literal(b"a")), few)))
    checker = Checker(node)
    for length in range(7):
        for text in map("".join, product("ab", repeat=length)):
            head, _, tail = text.partition("b")
            sizes = [len(tail)] if "b" in text else range(1, len(text) + 1)
            ok = text.count("b") < 2 and any(size > 0 and _parts(len(head) if "b" in text else len(text) - size) for size in sizes)
            assert checker.accepts(text.encode()) == ok, text


def _parts(size: int) -> bool:
    """Whether a run of a's is a sum of twos and threes."""
    return size != 1


def test_a_failure_names_the_value_and_the_check() -> None:
    checker = Checker(json_schema({"items": {"uniqueItems": True}}).node)
    reading = checker.read(checker.initial, b'[[1, 2], ["a", "b", "a",')
    assert not reading.is_alive
    assert isinstance(reading.failure, CheckFailure)
    assert reading.failure.start == len(b'[[1, 2], ["a", "b", ')
    assert "uniqueItems" in str(reading.failure.check)


def test_expressions_keep_the_checks_of_their_parts() -> None:
    unique = json_schema(UNIQUE)
    both = regex("think: [a-z]+; ") + unique + (choice(["."]) | " and " + unique)
    assert both.accepts("think: so; [1,2,3].")
    assert both.accepts("think: so; [1,2,3] and [1,2,3]")
    assert not both.accepts("think: so; [1,2,2].")
    assert not both.accepts("think: so; [1,2,3] and [1,1,3]")
    assert unique.repeat(1, 2).accepts("[1,2,3][1,2,3]")
    assert not unique.repeat(1, 2).accepts("[1,2,3][1,1,3]")
    for operation in (lambda: unique & unique, lambda: ~unique):
        with pytest.raises(ValueError, match="has a check|recursive"):
            operation()


@pytest.fixture(scope="module")
def model() -> Any:
    return models.from_transformers(random_network("llama"), FakeTokenizer())


SCHEMAS: list[dict[str, Any]] = [
    UNIQUE,
    {"type": "array", "items": UNIQUE, "minItems": 2, "maxItems": 2},
    {"type": "object", "minProperties": 2, "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False},
    {"type": "integer", "minimum": 10, "maximum": 99, "allOf": [{"not": {"multipleOf": n}} for n in (4, 6, 9, 15)]},
    {"oneOf": [{"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 3, "uniqueItems": True}, {"const": [1]}]},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: str(s)[:40])
@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.multinomial(4, temperature=2.0)], ids=["greedy", "draw"])
def test_whatever_finishes_is_valid(model: Any, schema: Any, sampler: Any) -> None:
    state = continuous(generate.json(model, schema, sampler=sampler, key_order="any"))("the name", max_tokens=200, rng=5)
    values = [v for group in state.values for v in group]
    assert len(values) == state.shape[1]
    for value in values:
        assert value is not None
        assert jsonschema.Draft202012Validator(schema).is_valid(value)


def test_retries_are_counted_and_a_row_that_goes_back_hurts_no_other(model: Any) -> None:
    prompts, generator = ["the name", "a rose", "of"], generate.json(model, UNIQUE, sampler=samplers.multinomial(2))
    together = continuous(generator)(prompts, rng=7)
    assert int(together.retries.sum()) > 0
    alone = continuous(generator)(prompts[0], rng=7)
    assert alone.values[0] == together.values[0]
    assert torch.equal(alone.retries[0], together.retries[0])
    with model.meter() as meter:
        continuous(generator)(prompts[0], rng=7)
    assert meter.rewound_tokens >= int(alone.retries.sum())


def test_what_cannot_be_written_fails_by_itself(model: Any) -> None:
    impossible = UNIQUE | {"prefixItems": [{"enum": [1, 2]}], "items": {"anyOf": [{"const": 1}, {"const": 2}]}, "minItems": 3}
    state = continuous(generate.json(model, impossible, max_retries=6))("the name", max_tokens=100)
    error = state.rows[0][0].error
    assert isinstance(error, CheckFailed)
    assert "max_retries" in str(error)
    with pytest.raises(CheckFailed, match="no two items are equal"):
        generate.json(model, impossible, max_retries=0)("the name", max_tokens=100)
    with pytest.raises(OptionError, match="max_retries|0 or more"):
        generate.json(model, UNIQUE, max_retries=-1)


class Even(pydantic.BaseModel):
    number: int = pydantic.Field(ge=0, le=99)

    @pydantic.field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


def test_the_validators_of_a_model_hold(model: Any) -> None:
    found = generate.json(model, Even, sampler=samplers.multinomial(12, temperature=3.0))("the name", rng=3)
    assert all(isinstance(value, Even) and value.number % 2 == 0 for value in found)


def call(number: int, kind: bool = True) -> None:
    """Stands for its arguments."""


def test_a_function_gets_its_arguments(model: Any) -> None:
    found = generate.json(model, call)("the name", max_tokens=80)
    assert set(found) == {"number", "kind"}
    call(**found)


@pytest.mark.parametrize("begun", ['{":', '{"a{', '{"a":1,"}],": ', '{"a":1,"b:{', '{"a":"x:', '{"a\\":'])
def test_a_key_that_has_only_begun_is_no_key_yet(begun: str) -> None:
    assert DISTINCT_KEYS.fault(begun.encode()) is None


@pytest.mark.parametrize(
    ("schema", "text", "is_alive"),
    [
        ({"uniqueItems": True, "type": "array"}, "[1,1]", False),
        ({"uniqueItems": True, "type": "array"}, "[1,2]", True),
        ({"properties": {"a": {"uniqueItems": True, "type": "array"}}}, '{"a":[1,1]', False),
        ({"properties": {"a": {"uniqueItems": True, "type": "array"}}}, '{"a":[1,2]', True),
        ({"items": {"uniqueItems": True, "type": "array"}, "type": "array"}, "[[1,1]", False),
    ],
)
def test_a_value_that_fails_is_told_with_its_last_byte(schema: dict[str, Any], text: str, is_alive: bool) -> None:
    checker = Checker(json_schema(schema).node)
    assert checker.read(checker.initial, text[:-1].encode()).is_alive
    assert is_alive is checker.read(checker.initial, text.encode()).is_alive


def test_ways_to_read_a_text_are_bounded() -> None:
    node = json_schema({"anyOf": [{"items": {"uniqueItems": True}, "minItems": n, "maxItems": n + 3} for n in range(6)]}).node
    text = b"[[1],[2]"
    assert Checker(node).read(Checker(node).initial, text).is_alive
    ways = len(Checker(node).read(Checker(node).initial, text).stacks)
    assert ways > 1
    narrow = Checker(node, max_readings=ways - 1)
    with pytest.raises(BudgetExceeded, match="in more than") as caught:
        narrow.read(narrow.initial, text)
    assert caught.value.limit == "max_readings"
