"""Short texts of schemas, as a model reads them in its prompt."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

import fsm


class Line(BaseModel):
    item: str = Field(max_length=20)
    count: int = Field(ge=1, le=99)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    customer: str = Field(description="Who orders,\n  by name")
    due: date | None = None
    city: Literal["Porto", "Oslo"]
    lines: list[Line] = Field(min_length=1)
    tags: dict[str, float] = {}


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


ORDER = """\
{
  customer: string,  // Who orders, by name
  due?: string | null,  // date
  city: "Porto" | "Oslo",
  lines: {
    item: string,  // at most 20 characters
    count: integer  // at least 1, at most 99
  }[],  // at least 1 items
  tags?: { [key: string]: number }
}"""


def test_a_record() -> None:
    assert fsm.schema_text(Order) == ORDER
    assert fsm.schema_text(Order.model_json_schema()) == ORDER


def test_a_type_that_contains_itself_has_a_name() -> None:
    assert fsm.schema_text(Tree) == "type Tree = { name: string, children?: Tree[] }\nTree"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (True, "any"),
        (False, "never"),
        ({}, "any"),
        (int, "integer"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"const": "é"}, '"é"'),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "(integer | null)[]"),
        ({"type": "array"}, "any[]"),
        ({"prefixItems": [{"type": "integer"}, {}]}, "[integer, any]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": False}, "{}"),
        ({"properties": {"a b": {"type": "boolean"}}, "required": ["a b"]}, '{ "a b": boolean }'),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "number"}}}, "number"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"properties": {"x": {"items": {"pattern": "^a"}}}}, "{\n  x?: any[]  // each matches ^a\n}"),
        ('{"type": "null"}', "null"),
        ({"properties": {"next": {"$ref": "#"}}}, "type Root = { next?: Root }\n{ next?: Root }"),
    ],
)
def test_keywords(schema: Any, text: str) -> None:
    assert fsm.schema_text(schema) == text


def test_the_arguments_of_a_function() -> None:
    def weather(city: Literal["Paris", "Oslo"], days: int = 1) -> str:
        return f"{city} {days}"

    assert fsm.schema_text(weather) == '{ city: "Paris" | "Oslo", days?: integer }'
