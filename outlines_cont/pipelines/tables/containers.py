"""`extracted`: records in the same kind of container as the rows: list, dict of columns, pandas or polars frame, Arrow table or Hugging
Face dataset (which keeps its own columns). A single row gives one record, any other iterable a lazy iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from outlines_cont.errors import OptionError
from outlines_cont.pipelines.rows.outcome import Outcome
from outlines_cont.pipelines.rows.table_rows import pyarrow
from outlines_cont.pipelines.tables.columns import RecordColumns

MakeOutcomes = Callable[[Iterable[Any]], Iterator[Outcome]]
_EXPECTED = (
    "expected a list of texts or dicts, a dict of columns, a frame of pandas or polars, "
    "a table of pyarrow or a dataset of Hugging Face"
)


def extracted(data: Any, text_field: str, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return the records of `data` in a container of its kind.

    Args:
        data: rows.
        text_field: the field with the message.
        columns: those of the records.
        make: turns rows into outcomes.

    Raises:
        OptionError: it is not a supported container of rows.
    """
    if isinstance(data, str):
        return next(columns.rows(make([data])))
    if isinstance(data, Mapping):
        return _of_mapping(data, columns.with_taken(list(data)), make)
    if isinstance(data, list | tuple):
        return list(columns.rows(make(data)))
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "to_dict"):
        return _of_pandas(data.to_frame(text_field) if hasattr(data, "to_frame") else data, columns, make)
    if library == "datasets":
        return _of_dataset(data, columns.with_taken(data.column_names), make)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        is_series = library == "polars" and not hasattr(data, "columns")
        table = _of_arrow(data.to_frame(text_field) if is_series else data, columns, make)
        if library != "polars":
            return table
        import polars

        return polars.from_arrow(table)
    if isinstance(data, Iterable):
        return columns.rows(make(data))
    raise OptionError(f"{_EXPECTED}, got {type(data).__name__}", "data")


def _of_mapping(data: Mapping[str, Any], columns: RecordColumns, make: MakeOutcomes) -> dict[str, Any]:
    """Return columns for columns; the values of one row for one row."""
    lists = {name: list(values) for name, values in data.items() if _is_column(values)}
    if len(lists) < len(data) or not data:
        return next(columns.rows(make([dict(data)])))
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{name!r} {len(values)}" for name, values in lists.items())
        raise OptionError(f"expected columns of one length, got {lengths}", "data")
    return columns.columns(make(_rows_of(lists)))


def _is_column(values: Any) -> bool:
    is_listed = isinstance(values, Sequence) or hasattr(values, "__array__") or hasattr(values, "to_pylist")
    return is_listed and not isinstance(values, str | bytes)


def _rows_of(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))


def _of_pandas(frame: Any, columns: RecordColumns, make: MakeOutcomes) -> Any:
    """Return a frame with the same index, whose columns have types of Arrow."""
    import pandas

    names = [*map(str, frame.columns)]
    rows = (dict(zip(names, map(_plain, row), strict=True)) for row in frame.itertuples(index=False, name=None))
    found = columns.with_taken(names).table(make(rows)).to_pandas(types_mapper=pandas.ArrowDtype)
    found.index = frame.index
    return found


def _plain(value: Any) -> Any:
    """Return a value of a frame as a Python object; a missing value as None."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    elif hasattr(value, "tolist"):
        return value.tolist()
    return None if value is None or value != value else value


def _of_arrow(data: Any, columns: RecordColumns, make: MakeOutcomes) -> Any:
    table = pyarrow().table(data)
    rows = (row for batch in table.to_batches(max_chunksize=256) for row in batch.to_pylist())
    return columns.with_taken(table.column_names).table(make(rows))


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
