"""`RecordColumns`: outcomes as columns of Python values or as an Arrow table: one typed column per member of the schema (`record` if it is
no object), others, if allowed, as JSON in `additional`, then `error`, `weight`, `usage`, and with samples `agreement` (the least in each
member). A name that is taken gets the prefix `record.`; a value that its type cannot represent turns the row into an error.

`extracted`: records in the same kind of container as the rows: list, dict of columns, pandas or polars frame, Arrow table or Hugging
Face dataset (which keeps its own columns). A single row gives one record, any other iterable a lazy iterator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from typing import Any

from outlines_cont.errors import OptionError
from outlines_cont.pipelines.outcome import Failure, Outcome, Usage, check_columns
from outlines_cont.pipelines.reading import pyarrow
from outlines_cont.pipelines.shape import ObjectShape, Shape, with_values

_OTHERS = "additional"


@dataclass(frozen=True)
class RecordColumns:
    """The columns of records, and their values.

    A record that is an object has a column for each of its members, and `additional`, as JSON, where there may be others; any other record
    is one column, `record`. Then follow `error`, `weight`, `usage`, and with samples `agreement`.

    Attributes:
        shape: that of the records.
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


def extracted(data: Any, text_field: str, needed: Sequence[str], columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the records of the rows `data` in a container of its kind.

    Raises:
        OptionError: it is not a supported container.
        SetupError: it has no column of a name in `needed`, or is a list of rows none of which has such a field.
    """

    def checked(names: Collection[str]) -> RecordColumns:
        check_columns(names, needed, _ADVICE)
        return columns.with_taken(names)

    library = type(data).__module__.partition(".")[0]
    if library in ("pandas", "polars") and hasattr(data, "to_frame"):  # one column of a frame
        data = data.to_frame(text_field)
    if isinstance(data, Mapping) and data and all(map(_is_column, data.values())):
        lists = {name: list(values) for name, values in data.items()}
        _check_lengths(lists)
        return checked(lists).columns(make(_rows_of(lists)))
    if isinstance(data, str | Mapping):
        taken = () if isinstance(data, str) else data
        return next(columns.with_taken(taken).rows(make([data])))
    if isinstance(data, list | tuple):
        rows = [{text_field: row} if isinstance(row, str) else row for row in data]
        fields = [row for row in rows if isinstance(row, Mapping)]
        if fields:
            check_columns(dict.fromkeys(name for row in fields for name in row), needed, _ADVICE)
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


def _is_column(values: Any) -> bool:
    is_listed = isinstance(values, Sequence) or hasattr(values, "__array__") or hasattr(values, "to_pylist")
    return is_listed and not isinstance(values, str | bytes)


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
