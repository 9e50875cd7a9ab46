"""`Shape`: Arrow column types inferred from a JSON Schema or a Python type, and the conversion of values to them. What has no single type
becomes JSON text: unions of several types (but null, and integers with numbers), `allOf` of several, mixed lists, recursive or external
references, objects without named members, or with others below the top, and what is nested more than 16 levels deep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Protocol

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from outlines_cont.pipelines.reading import pyarrow
from outlines_cont.pipelines.record_schema import RecordSchema, unchanged

# Deeper than this a value is JSON text.
_DEPTH = 16
_MAX_DIGITS = 38  # of a decimal of 128 bits
_INT64 = 2**63
_LEAP_SECOND = re.compile(r"(?<=:)60")


class Shape(Protocol):
    """An Arrow type with the conversion of JSON values to it."""

    def arrow(self) -> Any:
        """Return it as a type of pyarrow."""

    def convert(self, value: Any) -> Any:
        """Return a JSON value other than null as a value for pyarrow; raise `ValueError` if the type cannot represent it."""


@dataclass(frozen=True, slots=True)
class ScalarShape:
    """A type of Arrow without parts, made by the function `name` of pyarrow with `arguments`."""

    name: str
    convert: Callable[[Any], Any]
    arguments: tuple[Any, ...] = ()

    def arrow(self) -> Any:
        """Return it as a type of pyarrow."""
        return getattr(pyarrow(), self.name)(*self.arguments)


def _int64(value: Any) -> int:
    """Return an integer, which JSON may also write as a float such as `1.0`."""
    whole = int(value)
    if not -_INT64 <= whole < _INT64:
        raise ValueError(
            f"expected an integer of 64 bits, got {value}. Bound it in the schema (`maximum`), or make it a text."
        )
    return whole


def _local_time(text: str) -> datetime:
    """Parse a date and time; a leap second, which `datetime` lacks, becomes the first second of the next minute."""
    earlier = _LEAP_SECOND.sub("59", text, count=1) if ":60" in text[10:] else text
    return datetime.fromisoformat(earlier) + timedelta(seconds=earlier != text)


def _utc(text: str) -> datetime:
    return _local_time(text).astimezone(UTC)


TEXT = ScalarShape("string", unchanged)
JSON_TEXT = ScalarShape("string", partial(json.dumps, ensure_ascii=False))
"""A value without a type of its own, as JSON text."""
INTEGER = ScalarShape("int64", _int64)
NUMBER = ScalarShape("float64", float)
BOOLEAN = ScalarShape("bool_", unchanged)


@dataclass(frozen=True, slots=True)
class ListShape:
    """A list of items of one shape."""

    item: Shape

    def arrow(self) -> Any:
        """Return a list type of pyarrow."""
        return pyarrow().list_(self.item.arrow())

    def convert(self, value: Any) -> Any:
        """Return the items."""
        return [None if item is None else self.item.convert(item) for item in value]


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object.

    Attributes:
        members: the names and shapes of the members that the schema names.
        is_open: whether there may be other members.
    """

    members: tuple[tuple[str, Shape], ...]
    is_open: bool = False

    def arrow(self) -> Any:
        """Return a struct type of pyarrow."""
        return pyarrow().struct([(name, shape.arrow()) for name, shape in self.members])

    def convert(self, value: Any) -> Any:
        """Return the members; null for those that are missing."""
        return {
            name: None if (item := value.get(name)) is None else shape.convert(item) for name, shape in self.members
        }


def with_values(shape: Shape) -> Shape:
    """Return a shape that leaves a value as it is where another one makes JSON text of it: for rows of Python, which need no one type."""
    if isinstance(shape, ListShape):
        return ListShape(with_values(shape.item))
    if isinstance(shape, ObjectShape):
        return ObjectShape(tuple((name, with_values(member)) for name, member in shape.members), shape.is_open)
    return TEXT if shape == JSON_TEXT else shape


_NULL = ScalarShape("null", unchanged)
_SCALARS: dict[Any, Shape] = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "null": _NULL}
_FORMATS: dict[Any, Shape] = {
    "date": ScalarShape("date32", date.fromisoformat),
    "date-time": ScalarShape("timestamp", _utc, ("us", "UTC")),
    "x-local-date-time": ScalarShape("timestamp", _local_time, ("us",)),
}
_PYTHON_TYPES: dict[type, Shape] = {str: TEXT, int: INTEGER, bool: BOOLEAN, float: NUMBER}


def shape_of(schema: RecordSchema, *, has_formats: bool = True) -> Shape:
    """Return the shape of records of a schema; `has_formats`: `format` is asserted, otherwise a `date` may be any text."""
    if isinstance(schema.schema, dict | bool):
        return _ShapeReader(schema.schema, is_type=False, has_formats=has_formats).shape(schema.schema)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema.schema)
        found = adapter.json_schema(mode="serialization", schema_generator=_Serialized)
    except (PydanticInvalidForJsonSchema, PydanticUserError):  # a serializer without a return type
        return JSON_TEXT
    return _ShapeReader(found, is_type=True, has_formats=True).shape(found)


