"""`csv_rows` and `parquet_rows`: the rows of CSV files (RFC 4180, UTF-8, all values strings) and of Parquet files (pyarrow, 256 rows at a
time; dates, times and decimals become strings). A row with a wrong number of cells, other bytes than UTF-8, or a value that JSON lacks, is
a row with an error; no columns, or equal or reserved names, raise `SetupError`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from outlines_cont.pipelines.rows.errors import RowError, SetupError
from outlines_cont.pipelines.rows.row import OUTPUT_FIELDS, InputRow, digest_of, plain

_MAX_CELL = 1 << 26
_BATCH = 256
_PARQUET = "reading and writing Parquet needs pyarrow: `pip install 'outlines-cont[parquet]'`"


@contextmanager
def csv_reader(file: BinaryIO) -> Iterator[Any]:
    """Yield a reader of a CSV file in UTF-8; the file is left open."""
    csv.field_size_limit(_MAX_CELL)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield csv.reader(text)
    finally:
        text.detach()


def csv_rows(file: BinaryIO) -> Iterator[InputRow]:
    """Yield the rows of a CSV file (RFC 4180, UTF-8, with a header) as texts; `SetupError` where the header cannot be used."""
    with csv_reader(file) as reader:
        header: list[str] = next(reader, [])
        _check_columns(header)
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                yield _csv_row(line, header, cells)
            line = reader.line_num + 1


def _csv_row(line: int, header: Sequence[str], cells: Sequence[str]) -> InputRow:
    digest = _digest([header, cells])
    if len(cells) != len(header):
        error = RowError(f"expected {len(header)} cells, as the header names, got {len(cells)}")
        return InputRow(line, digest, error=error)
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 are read as lone surrogates
        return InputRow(line, digest, error=RowError("expected UTF-8, got other bytes. Save the file as UTF-8."))
    return InputRow(line, digest, dict(zip(header, cells, strict=True)))


def parquet_rows(path: Path) -> Iterator[InputRow]:
    """Yield the rows of a Parquet file, numbered from 1. Dates and decimals become texts. At most 256 rows are in memory.

    Raises:
        SetupError: it is not a Parquet file, a column cannot be used, or pyarrow is not installed.
    """
    file = parquet_file(path)
    _check_columns(file.schema_arrow.names)
    rows = (fields for batch in file.iter_batches(batch_size=_BATCH) for fields in batch.to_pylist())
    for line, fields in enumerate(rows, start=1):
        try:
            fields = {name: plain(value, name) for name, value in fields.items()}
            json.dumps(fields, allow_nan=False)
        except RowError as error:
            yield InputRow(line, _digest(repr(fields)), error=error)
        except ValueError as error:
            yield InputRow(line, _digest(repr(fields)), error=RowError(f"expected values that JSON has: {error}"))
        else:
            yield InputRow(line, _digest(fields), fields)


def _check_columns(names: Sequence[str]) -> None:
    if not names:
        raise SetupError("expected a table whose first line names its columns, got an empty file")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise SetupError(f"expected columns of different names, got {twice!r} twice. Rename one of them.")
    taken = next((name for name in names if name in OUTPUT_FIELDS), None)
    if taken is not None:
        raise SetupError(
            f"expected a table without the column {taken!r}, which is one of the output. Rename it in the input."
        )


def pyarrow() -> Any:
    """Return the package, or raise `SetupError` if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SetupError(_PARQUET) from error
    return pyarrow


def parquet_file(path: Path) -> Any:
    """Return a `pyarrow.parquet.ParquetFile`, or raise `SetupError` if it cannot be read."""
    arrow = pyarrow()
    try:
        return arrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except (OSError, arrow.ArrowException) as error:
        raise SetupError(f"expected a Parquet file, but {str(path)!r} cannot be read as one: {error}") from error


def _digest(value: Any) -> str:
    return digest_of(json.dumps(value).encode())
