"""Output as a table. Rows go to a file of lines beside it; when all are there, the table is made of it, and it goes away.

So an interrupt loses nothing, and a table is never half.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlines_cont.pipelines.errors import OutputError
from outlines_cont.pipelines.output import FileOutput
from outlines_cont.pipelines.table_rows import pyarrow

TABLE_SUFFIXES = (".csv", ".parquet")


def lines_path(output: Path) -> Path:
    """Return the file of lines that an output is written to first; the output itself where it is no table."""
    return output.with_name(f"{output.name}.part.jsonl") if output.suffix.lower() in TABLE_SUFFIXES else output


class TableOutput:
    """A table that appears when all of its rows are there.

    Args:
        path: the table, `.csv` or `.parquet`.
        keep: as for `FileOutput`, of the file of lines.
    """

    def __init__(self, path: Path, keep: int | None) -> None:
        self._path = path
        self._lines = FileOutput(lines_path(path), keep)

    def __enter__(self) -> Self:
        self._lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.__exit__(kind, error, trace)
        if kind is None:
            write_table(lines_path(self._path), self._path)
            lines_path(self._path).unlink()

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines to the file of lines."""
        self._lines.write(lines)


def write_table(lines: Path, path: Path) -> None:
    """Make a table of lines of output.

    Raises:
        OutputError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        if path.suffix.lower() == ".csv":
            _write_csv(lines, new)
        else:
            _write_parquet(lines, new)
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OutputError(
            f"writing to {str(path)!r} failed: {error.strerror}. {str(lines)!r} holds all rows; the same command with --resume tries again."
        ) from error


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        yield from map(json.loads, file)


def _write_csv(lines: Path, path: Path) -> None:
    """A column for each field of a record; what is nested as JSON. Cost: two passes over the lines, of which one is held at a time."""
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


def _write_parquet(lines: Path, path: Path) -> None:
    """`record` and `error` are structs; a column whose values have no type in common holds JSON. Cost: all rows are held at once."""
    arrow = pyarrow()
    rows = list(_rows(lines))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column(arrow, [row.get(name) for row in rows]) for name in names}
    arrow.parquet.write_table(arrow.table(columns), path)


def _column(arrow: Any, values: list[Any]) -> Any:
    try:
        column = arrow.array(values)
        if not _has_empty_struct(arrow, column.type):
            return column
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError):
        pass
    return arrow.array([None if value is None else json.dumps(value, ensure_ascii=False) for value in values])


def _has_empty_struct(arrow: Any, kind: Any) -> bool:
    """Whether a type has a struct without fields, which Parquet cannot hold."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return (arrow.types.is_struct(kind) and not fields) or any(_has_empty_struct(arrow, field.type) for field in fields)
