"""`csv_rows` and `parquet_rows`: the rows of CSV files (RFC 4180, UTF-8, all values strings) and of Parquet files (pyarrow, 256 rows at a
time; dates, times and decimals become strings). A row with a wrong number of cells, other bytes than UTF-8, or a value that JSON lacks, is
a row with an error; no columns, or equal or reserved names, raise `SetupError`.

Columns with images may have bytes, and dicts with bytes, as `datasets.Image` writes them; their digest is in that of the row.

`RowSource`: iterates over the rows of a file or of the standard input: JSON Lines or text, CSV or Parquet. A format that is not given
follows from the file name, on the standard input from the first line that is not blank (JSON object or text); a row that cannot be used is
an `InputRow` with an error.

A line ends with a line feed; blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from outlines_cont.errors import OutlinesContError
from outlines_cont.pipelines.outcome import (
    OUTPUT_FIELDS,
    InputError,
    InputFormat,
    InputRow,
    RowError,
    SetupError,
    check_fields,
    digest_of,
    plain,
)

_MAX_CELL = 1 << 26
_BATCH = 256
_PARQUET = "reading and writing Parquet needs pyarrow: `pip install 'outlines-cont[parquet]'`"


@contextmanager
def csv_reader(file: BinaryIO) -> Iterator[Any]:
    """Yield a reader of a CSV file in UTF-8; the file is left open.

    Cells are separated by commas; by semicolons or tabs, as spreadsheets write them in many countries, where the first line has such and no
    comma.
    """
    csv.field_size_limit(_MAX_CELL)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        first = text.readline()
        delimiter = next((one for one in ",;\t" if one in first), ",")
        yield csv.reader(chain([first] if first else [], text), delimiter=delimiter)
    finally:
        text.detach()


def csv_rows(file: BinaryIO) -> Iterator[InputRow]:
    """Yield the rows of a CSV file (RFC 4180, UTF-8, with a header) as texts; `SetupError` if the header cannot be used.

    Not by `pyarrow.csv`: it does not know the lines of rows, refuses a file with one byte that is not UTF-8, and cells beyond its block.
    """
    with csv_reader(file) as reader:
        header: list[str] = next(reader, [])
        _check_columns(header)
        line = reader.line_num + 1
        for cells in reader:
            line, first = reader.line_num + 1, line
            if not cells:
                continue
            digest, error = _digest([header, cells]), None
            if len(cells) != len(header):
                error = RowError(f"expected {len(header)} cells, as the header names, got {len(cells)}")
            elif not _is_utf8(cells):
                error = RowError("expected UTF-8, got other bytes. Save the file as UTF-8.")
            fields = dict(zip(header, cells, strict=True)) if error is None else {}
            yield InputRow(first, digest, fields, error)


def _is_utf8(cells: Sequence[str]) -> bool:
    """Whether no bytes of other encodings were read, as lone surrogates."""
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True


def parquet_rows(path: Path, images: Collection[str] = ()) -> Iterator[InputRow]:
    """Yield the rows of a Parquet file, numbered from 1. Dates and decimals become texts. At most 256 rows are in memory.

    The columns `images` are read as they are.

    Raises:
        SetupError: it is not a Parquet file, a column cannot be used, or pyarrow is not installed.
    """
    file = parquet_file(path)
    _check_columns(file.schema_arrow.names)
    rows = (fields for batch in file.iter_batches(batch_size=_BATCH) for fields in batch.to_pylist())
    for line, fields in enumerate(rows, start=1):
        try:
            fields = {name: value if name in images else plain(value, name) for name, value in fields.items()}
            json.dumps(fields, allow_nan=False, default=_shortened)
        except ValueError as error:
            wrong = error if isinstance(error, RowError) else RowError(f"expected values that JSON has: {error}")
            yield InputRow(line, _digest(repr(fields)), error=wrong)
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
    return digest_of(json.dumps(value, default=_shortened).encode())


def _shortened(value: Any) -> str:
    """Return a digest in place of the bytes of an image."""
    if not isinstance(value, bytes):
        raise RowError(f"expected a path or bytes in a column of images, got {type(value).__name__}")
    return digest_of(value)


STDIN = "-"
_SUFFIXES = {
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".txt": InputFormat.TXT,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
}


class RowSource:
    """The rows of a file or of the standard input.

    Args:
        path: a file, or `-` for `stdin`.
        input_format: the format. `AUTO` infers it from the name of a file (.jsonl or .ndjson, .txt, .csv, .parquet), of the standard input
            from the first line that is not blank: if it is a JSON object, all lines are JSON, otherwise all are text.
        text_field: the name of the field for a line of text.
        stdin: the standard input, as bytes; None for a file.
        images: the columns with images.

    Attributes:
        path: the file; None for the standard input.

    Raises:
        SetupError: the file does not exist, or its format cannot be inferred from its name.
    """

    def __init__(
        self,
        path: str,
        input_format: InputFormat,
        text_field: str,
        stdin: BinaryIO | None,
        images: Collection[str] = (),
    ) -> None:
        self._images = images
        self.path = None if path == STDIN else Path(path)
        self._stdin = stdin
        self._text_field = text_field
        self._format = input_format
        if self.path is None:
            if input_format is InputFormat.PARQUET:
                raise SetupError("expected a file with --input-format parquet, got the standard input. Name the file.")
            return
        try:
            if self.path.is_file() or self.path.is_dir() or not self.path.exists():  # a pipe can be opened only once
                self.path.open("rb").close()
        except OSError as error:
            raise SetupError(
                f"expected a file of messages, but {path!r} cannot be read: {error.strerror}. "
                "Give a .jsonl, .txt, .csv or .parquet file (on the command line, - is the standard input)."
            ) from error
        if input_format is InputFormat.AUTO:
            self._format = _SUFFIXES.get(self.path.suffix.lower(), InputFormat.AUTO)
        if self._format is InputFormat.AUTO:
            raise SetupError(
                f"expected a name that ends in .jsonl, .txt, .csv or .parquet, got {path!r}. Say what it holds with --input-format."
            )

    @property
    def is_repeatable(self) -> bool:
        """Whether the rows can be read again; those of a stream cannot."""
        return self.path is not None and self.path.is_file()

    def count(self) -> int | None:
        """Return the number of rows of a file, None for a stream. Cost: one pass over the file."""
        if self.path is None or not self.path.is_file():
            return None
        if self._format is InputFormat.PARQUET:
            return int(parquet_file(self.path).metadata.num_rows)
        if self._format is InputFormat.CSV:
            return sum(1 for _ in self)
        with self.path.open("rb") as file:
            return sum(1 for line in file if line.strip())

    def columns(self) -> list[str] | None:
        """Return the fields that every row of a table has; None for other inputs, and for a stream, which is read once."""
        if self.path is None or not self.path.is_file():
            return None
        if self._format is InputFormat.PARQUET:
            return list(parquet_file(self.path).schema_arrow.names)
        if self._format is not InputFormat.CSV:
            return None
        with self.path.open("rb") as file, csv_reader(file) as reader:
            return next(reader, [])

    def __iter__(self) -> Iterator[InputRow]:
        """Yield the rows; `InputError` if the file is corrupt, after the rows before."""
        num_rows = 0
        try:
            for row in self._all():
                num_rows += 1
                yield row
        except OutlinesContError:
            raise
        except Exception as error:  # of a disk, of `csv`, or of pyarrow, whose decoders raise many kinds
            name = "the standard input" if self.path is None else repr(str(self.path))
            raise InputError(
                f"expected rows to the end of {name}, but what follows row {num_rows} cannot be read: {type(error).__name__}: {error}. "
                "Repair the file or make it anew, then run the same command with --resume: rows that are written are kept."
            ) from error

    def _all(self) -> Iterator[InputRow]:
        if self.path is not None and self._format is InputFormat.PARQUET:
            yield from parquet_rows(self.path, self._images)
            return
        with nullcontext(self._stdin) if self.path is None else self.path.open("rb") as file:
            assert file is not None
            if self._format is InputFormat.CSV:
                yield from csv_rows(file)
                return
            for number, line in enumerate(file, start=1):
                data = line.rstrip(b"\r\n")
                if number == 1:
                    data = data.removeprefix(b"\xef\xbb\xbf")
                if data.strip():
                    yield self._row(number, data)

    def _row(self, number: int, data: bytes) -> InputRow:
        if self._format is InputFormat.AUTO:
            self._format = InputFormat.JSONL if _is_object(data) else InputFormat.TXT
        try:
            text = data.decode("utf-8")
            fields = {self._text_field: text} if self._format is InputFormat.TXT else _object(text)
        except UnicodeDecodeError as wrong:
            where = f"byte {data[wrong.start]:#04x} at byte {wrong.start} of the line"
            return InputRow(number, digest_of(data), error=RowError(f"expected UTF-8, got {where}"))
        except RowError as error:
            return InputRow(number, digest_of(data), error=error)
        return InputRow(number, digest_of(data), fields)


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object that can be written again as it was read."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        # Lone surrogates and numbers beyond the range of a float can be read, but not written.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        # The message of `json` itself would name a line: 1, as it sees only this one.
        why = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise RowError(f"expected a line that is a JSON object, got something else: {why}") from error
    if not isinstance(value, dict):
        raise RowError(f"expected a line that is a JSON object, got {type(value).__name__}")
    check_fields(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is there twice")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
