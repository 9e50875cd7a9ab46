"""`Extraction`: records of many messages, row by row, from an input to an output.

What needs no model is checked when an extraction is made; the model is loaded when it runs. See `docs/cli.md` for the shape
of input and output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Protocol, runtime_checkable

import fsm
from outlines_cont import __version__
from outlines_cont.commands.errors import RowError, SetupError
from outlines_cont.commands.growing import GrowingRecords, ShowRecord
from outlines_cont.commands.options import ExtractOptions
from outlines_cont.commands.output import Done, FileOutput, Output, StreamOutput, check_output, match_done
from outlines_cont.commands.row import InputRow
from outlines_cont.commands.rows import STDIN, RowSource
from outlines_cont.commands.sampler import parse_sampler
from outlines_cont.commands.schema import RecordSchema, load_schema
from outlines_cont.commands.table_output import TableOutput, lines_path
from outlines_cont.commands.table_rows import pyarrow
from outlines_cont.commands.template import CHAT_SOURCE, DEFAULT_SOURCE, PromptTemplate


class Extract(Protocol):
    """From prompts to one value or error each; see `extractor`."""

    def __call__(self, prompts: list[str], show: ShowRecord | None = None) -> list[Any]:
        """Return a value, or an `Exception`, for every prompt; show the values while they are written."""


@runtime_checkable
class MarksRows(Protocol):
    """An `Extract` that keeps what is written in a row from becoming a special token."""

    def marked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row as the template is to get them."""


@dataclass(slots=True)
class Tally:
    """How far an extraction has come.

    Attributes:
        total: rows of the input, None for a stream.
        skipped: rows that the output held already.
        rows: rows written by this run.
        failed: rows with an error, earlier ones included.
        first_failure: the first of this run, as one line; None where there is none.
        loading_seconds: how long it took to load the model.
    """

    total: int | None
    skipped: int = 0
    rows: int = 0
    failed: int = 0
    first_failure: str | None = None
    loading_seconds: float = 0.0


