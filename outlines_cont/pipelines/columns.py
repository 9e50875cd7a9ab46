"""`RecordColumns`: outcomes as columns of Python values or as an Arrow table: one typed column per member of the schema (`record` if it is
no object), others, if allowed, as JSON in `additional`, then `error`, `weight`, `usage`, and with samples `agreement` (the least in each
member). A name that is taken gets the prefix `record.`; a value that its type cannot represent turns the row into an error.

`extracted`: records in the same kind of container as the rows: list, dict of columns, pandas or polars frame, Arrow table or Hugging
Face dataset (which keeps its own columns). A single row gives one record, any other iterable a lazy iterator.

`Shape`: Arrow column types inferred from a JSON Schema or a Python type, and the conversion of values to them. What has no single type
becomes JSON text: unions of several types (but null, and integers with numbers), `allOf` of several, mixed lists, recursive or external
references, objects without named members, or with others below the top, and what is nested more than 16 levels deep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Protocol

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from outlines_cont.errors import OptionError
from outlines_cont.pipelines.outcome import Failure, Outcome, Usage, check_columns
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
    """Return a shape that leaves values as they are in place of making them JSON text: rows of Python need no common type."""
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


_OTHERS = "additional"


@dataclass(frozen=True)
class RecordColumns:
    """The columns of records, and their values.

    A record that is an object has a column for each of its members, and `additional`, as JSON, if there may be others; any other record
    is one column, `record`. Then follow `error`, `weight`, `usage`, and with samples `agreement`.

    Attributes:
        shape: the shape of the records.
        has_agreement: whether records are compared with samples.
        taken: names that columns of the input have: a member of such a name is in `record.NAME`.
    """

    shape: Shape
    has_agreement: bool = False
    taken: frozenset[str] = frozenset()

    def with_taken(self, names: Collection[str]) -> RecordColumns:
        """Return the columns for an input that has columns of such names."""
        return replace(self, taken=frozenset(names))

    @cached_property
    def members(self) -> dict[str, tuple[str, Shape]]:
        """For each column of the record the name of its member, and its shape."""
        if not isinstance(self.shape, ObjectShape):
            return {self._free("record"): ("", self.shape)}
        taken = {*self.taken, *self._own}
        return {f"record.{name}" if name in taken else name: (name, shape) for name, shape in self.shape.members}

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*self.members, *map(self._free, self._own)]

    def schema(self) -> Any:
        """Return names and types as a schema of pyarrow."""
        arrow = pyarrow()
        numbers = [(name or "record", arrow.float64()) for name, _ in self.members.values()]
        own = {
            "weight": arrow.float64(),
            "usage": arrow.struct([(field.name, arrow.int64()) for field in fields(Usage)]),
            "agreement": arrow.struct(numbers),
        }
        types = [shape.arrow() for _, shape in self.members.values()]
        types += [own.get(name, arrow.string()) for name in self._own]
        return arrow.schema([*zip(self.names, types, strict=True)])

    def rows(self, outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
        """Yield the columns' values for each outcome, those of unions as they are; one that its type cannot represent is an error."""
        return replace(self, shape=with_values(self.shape))._typed_rows(outcomes)

    def _typed_rows(self, outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
        for outcome in outcomes:
            try:
                yield self._row(outcome)
            except (ValueError, ArithmeticError) as error:
                yield self._row(replace(outcome, record=None, failure=Failure.of(error)))

    def columns(self, outcomes: Iterable[Outcome]) -> dict[str, list[Any]]:
        """Return the values of each column."""
        rows = [*self._typed_rows(outcomes)]
        return {name: [row[name] for row in rows] for name in self.names}

    def table(self, outcomes: Iterable[Outcome]) -> Any:
        """Return a table of pyarrow."""
        return pyarrow().table(self.columns(outcomes), schema=self.schema())

    @cached_property
    def _own(self) -> list[str]:
        """The columns that follow those of the members, by the names that they have if these are free."""
        others = [_OTHERS] if isinstance(self.shape, ObjectShape) and self.shape.is_open else []
        return [*others, "error", "weight", "usage", *(["agreement"] if self.has_agreement else [])]

    def _free(self, name: str) -> str:
        return f"record.{name}" if name in self.taken else name

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        given = (outcome.record or {}) if isinstance(self.shape, ObjectShape) else {"": outcome.record}
        found = {
            column: None if given.get(name) is None else shape.convert(given[name])
            for column, (name, shape) in self.members.items()
        }
        known = {name for name, _ in self.members.values()}
        others = {name: value for name, value in given.items() if name not in known}
        own = {
            _OTHERS: json.dumps(others, ensure_ascii=False) if others else None,
            "error": None if outcome.failure is None else str(outcome.failure),
            "weight": outcome.weight,
            "usage": asdict(outcome.usage),
            "agreement": None if outcome.failure is not None else self._agreement(outcome),
        }
        return found | {self._free(name): own[name] for name in self._own}

    def _agreement(self, outcome: Outcome) -> dict[str, float | None]:
        """Return for each member the least share of samples that agree in any of its values."""

        def least(name: str) -> float | None:
            inside = (f"{name}.", f"{name}[")
            paths = outcome.agreement.items()
            return min((share for path, share in paths if name in ("", path) or path.startswith(inside)), default=None)

        return {name or "record": least(name) for name, _ in self.members.values()}


MakeOutcomes = Callable[[Iterable[Any]], Iterator[Outcome]]
_ADVICE = " Name the column of the message with `text_field=`; `allow_missing=` is for those that the template tests."
_BATCH = 256


class RowFields(Protocol):
    """What `extracted` knows of the rows of an extractor; implemented by `row_prompts.RowPrompts`."""

    @property
    def plain_field(self) -> str:
        """The field of a row that is no dict."""

    @property
    def needed(self) -> Sequence[str]:
        """The fields that each row must have."""

    def is_row(self, value: Any) -> bool:
        """Return whether a value that is no dict is a row by itself: a text, or an image."""

    def is_array_of_image(self, name: str, value: Any) -> bool:
        """Return whether a value of a dict is the array of one image, and no column."""


def extracted(data: Any, known: RowFields, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the records of the rows `data` in a container of its kind.

    Raises:
        OptionError: it is not a supported container.
        SetupError: it has no column of a name in `needed`, or is a list of rows none of which has such a field.
    """

    def checked(names: Collection[str]) -> RecordColumns:
        check_columns(names, known.needed, _ADVICE)
        return columns.with_taken(names)

    library = type(data).__module__.partition(".")[0]
    if library in ("pandas", "polars") and hasattr(data, "to_frame"):  # one column of a frame
        data = data.to_frame(known.plain_field)
    if isinstance(data, Mapping) and data and all(_is_column(name, values, known) for name, values in data.items()):
        lists = {name: list(values) for name, values in data.items()}
        _check_lengths(lists)
        return checked(lists).columns(make(_rows_of(lists)))
    if isinstance(data, Mapping) or known.is_row(data):
        taken = data if isinstance(data, Mapping) else ()
        return next(columns.with_taken(taken).rows(make([data])))
    if isinstance(data, list | tuple):
        rows = [{known.plain_field: row} if known.is_row(row) else row for row in data]
        fields = [row for row in rows if isinstance(row, Mapping)]
        if fields:
            check_columns(dict.fromkeys(name for row in fields for name in row), known.needed, _ADVICE)
        return list(columns.rows(make(rows)))
    if library == "pandas" and hasattr(data, "iloc"):
        return _of_pandas(data, checked([*map(str, data.columns)]), make)
    if library == "datasets" and data.column_names is not None:  # a stream may not know them
        return _of_dataset(data, checked(data.column_names), make)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        table = pyarrow().table(data)
        parts = (row for batch in table.to_batches(max_chunksize=_BATCH) for row in batch.to_pylist())
        found = checked(table.column_names).table(make(parts))
        return import_module("polars").from_arrow(found) if library == "polars" else found
    if isinstance(data, Iterable):
        return columns.rows(make(data))
    raise OptionError(
        "expected a list of texts or dicts, a dict of columns, a frame of pandas or polars, a table of pyarrow or a dataset of Hugging "
        f"Face, got {type(data).__name__}",
        "data",
    )


def _is_column(name: str, values: Any, known: RowFields) -> bool:
    is_listed = isinstance(values, Sequence) or hasattr(values, "__array__") or hasattr(values, "to_pylist")
    return is_listed and not isinstance(values, str | bytes) and not known.is_array_of_image(name, values)


def _check_lengths(lists: Mapping[str, Sequence[Any]]) -> None:
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{name!r} {len(values)}" for name, values in lists.items())
        raise OptionError(f"expected columns of one length, got {lengths}", "data")


def _rows_of(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))


def _of_pandas(frame: Any, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return a frame with the same index, whose columns have types of Arrow.

    Its cells need no type in common, so they are not read by Arrow.
    """
    names = [*map(str, frame.columns)]
    parts = (frame.iloc[start : start + _BATCH] for start in range(0, len(frame), _BATCH))
    objects = (part.astype(object).where(part.notna(), None) for part in parts)
    rows = (dict(zip(names, row, strict=True)) for part in objects for row in part.itertuples(index=False, name=None))
    found = columns.table(make(rows)).to_pandas(types_mapper=import_module("pandas").ArrowDtype)
    found.index = frame.index
    return found


def _of_dataset(data: Any, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the dataset with the columns added, typed by the schema, as all records of the first batch may be null."""
    added = import_module("datasets").Features.from_arrow_schema(columns.schema())
    return data.map(
        lambda batch: columns.columns(make(_rows_of({name: batch[name] for name in data.column_names}))),
        batched=True,
        batch_size=1000,
        features=type(added)({**data.features, **added}),
    )
