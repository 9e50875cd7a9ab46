"""`table_output`: output as CSV or Parquet: rows are first written to `NAME.part.jsonl`, which can be resumed; after the last row the table
is made from it in two passes (columns and types, then values) and renamed to its final name (atomic). Records in Parquet have the type of
the schema if it names all members and all records fit; other types are unified from the values, or else JSON text.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from outlines_cont.pipelines.rows.errors import OutputError
from outlines_cont.pipelines.rows.table_rows import pyarrow
from outlines_cont.pipelines.tables.output import WriteLine, file_output
from outlines_cont.pipelines.tables.shape import ObjectShape, Shape

_CHUNK = 1000  # rows in memory
TABLE_SUFFIXES = (".csv", ".parquet")


def lines_path(output: Path) -> Path:
    """Return the file of lines that an output is written to first; the output itself unless it is a table."""
    return output.with_name(f"{output.name}.part.jsonl") if output.suffix.lower() in TABLE_SUFFIXES else output


@contextmanager
def table_output(path: Path, keep: int | None, shape: Shape | None = None) -> Iterator[WriteLine]:
    """Yield a function that writes lines to `lines_path(path)`; when the block ends without an error, make the table from them.

    `keep` and the errors are those of `file_output`. Without a shape of the records the types of Parquet are inferred from the values.
    """
    lines, new = lines_path(path), path.with_name(f"{path.name}.new")
    with file_output(lines, keep) as write:  # it stays locked until the table is there
        yield write
        try:
            if path.suffix.lower() == ".csv":
                _write_csv(lines, new)
            else:
                _write_parquet(lines, new, shape)
            os.replace(new, path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise OutputError(
                f"writing to {str(path)!r} failed: {error.strerror}. {str(lines)!r} holds all rows; the same command with "
                "--resume tries again."
            ) from error
    lines.unlink()


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        yield from map(json.loads, file)


def _write_csv(lines: Path, path: Path) -> None:
    """Write a column for each field of a record, nested values as JSON, in two passes over the lines with one of them in memory."""
    columns: dict[str, None] = {}
    for row in _rows(lines):
        columns.update(dict.fromkeys(_cells(row)))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_cells, _rows(lines)))


def _cells(row: dict[str, Any]) -> dict[str, str]:
    found = {name: value for name, value in row.items() if name not in ("record", "error")}
    record = row.get("record")
    values = record if isinstance(record, dict) else {"record": record} if "record" in row else {}
    for name, value in values.items():
        found[f"record.{name}" if name in row or name in ("error", "record.error") else name] = value
    if "error" in row:
        found["error"] = f"{row['error']['type']}: {row['error']['message']}"
    return {name: _cell(value) for name, value in found.items()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_parquet(lines: Path, path: Path, shape: Shape | None) -> None:
    """Write `record`, `error` and `_details` as structs, and a column whose values have no common type as JSON; in two passes."""
    arrow = pyarrow()
    kinds: dict[str, Any] = {}
    for rows in _chunks(lines):
        for name in dict.fromkeys(name for row in rows for name in row):
            kinds[name] = _common(arrow, kinds.get(name, arrow.null()), [row.get(name) for row in rows])
        shape = shape if shape is not None and _fits(shape, rows) else None
    if isinstance(shape, ObjectShape) and shape.is_open:
        shape = None  # the schema does not name all members
    if shape is not None and "record" in kinds:
        kinds["record"] = shape.arrow()
    schema = arrow.schema([(name, arrow.string() if kind is None else kind) for name, kind in kinds.items()])
    with arrow.parquet.ParquetWriter(path, schema) as writer:
        for rows in _chunks(lines):
            columns = [_column(arrow, name, kind, rows, shape) for name, kind in kinds.items()]
            writer.write_table(arrow.table(columns, schema=schema))


def _fits(shape: Shape, rows: list[dict[str, Any]]) -> bool:
    """Whether all records can be converted; an integer may be beyond 64 bits."""
    try:
        for row in rows:
            if row.get("record") is not None:
                shape.convert(row["record"])
    except (ValueError, ArithmeticError):
        return False
    return True


def _chunks(lines: Path) -> Iterator[list[dict[str, Any]]]:
    rows = _rows(lines)
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk


def _common(arrow: Any, kind: Any, values: list[Any]) -> Any:
    """Return the common type of `kind` and of values; None if there is none, or `kind` is None: then they are written as JSON."""
    if kind is None:
        return None
    try:
        schemas = [arrow.schema([("", one)]) for one in (kind, arrow.array(values).type)]
        common = arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
        arrow.array(values, type=common)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError):
        return None
    return None if _has_empty_struct(arrow, common) else common


def _column(arrow: Any, name: str, kind: Any, rows: list[dict[str, Any]], shape: Shape | None) -> Any:
    values = [row.get(name) for row in rows]
    if name == "record" and shape is not None:
        return arrow.array([None if value is None else shape.convert(value) for value in values], type=kind)
    if kind is None:
        return arrow.array([None if value is None else json.dumps(value, ensure_ascii=False) for value in values])
    return arrow.array(values, type=kind)


def _has_empty_struct(arrow: Any, kind: Any) -> bool:
    """Whether a type contains a struct without fields, which Parquet does not have."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return (arrow.types.is_struct(kind) and not fields) or any(_has_empty_struct(arrow, field.type) for field in fields)
