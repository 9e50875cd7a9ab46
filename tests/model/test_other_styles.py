"""The bundled model on messages that its training text did not write: forty by hand, and the fourteen of the demo."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from outlines_cont import continuous, generate, models
from outlines_cont.cli.demo import DATE, Record, read_messages
from outlines_cont.models import HuggingFaceModel

FOLDER = Path(__file__).parent
KINDS = ("order", "invoice", "shipment", "complaint", "quote", "meeting", "application", "other")


class Reading(pydantic.BaseModel):
    """What a message may tell; null where it does not."""

    customer: str | None
    city: str | None
    item: str | None
    quantity: int | None
    price: float | None
    currency: Literal["EUR", "USD", "GBP", "JPY"] | None
    due: str | None


@cache
def _tiny() -> HuggingFaceModel:
    return models.tiny()


def _gold(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def _kinds(rows: list[dict[str, Any]]) -> Any:
    return continuous(generate.choice(_tiny(), KINDS))([f"Message: {row['text']}\nKind: " for row in rows])


@pytest.mark.parametrize(
    ("name", "count", "fields", "records", "kinds"),
    [("other_styles.jsonl", 40, 0.93, 0.65, 0.87), ("fresh_styles.jsonl", 20, 0.94, 0.75, 0.80)],
)
def test_fields_records_and_kinds_of_messages_in_other_styles_are_read(
    name: str, count: int, fields: float, records: float, kinds: float
) -> None:
    """The shares that the weights reach, with a message or two to spare; 0.85, 0.60 and 0.85 are the aims for the forty."""
    rows = _gold(name)
    record = continuous(generate.json(_tiny(), Reading, whitespace="none"))
    state = record([f"Message: {row['text']}\nRecord: " for row in rows], max_tokens=200)
    right = [
        [value is not None and getattr(value, key) == wanted for key, wanted in row["record"].items()]
        for row, (value,) in zip(rows, state.values, strict=True)
    ]
    told = [kind == row["kind"] for row, (kind,) in zip(rows, _kinds(rows).values, strict=True)]
    assert len(rows) == count
    assert sum(map(sum, right)) / sum(map(len, right)) >= fields
    assert sum(map(all, right)) / count >= records
    assert sum(told) / count >= kinds


def test_messages_of_the_demo_are_read_without_a_slip() -> None:
    rows = _gold("demo.jsonl")
    assert read_messages() == [row["text"] for row in rows]
    kinds = _kinds(rows)
    records = continuous(generate.json(_tiny(), Record, whitespace="none"))(kinds + "\nRecord: ", max_tokens=200)
    dates = continuous(generate.regex(_tiny(), DATE))(records + "\nDue: ")
    read = zip(kinds.values, records.values, dates.values, strict=True)
    right = [
        (kind, record.model_dump(), due) == (row["kind"], row["record"], row["due"])
        for row, ((kind,), (record,), (due,)) in zip(rows, read, strict=True)
    ]
    assert all(right), right


def test_required_texts_are_copied_where_null_is_not_allowed() -> None:
    """A schema of plain strings, as most are: weights that were trained on nulls have written `:null,` there."""
    texts = {
        "This is Owen Achterberg. The garden chair arrived broken.": ("Owen Achterberg", "garden chair"),
        "This is Ana Novak. Please send 3 lamps.": ("Ana Novak", "lamps"),
        "Marta Keller here, we need 12 desks in Porto.": ("Marta Keller", "desks"),
        "Dear team, the kettle is broken. Regards, Lena Fox": ("Lena Fox", "kettle"),
        "Three blue mugs please, for Tom Baker in Leeds.": ("Tom Baker", "blue mugs"),
    }
    members = {"customer": {"type": "string", "maxLength": 40}, "item": {"type": "string", "maxLength": 40}}
    schema = {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}
    write = generate.json(_tiny(), schema, whitespace="none")
    found = write([f"Message: {text}\nRecord: " for text in texts], max_tokens=100)
    assert all(written in text for text, value in zip(texts, found, strict=True) for written in value.values())
    assert [(value["customer"], value["item"]) for value in found] == [*texts.values()]
