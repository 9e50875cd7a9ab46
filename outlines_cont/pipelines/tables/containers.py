"""`extracted`: records in the same kind of container as the rows: list, dict of columns, pandas or polars frame, Arrow table or Hugging
Face dataset (which keeps its own columns). A single row gives one record, any other iterable a lazy iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from outlines_cont.errors import OptionError
from outlines_cont.pipelines.rows.outcome import Outcome
from outlines_cont.pipelines.rows.row import check_columns
from outlines_cont.pipelines.rows.table_rows import pyarrow
from outlines_cont.pipelines.tables.columns import RecordColumns

MakeOutcomes = Callable[[Iterable[Any]], Iterator[Outcome]]
Checked = Callable[[Collection[str]], RecordColumns]
"""Checks the names of an input's columns, and returns the columns of its records."""
_ADVICE = " Name the column of the message with `text_field=`; `allow_missing=` is for those that the template tests."
_BATCH = 256
_EXPECTED = (
    "expected a list of texts or dicts, a dict of columns, a frame of pandas or polars, "
    "a table of pyarrow or a dataset of Hugging Face"
)


def extracted(data: Any, text_field: str, needed: Sequence[str], columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the records of the rows `data` in a container of its kind.

    Raises:
        OptionError: it is not a supported container.
        SetupError: it has no column of a name in `needed`, or is a list of rows none of which has such a field.
    """

    def checked(names: Collection[str]) -> RecordColumns:
        check_columns(names, needed, _ADVICE)
        return columns.with_taken(names)

    if isinstance(data, str):
        return next(columns.rows(make([data])))
    if isinstance(data, Mapping):
        return _of_mapping(data, columns.with_taken(data), checked, make)
    if isinstance(data, list | tuple):
        rows = [{text_field: row} if isinstance(row, str) else row for row in data]
        fields = [row for row in rows if isinstance(row, Mapping)]
        if fields:
            check_columns(dict.fromkeys(name for row in fields for name in row), needed, _ADVICE)
        return list(columns.rows(make(rows)))
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "to_dict"):
        return _of_pandas(data.to_frame(text_field) if hasattr(data, "to_frame") else data, checked, make)
    if library == "datasets" and data.column_names is not None:  # a stream may not know them
        return _of_dataset(data, checked(data.column_names), make)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        is_series = library == "polars" and not hasattr(data, "columns")
        table = _of_arrow(data.to_frame(text_field) if is_series else data, checked, make)
        if library != "polars":
            return table
        import polars

        return polars.from_arrow(table)
    if isinstance(data, Iterable):
        return columns.rows(make(data))
    raise OptionError(f"{_EXPECTED}, got {type(data).__name__}", "data")


def _of_mapping(
    data: Mapping[str, Any], columns: RecordColumns, checked: Checked, make: MakeOutcomes
) -> dict[str, Any]:
    """Return columns for columns; the values of one row for one row."""
    lists = {name: list(values) for name, values in data.items() if _is_column(values)}
    if len(lists) < len(data) or not data:
        return next(columns.rows(make([dict(data)])))
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{name!r} {len(values)}" for name, values in lists.items())
        raise OptionError(f"expected columns of one length, got {lengths}", "data")
    checked(lists)
    return columns.columns(make(_rows_of(lists)))


def _is_column(values: Any) -> bool:
    is_listed = isinstance(values, Sequence) or hasattr(values, "__array__") or hasattr(values, "to_pylist")
    return is_listed and not isinstance(values, str | bytes)


def _rows_of(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))


def _of_pandas(frame: Any, checked: Checked, make: MakeOutcomes) -> Any:
    """Return a frame with the same index, whose columns have types of Arrow."""
    import pandas

    names = [*map(str, frame.columns)]
    parts = (frame.iloc[start : start + _BATCH] for start in range(0, len(frame), _BATCH))
    objects = (part.astype(object).where(part.notna(), None) for part in parts)
    rows = (dict(zip(names, row, strict=True)) for part in objects for row in part.itertuples(index=False, name=None))
    found = checked(names).table(make(rows)).to_pandas(types_mapper=pandas.ArrowDtype)
    found.index = frame.index
    return found


def _of_arrow(data: Any, checked: Checked, make: MakeOutcomes) -> Any:
    table = pyarrow().table(data)
    rows = (row for batch in table.to_batches(max_chunksize=_BATCH) for row in batch.to_pylist())
    return checked(table.column_names).table(make(rows))


def _of_dataset(data: Any, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the dataset with the columns added, typed by the schema, as all records of the first batch may be null."""
    from datasets import Features

    names = list(data.column_names)
    return data.map(
        lambda batch: columns.columns(make(_rows_of({name: batch[name] for name in names}))),
        batched=True,
        batch_size=1000,
        features=Features({**data.features, **Features.from_arrow_schema(columns.schema())}),
    )