class Extraction:
    """One run of `outlines-cont extract`.

    Raises:
        SetupError, fsm.FSMError: an option cannot be used. The output is untouched.
    """

    def __init__(self, options: ExtractOptions, *, stdin: BinaryIO, stdout: BinaryIO) -> None:
        _check_options(options)
        self.options = options
        self._stdout = stdout
        source = RowSource(options.input, options.input_format, options.text_field, stdin)
        self._template = (
            PromptTemplate(_default_source(options))
            if options.prompt is None
            else PromptTemplate.from_file(options.prompt)
        )
        self.schema = load_schema(options.schema)
        # A bad one is told before a model is loaded.
        self.unbounded = fsm.json_schema(self.schema.schema, **options.schema_options).report.unbounded
        parse_sampler(options.sampler)
        self._settings = _settings_digest(options, self._template, self.schema)
        self._lines_path = None if options.output is None else lines_path(options.output)
        self._has_output = self._lines_path is not None and self._lines_path.exists()
        self.tally = Tally(source.count())
        self._check_columns(source.columns())
        self._rows = iter(source)
        self._done = Done()
        if self._lines_path is not None and options.resume and self._has_output:
            self._done = match_done(self._lines_path, self._rows, self._settings)
            self.tally.skipped, self.tally.failed = self._done.rows, self._done.failed

    def run(self, load: LoadExtract, growing: GrowingRecords | None = None) -> Iterator[Tally]:
        """Load the model, write the rows batch by batch, and yield the tally after each; show the records while they are written.

        Whatever stops it, the output holds whole lines.
        """
        rows = self._rows
        first = next(rows, None)
        if first is not None:
            # Nothing is loaded for an output that is complete.
            started = monotonic()
            extract = load(self.options, self.schema)
            self.tally.loading_seconds = monotonic() - started
        with self._output() as output:
            if first is None:
                return
            for batch in _batches(chain([first], rows), self.options.batch_size):
                lines = self._lines(batch, extract, growing)
                output.write(lines)
                self.tally.rows += len(lines)
                yield self.tally

    def _check_columns(self, columns: list[str] | None) -> None:
        """Refuse a table that has no column of the messages, where the template asks for one."""
        name = self.options.text_field
        if columns is None or name in columns or "text" not in self._template.names:
            return
        known = ", ".join(map(repr, columns[:12])) + (", ..." if len(columns) > 12 else "")
        raise SetupError(
            f"expected a table with the column {name!r}, got one with {known}. Name the column of the message with --text-field."
        )

    def _output(self) -> Output:
        if self.options.output is None:
            return StreamOutput(self._stdout)
        keep = self._done.size if self._has_output else None
        is_table = self._lines_path != self.options.output
        return TableOutput(self.options.output, keep) if is_table else FileOutput(self.options.output, keep)

    def _lines(self, rows: list[InputRow], extract: Extract, growing: GrowingRecords | None) -> list[bytes]:
        results = [self._prompt(row, extract) for row in rows]
        good = [at for at, result in enumerate(results) if isinstance(result, str)]
        if good:
            prompts = [results[at] for at in good]
            if growing is None:
                values = extract(prompts)
            else:
                with growing:
                    values = extract(prompts, _shower(growing, [rows[at].line for at in good]))
            for at, value in zip(good, values, strict=True):
                results[at] = self._dumped(value)
        return [self._line(row, result) for row, result in zip(rows, results, strict=True)]

    def _prompt(self, row: InputRow, extract: Extract) -> Any:
        """Return the prompt of a row, or the error that it has."""
        if row.error is not None:
            return row.error
        try:
            values = self._values(row.fields)
            return self._template.render(extract.marked(values) if isinstance(extract, MarksRows) else values)
        except RowError as error:
            return error

    def _values(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what a template may name.

        Raises:
            RowError: the text is missing, blank or no text.
        """
        name = self.options.text_field
        values = {**fields, "row": fields, "schema": self.schema.json_schema}
        if name not in fields:
            if "text" in self._template.names:
                known = ", ".join(repr(key) for key in list(fields)[:12]) or "no fields"
                raise RowError(
                    f"expected a field {name!r}, got {known}. Name the field of the message with --text-field."
                )
            return values
        text = fields[name]
        if not isinstance(text, str) or not text.strip():
            got = "a blank one" if isinstance(text, str) else type(text).__name__
            raise RowError(f"expected a text in the field {name!r}, got {got}")
        return {**values, "text": text}

    def _dumped(self, value: Any) -> Any:
        if isinstance(value, Exception):
            return value
        try:
            record = self.schema.dump(value)
            json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except Exception as error:
            # A serializer of the user's class may raise anything, or return what is not JSON; only this row is lost.
            return error
        return _Record(record)

    def _line(self, row: InputRow, result: Any) -> bytes:
        text_field, keep_text = self.options.text_field, self.options.keep_text
        fields = {name: value for name, value in row.fields.items() if keep_text or name != text_field}
        fields |= {"_line": row.line, "_digest": f"{row.digest}-{self._settings}"}
        if isinstance(result, _Record):
            fields["record"] = result.value
        else:
            fields["error"] = {"type": type(result).__name__, "message": str(result)}
            self.tally.failed += 1
            if self.tally.first_failure is None:
                self.tally.first_failure = f"line {row.line}: {type(result).__name__}: {result}"
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


class LoadExtract(Protocol):
    """Makes an `Extract` of options; it may take long."""

    def __call__(self, options: ExtractOptions, schema: RecordSchema) -> Extract:
        """Load the model and compile the schema for it."""


def _shower(growing: GrowingRecords, lines: list[int]) -> ShowRecord:
    """Return what shows the records of some lines of the input."""
    return lambda number, value, is_whole: growing.show(f"line {lines[number]}", value, is_whole)


@dataclass(frozen=True, slots=True)
class _Record:
    """A finished record, told apart from a prompt and an error."""

    value: Any


def _default_source(options: ExtractOptions) -> str:
    """Return the prompt of a command that names none."""
    if not options.chat:
        return DEFAULT_SOURCE
    return CHAT_SOURCE if options.model is not None else "{{ text }}"  # the bundled model knows messages alone


def _check_options(options: ExtractOptions) -> None:
    if options.system is not None and not options.chat:
        raise SetupError(
            "expected --chat beside --system, got none. Without --chat a prompt is plain text; write what the system says into the "
            "template of --prompt."
        )
    if options.resume and options.overwrite:
        raise SetupError(
            "expected --resume or --overwrite, got both. --resume keeps what the output holds, --overwrite does not."
        )
    if options.output is None and (options.resume or options.overwrite):
        raise SetupError(
            "expected --output FILE beside --resume or --overwrite, got none: the standard output has no earlier rows."
        )
    if options.model is not None:
        _check_model(options.model)
    if options.output is not None:
        input_path = None if options.input == STDIN else Path(options.input)
        check_output(options.output, input_path, resume=options.resume, overwrite=options.overwrite)
        if lines_path(options.output) != options.output:
            _check_table(options)


def _check_table(options: ExtractOptions) -> None:
    """Check a table and the file of lines beside it."""
    assert options.output is not None
    lines = lines_path(options.output)
    if options.output.suffix.lower() == ".parquet":
        pyarrow()
    if options.resume and options.output.exists() and not lines.exists():
        raise SetupError(
            f"the table {str(options.output)!r} is complete. To go on with it when the input has grown, write to a .jsonl file; to make it "
            "anew, pass --overwrite."
        )
    check_output(lines, None, resume=options.resume, overwrite=options.overwrite)


def _check_model(name: str) -> None:
    """Tell a path that does not exist from a hub id, which only the hub knows."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path and not Path(name).exists():
        raise SetupError(
            f"the model {name!r} cannot be loaded: there is no such folder. Give a hub id, or a folder with config, weights and "
            "tokenizer."
        )


def _settings_digest(options: ExtractOptions, template: PromptTemplate, schema: RecordSchema) -> str:
    """Return 12 hexadecimal digits that change with anything that decides a record beside its row."""
    model = options.model or f"bundled {__version__}"
    parts = [
        schema.json_schema,
        template.source,
        model,
        options.dtype,
        options.max_tokens,
        options.schema_options,
        [options.sampler, options.seed],
        options.text_field,
        options.keep_text,
        *((options.chat, options.system) if options.chat else ()),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _batches(rows: Iterator[InputRow], size: int) -> Iterator[list[InputRow]]:
    while batch := list(islice(rows, size)):
        yield batch