class _Serialized(GenerateJsonSchema):
    """The JSON Schema of pydantic, with the digits of decimals and the offsets of datetimes."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a decimal, with its digits."""
        digits = {"digits": schema.get("max_digits"), "places": schema.get("decimal_places")}
        return {"type": "string", "format": "x-decimal", **digits}

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a datetime, by whether it has an offset."""
        is_naive = schema.get("tz_constraint") == "naive"
        return {"type": "string", "format": "x-local-date-time" if is_naive else "date-time"}


class _ShapeReader:
    """Infers the shape of the schema `root`, by recursion down to `_DEPTH` levels.

    If it `is_type`, that is, of a Python type, its objects have no other members by default.
    """

    def __init__(self, root: Any, *, is_type: bool, has_formats: bool) -> None:
        self._root = root
        self._is_type = is_type
        self._has_formats = has_formats

    def shape(self, schema: Any, depth: int = 0, refs: tuple[str, ...] = ()) -> Shape:
        """Return the shape of a subschema at a depth; `refs` are the references on the path to it."""
        while isinstance(schema, dict) and "$ref" in schema:
            target = schema["$ref"]
            found = self._referred(target) if isinstance(target, str) and target not in refs else None
            if not isinstance(found, dict):
                return JSON_TEXT
            refs = (*refs, target)
            schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
        if not isinstance(schema, dict) or depth > _DEPTH:
            return JSON_TEXT
        if "allOf" in schema or "anyOf" in schema or "oneOf" in schema:
            return self._combined(schema, depth, refs)
        if "enum" in schema or "const" in schema:
            return _of_values(schema.get("enum", [schema.get("const")]))
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        kinds = [kind for kind in kinds if kind != "null"] or kinds
        if set(kinds) == {"integer", "number"}:
            return NUMBER
        if kinds == ["string"]:
            return self._of_text(schema)
        if kinds == ["array"]:
            return self._of_items(schema, depth, refs)
        if kinds == ["object"]:
            return self._of_members(schema, depth, refs)
        return _SCALARS.get(kinds[0], JSON_TEXT) if len(kinds) == 1 else JSON_TEXT

    def _combined(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> Shape:
        """Return the common shape of all alternatives that are not null, else `JSON_TEXT`."""
        words = [word for word in ("allOf", "anyOf", "oneOf") if word in schema]
        parts = schema[words[0]]
        own = {key: value for key, value in schema.items() if key not in words}
        if len(words) > 1 or not isinstance(parts, list) or (words[0] == "allOf" and len(parts) > 1):
            return JSON_TEXT
        if own.keys() & {"type", "properties", "items", "enum", "const"}:
            return JSON_TEXT
        return _common([self.shape(part, depth + 1, refs) for part in parts if part != {"type": "null"}]) or JSON_TEXT

    def _of_text(self, schema: dict[str, Any]) -> Shape:
        kind = schema.get("format") if self._has_formats else None
        if kind == "x-decimal":
            digits, places = schema["digits"], schema["places"]
            is_bounded = digits is not None and places is not None and digits <= _MAX_DIGITS
            return ScalarShape("decimal128", Decimal, (digits, places)) if is_bounded else TEXT
        return _FORMATS.get(kind, TEXT)

    def _of_items(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> Shape:
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        if not isinstance(first, list) or isinstance(rest, list):
            return JSON_TEXT
        parts = [*first, *([] if rest is False or (first and len(first) == schema.get("maxItems")) else [rest])]
        item = _common([self.shape(part, depth + 1, refs) for part in parts])
        return JSON_TEXT if item is None else ListShape(item)

    def _of_members(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> Shape:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", not self._is_type))
        is_open = others is not False or bool(schema.get("patternProperties"))
        if not properties or (is_open and depth):
            return JSON_TEXT
        members = tuple((name, self.shape(part, depth + 1, refs)) for name, part in properties.items())
        return ObjectShape(members, is_open)

    def _referred(self, target: str) -> Any:
        """Return the target of a reference inside of the schema (a JSON pointer); None for any other."""
        start, *keys = target.split("/")
        found = self._root if start == "#" else None
        for key in keys:
            found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _common(shapes: Sequence[Shape]) -> Shape | None:
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else None


def _of_values(values: Any) -> Shape:
    """Return the common shape of given values, else `JSON_TEXT`."""
    found = {type(value) for value in values if value is not None} if isinstance(values, list) else set()
    if found == {int, float}:
        return NUMBER
    return _PYTHON_TYPES.get(found.pop(), JSON_TEXT) if len(found) == 1 else JSON_TEXT
