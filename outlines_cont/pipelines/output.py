"""`file_output`: JSON lines written to a file without buffering, which is locked; after an exception an incomplete line is truncated.
`check_output` refuses a path in advance; to resume, `match_done` compares an earlier output with the input and settings, and each line with
the digest of itself that `signed_line` gave it, and counts the bytes of its whole lines; `match_table` does so with a finished table.
`stream_output` writes to a stream.

`table_output`: output as CSV or Parquet: rows are first written to `NAME.part.jsonl`, which can be resumed; after the last row the table
is made from it in two passes (columns and types, then values) and renamed to its final name (atomic). Records in Parquet have the type of
the schema if it names all members and all records fit; other types are unified from the values, or else JSON text.
"""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO, IOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from outlines_cont.pipelines.columns import ObjectShape, Shape
from outlines_cont.pipelines.outcome import InputRow, OutputError, SetupError, digest_of, listed
from outlines_cont.pipelines.reading import pyarrow
from outlines_cont.pipelines.record_schema import unchanged

try:
    import fcntl
except ImportError:  # on Windows; two runs that write one file are not noticed there
    fcntl = None  # type: ignore[assignment]

LINES_SUFFIXES = (".jsonl", ".ndjson")
_MAX_SHOWN = 120  # characters of a setting

WriteLine = Callable[[bytes], None]
"""Writes one line, its line end included."""


def json_line(fields: Mapping[str, Any]) -> bytes:
    """Return a line of JSON in UTF-8; lone surrogates are replaced by `?`."""
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


def signed_line(fields: Mapping[str, Any]) -> bytes:
    """Return a line whose `_digest` ends in a digest of the line without it, so that an edited line is noticed."""
    return json_line({**fields, "_digest": f"{fields['_digest']}-{digest_of(json_line(fields))}"})


