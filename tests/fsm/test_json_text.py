"""The page "What our JSON looks like": every line of its tables, and every sentence of a report, against `accepts`."""

from __future__ import annotations

import datetime
import decimal
import fractions
import ipaddress
import json
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

from fsm import Report, json_schema
from fsm.automaton.lazy_dfa import shortest_text
from fsm.schema import spelling
from fsm.schema.keywords.formats import SPELLINGS

PAGE = (Path(__file__).parents[2] / "docs" / "json_text.md").read_text(encoding="utf-8")
ROWS = [
    tuple(re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split(" | ")) for line in PAGE.splitlines() if line.startswith("| `")
]
TYPES: dict[str, Any] = {
    "Decimal": decimal.Decimal, "HttpUrl": pydantic.HttpUrl, "AnyUrl": pydantic.AnyUrl, "datetime": datetime.datetime,
    "IPv4Network": ipaddress.IPv4Network, "Fraction": fractions.Fraction,
    "NaiveDatetime": pydantic.NaiveDatetime, "timedelta": datetime.timedelta,
}  # fmt: skip


def test_the_tables_are_found() -> None:
    assert len(ROWS) == 25
    assert {len(row) for row in ROWS} == {3}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][0])
def test_a_line_of_the_page_is_true(row: tuple[list[str], list[str], list[str]]) -> None:
    (schema,), written, not_written = row
    expression = json_schema(TYPES.get(schema) or json.loads(schema))
    assert written == [text for text in written if expression.accepts(text)]
    assert [text for text in not_written if expression.accepts(text)] == []


SENTENCES: list[tuple[Any, dict[str, Any], list[str]]] = [
    ({"type": "boolean"}, {}, []),
    ({"type": "integer", "minimum": 3}, {}, [spelling.INTEGERS]),
    ({"type": "number"}, {}, [spelling.NUMBERS]),
    ({"type": "number", "maximum": 3}, {}, [spelling.BOUNDED]),
    ({"type": "number", "format": "float"}, {}, [spelling.NUMBERS]),
    ({"type": "number", "multipleOf": 0.5}, {}, [spelling.of_numbers(1, is_bounded=True)]),
    ({"type": "number", "not": {"const": 0.5}}, {}, [spelling.of_numbers(6, is_bounded=True)]),
    ({"enum": ["a", None]}, {}, [spelling.STRINGS]),
    ({"enum": [1, None]}, {}, [spelling.LISTED]),
    ({"enum": [1], "type": "integer"}, {}, [spelling.INTEGERS]),
    ({"type": "string", "format": "time"}, {}, [spelling.STRINGS, SPELLINGS["time"]]),
    ({"type": "string", "format": "time"}, {"formats": "annotate"}, [spelling.STRINGS]),
    ({"type": "array", "items": {"type": "null"}}, {}, [spelling.ONE_SPACE]),
    ({"type": "array", "items": {"type": "null"}}, {"whitespace": "none"}, [spelling.NO_SPACE]),
    ({"type": "array", "items": {"type": "null"}}, {"whitespace": "spaced"}, [spelling.SPACED]),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
        {},
        [spelling.ONE_SPACE, spelling.ORDERED, spelling.ONCE],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
        {"key_order": "any"},
        [spelling.ONE_SPACE, spelling.ONCE],
    ),
    ({"type": "array", "items": {"$ref": "#"}}, {}, [spelling.ONE_SPACE, spelling.nested(64)]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "options", "expected"), SENTENCES, ids=str)
def test_a_report_says_what_is_never_written(schema: Any, options: dict[str, Any], expected: list[str]) -> None:
    report = json_schema(schema, **options).report
    assert expected == list(report.spelling)
    assert str(report).splitlines()[len(report) :] == [f"spelling   {sentence}" for sentence in expected]


def test_reports_of_parts_are_added_with_their_sentences() -> None:
    both = json_schema({"type": "integer"}) + json_schema({"type": ["string", "integer"]})
    assert both.report.spelling == (spelling.INTEGERS, spelling.STRINGS)
    assert Report().spelling == ()


@pytest.mark.parametrize("schema", [{"multipleOf": step} for step in (0.5, 0.05, 0.001, 2.5)] + [{"not": {"const": 0.5}}])
def test_digits_around_a_point_are_as_many_as_the_report_says(schema: dict[str, Any]) -> None:
    expression = json_schema({"type": "number"} | schema)
    (sentence,) = expression.report.spelling
    found = re.search(r"at most (\d+) decimal(s?), and (\d+) digits before a point", sentence)
    assert found is not None
    decimals, room = int(found[1]), int(found[3])
    assert (found[2] == "s") == (decimals > 1)
    whole, zeros = "5" * room, "0" * decimals
    assert expression.accepts(f"{whole}.{zeros}")
    assert expression.accepts(f"-{whole}.{zeros}")
    assert expression.accepts(f"{whole}5")
    assert not expression.accepts(f"{whole}5.{zeros}")
    assert not expression.accepts(f"{whole}.{zeros}0")


def test_bounds_with_as_many_digits_as_a_double_has_leave_numbers() -> None:
    for exponent in (100, 306, 307):
        for sign in (1, -1):
            schema = {"type": "number", "minimum" if sign > 0 else "maximum": sign * 10**exponent}
            text = shortest_text(json_schema(schema).node)
            assert text is not None
            assert abs(float(text)) >= 10**exponent