def _lock(file: IOBase | BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed, or the process ends; `SetupError` if another run has locked it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SetupError(
            f"expected an output that no other run writes, but one is writing {str(path)!r}. Wait for it, or name another file."
        ) from error
    except OSError:  # a file system without locks
        return


Stamp = tuple[int, int, int, int]
"""Which file a path names, and when it was written last: device, number, bytes, and nanoseconds."""


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of a file that exists. Take it before the file is read, and give it to `file_output`."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_unchanged(path: Path, seen: Stamp | None) -> None:
    """Raise `SetupError` unless a file that is locked is as it was when this run read it; `seen` is None if it did not."""
    if seen is not None and (not path.exists() or stamp_of(path) != seen):
        raise SetupError(
            f"expected an output that no other run writes, but {str(path)!r} has changed since this one has read it. "
            "Run the command again with `resume=True` (--resume)."
        )


@contextmanager
def stream_output(stream: BinaryIO) -> Iterator[WriteLine]:
    """Yield a function that writes lines to a binary stream, and flushes it after each."""

    def write(line: bytes) -> None:
        stream.write(line)
        stream.flush()

    yield write


@contextmanager
def file_output(path: Path, keep: int | None, seen: Stamp | None = None) -> Iterator[WriteLine]:
    """Yield a function that writes lines to a file, unbuffered, and locked. However the block ends, the file has only whole lines.

    `keep` is how many of its first bytes stay, whole lines; None for a file that must not exist yet. `seen` is the stamp of a file that
    was read, as the model is loaded between reading and writing: its lock is not held meanwhile.

    Raises:
        SetupError: the file cannot be opened, another run is writing it, or has written it since it was read; before the block begins.
        OutputError: the system refuses a line, for example because the disk is full.
    """
    end = keep or 0
    try:
        file = FileIO(path, "xb" if keep is None else "r+b")
    except OSError as error:
        raise SetupError(f"expected an output that can be written, but {str(path)!r}: {error.strerror}") from error

    def write(line: bytes) -> None:
        nonlocal end
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise OutputError(
                f"writing to {str(path)!r} failed: {error.strerror}. The lines before that are complete."
            ) from error
        end += len(line)

    with file:
        _lock(file, path)
        _check_unchanged(path, seen)
        file.truncate(end)
        file.seek(end)
        try:
            yield write
        finally:
            if file.tell() != end:
                # An interrupt or a full disk between two parts of a write: remove the incomplete line.
                file.truncate(end)


def check_output(
    path: Path,
    input_path: Path | None,
    *,
    resume: bool | None,
    overwrite: bool,
    suffixes: Sequence[str] = LINES_SUFFIXES,
) -> None:
    """Raise `SetupError` if `path` cannot be the output, before anything runs; its name ends in one of `suffixes`.

    `resume` is None if no output can be resumed.
    """
    check_suffix(path, suffixes)
    folder = path.parent
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise SetupError(f"expected a path for the output, but {str(path)!r}: {error.strerror}") from error
    if mode is None and not folder.is_dir():
        raise SetupError(
            f"expected an output in a folder that exists, got {str(path)!r}. Make the folder {str(folder)!r} first."
        )
    if mode is not None and not stat.S_ISREG(mode):
        raise SetupError(
            f"expected a file as the output, but {str(path)!r} is a folder or a device. Name a file in it."
        )
    if mode is not None and input_path is not None and input_path.exists() and os.path.samefile(path, input_path):
        raise SetupError(f"expected an output other than the input, got {str(path)!r} for both")
    if mode is not None and not (resume or overwrite):
        how = "" if resume is None else "resume with `resume=True` (--resume), "
        raise SetupError(
            f"the output {str(path)!r} exists: {how}replace it with `overwrite=True` (--overwrite), or name another file."
        )
    if not (os.access(folder, os.W_OK | os.X_OK) if mode is None else os.access(path, os.W_OK)):
        place = f"the folder {str(folder)!r}" if mode is None else repr(str(path))
        raise SetupError(f"expected an output that can be written, but {place} is read-only for you")


def check_suffix(path: Path, suffixes: Sequence[str] = LINES_SUFFIXES) -> None:
    """Raise `SetupError` for a file whose name ends in none of `suffixes`: its content would not be what the name says."""
    if path.suffix.lower() not in suffixes and not path.is_dir():
        raise SetupError(f"expected an output whose name ends in {listed(suffixes)}, got {str(path)!r}")


def shown_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return those settings that are set, by name, as texts for an error; a long one has a digest in place of its end."""
    found = {}
    for name, value in settings.items():
        text = repr(value)
        if value is not None and value is not False and value not in ("", []):
            is_long = len(text) > _MAX_SHOWN
            found[name] = f"{text[:_MAX_SHOWN]}... ({digest_of(text.encode('utf-8', 'replace'))})" if is_long else text
    return found


def settings_path(lines: Path) -> Path:
    """Return the hidden file beside an output that has the settings of its run, for the error of a run that has others."""
    return lines.with_name(f".{lines.name}.settings.json")


def keep_settings(lines: Path, shown: Mapping[str, str]) -> None:
    """Write the settings of a run beside its output; if they cannot be written, errors will not name them."""
    with suppress(OSError):
        settings_path(lines).write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


def _differences(lines: Path, now: Mapping[str, str]) -> str:
    """Return which settings differ from those that `keep_settings` has kept, and how; an empty text if there are none."""
    try:
        before = json.loads(settings_path(lines).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(before, dict):
        return ""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = [f"`{name}` was {before.get(name, 'not set')}, and is {now.get(name, 'not set')}" for name in names]
    return f": {'; '.join(shown)}" if shown else ""


def match_done(path: Path, rows: Iterator[InputRow], settings: str, shown: Mapping[str, str]) -> tuple[int, int, int]:
    """Take the rows of the input that the output `path` of an earlier run has, and count them.

    `settings` is the digest of those of this run, `shown` their `shown_settings`.

    Returns:
        The number of rows, the number of those with an error, and the bytes of their lines; any bytes after these are an unfinished line.

    Raises:
        SetupError: the file is not such an output, one of its lines was edited, its input or the settings have changed since, or another
            run is writing it.
    """
    done, failed, size = 0, 0, 0
    with path.open("r+b") as file:
        _lock(file, path)
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            where = f"line {number} of {str(path)!r}"
            fields = _line_fields(line, where)
            row = next(rows, None)
            _check_row(fields, row, number, where, settings, lambda: _differences(path, shown))
            if line != signed_line({**fields, "_digest": fields["_digest"].rpartition("-")[0]}):
                told = f"expected lines as a run has written them, but {where} was edited, or is of an earlier version. Restore it"
                raise SetupError(f"{told}, {_AGAIN}")
            done, failed, size = done + 1, failed + ("error" in fields), size + len(line)
    return done, failed, size


def match_table(path: Path, rows: Iterator[InputRow], settings: str) -> tuple[int, int]:
    """Check that a table is what this input and these settings give, and return how many rows it has, and how many of them failed.

    Raises:
        SetupError: it is not, or the input has more rows by now.
    """
    done = failed = 0
    for fields in _table_rows(path):
        done += 1
        where = f"row {done} of {str(path)!r}"
        _check_row(fields, next(rows, None), done, where, settings, lambda: "")
        failed += bool(fields.get("error"))
    more = next(rows, None)
    if more is not None:
        raise SetupError(
            f"the table {str(path)!r} is complete, and the input has grown: its line {more.line} is not in the table. To continue an "
            "output when the input grows, write to a .jsonl file; to make the table anew, pass `overwrite=True` (--overwrite)."
        )
    return done, failed


def _table_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield `_digest`, `_line` and `error` of the rows of a table."""
    wrong = SetupError(
        f"expected a table of an earlier run to continue, but {str(path)!r} is none. Name another file, {_AGAIN}"
    )
    try:
        if path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {**row, "_line": int(row.get("_line") or -1), "_digest": row.get("_digest") or ""}
        else:
            table = pyarrow().parquet.ParquetFile(path)
            names = [name for name in ("_digest", "_line", "error") if name in table.schema_arrow.names]
            if "_digest" not in names:
                raise wrong
            for batch in table.iter_batches(columns=names):
                yield from batch.to_pylist()
    except (OSError, ValueError, csv.Error) as error:  # those of pyarrow are of `ValueError`
        raise wrong from error


_AGAIN = "or start again with `overwrite=True` (--overwrite)."


def _check_row(
    fields: Mapping[str, Any],
    row: InputRow | None,
    number: int,
    where: str,
    settings: str,
    differences: Callable[[], str],
) -> None:
    """Raise `SetupError` unless a row of an output was made of a row of the input with these settings."""
    digest, old_settings, _ = f"{fields['_digest']}--".split("-", 2)
    wrong = ""
    if row is None:
        wrong = (
            f"expected an input with at least {number} rows, as many as the output has, got {number - 1}: {where} is beyond its end. "
            "Give the same input as before"
        )
    elif digest != row.digest or fields.get("_line") != row.line:
        wrong = (
            f"expected the input that the output was made of, but line {row.line} of the input is not what {where} was made of. "
            "Give the same input as before"
        )
    elif old_settings != settings:
        wrong = (
            "expected the schema, model, prompt and options that the output was made with, but "
            f"{where} was made with others{differences()}. Give the same ones, name another file"
        )
    if wrong:
        raise SetupError(f"{wrong}, {_AGAIN}")


def _line_fields(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("_digest"), str):
        raise SetupError(
            f"expected an output of an earlier run to continue, but {where} is not a line of one. "
            "Name another file, or start again with `overwrite=True` (--overwrite)."
        )
    return fields


_CHUNK = 1000  # rows in memory
TABLE_SUFFIXES = (".csv", ".parquet")


def lines_path(output: Path) -> Path:
    """Return the file of lines that an output is written to first; the output itself unless it is a table."""
    return output.with_name(f"{output.name}.part.jsonl") if output.suffix.lower() in TABLE_SUFFIXES else output


@contextmanager
def table_output(
    path: Path, keep: int | None, shape: Shape | None = None, seen: Stamp | None = None
) -> Iterator[WriteLine]:
    """Yield a function that writes lines to `lines_path(path)`; when the block ends without an error, make the table from them.

    `keep`, `seen` and the errors are those of `file_output`. Without a shape the types of Parquet are inferred from the values.
    """
    lines, new = lines_path(path), path.with_name(f"{path.name}.new")
    with file_output(lines, keep, seen) as write:  # it stays locked until the table is there
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
    settings_path(lines).unlink(missing_ok=True)


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        yield from map(json.loads, file)


def _write_csv(lines: Path, path: Path) -> None:
    """Write a column for each field of a record, nested values as JSON, in two passes over the lines with one of them in memory."""
    columns = dict.fromkeys(name for row in _rows(lines) for name in _cells(row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_cells, _rows(lines)))


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in ("record", "error")}
    record = {"record": row["record"]} if "record" in row else {}
    values = record["record"] if isinstance(record.get("record"), dict) else record
    for name, value in values.items():
        found[f"record.{name}" if name in row or name in ("error", "record.error") else name] = value
    if "error" in row:
        found["error"] = f"{row['error']['type']}: {row['error']['message']}"
    return {
        name: value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in found.items()
    }


def _write_parquet(lines: Path, path: Path, shape: Shape | None) -> None:
    """Write `record`, `error` and `_details` as structs, and a column whose values have no common type as JSON; in two passes."""
    arrow = pyarrow()
    kinds: dict[str, Any] = {}
    for rows in _chunks(lines):
        for name in dict.fromkeys(name for row in rows for name in row):
            kinds[name] = _common(arrow, kinds.get(name, arrow.null()), [row.get(name) for row in rows])
        shape = shape if shape is not None and _fits(shape, rows) else None
    as_json = partial(json.dumps, ensure_ascii=False)
    converts = {name: as_json if kind is None else unchanged for name, kind in kinds.items()}
    kinds = {name: arrow.string() if kind is None else kind for name, kind in kinds.items()}
    # An open object has members that its shape does not name.
    if shape is not None and "record" in kinds and not (isinstance(shape, ObjectShape) and shape.is_open):
        kinds["record"], converts["record"] = shape.arrow(), shape.convert
    with arrow.parquet.ParquetWriter(path, arrow.schema([*kinds.items()])) as writer:
        for rows in _chunks(lines):
            cells = {
                name: [None if row.get(name) is None else convert(row[name]) for row in rows]
                for name, convert in converts.items()
            }
            writer.write_table(arrow.table(cells, schema=writer.schema))


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


def _has_empty_struct(arrow: Any, kind: Any) -> bool:
    """Whether a type contains a struct without fields, which Parquet does not have."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return (arrow.types.is_struct(kind) and not fields) or any(_has_empty_struct(arrow, field.type) for field in fields)
