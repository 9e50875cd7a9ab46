"""`ProgramRun`: the command `outlines-cont run`: a template run once, or for each row of an input, many rows together, with a line of JSON
for each in order. A row that is unreadable, has a field of the output or fails while it runs gets a line with an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from outlines_cont.checks import file_text
from outlines_cont.cli.options import ProgramOptions
from outlines_cont.cli.sampler import make_sampler
from outlines_cont.jinja_sandbox import TemplateBudget
from outlines_cont.models.hugging_face import HuggingFaceModel
from outlines_cont.pipelines.extraction import Tally
from outlines_cont.pipelines.outcome import Failure, InputRow, RowError, SetupError, check_fields
from outlines_cont.pipelines.output import WriteLine, check_output, file_output, json_line, stream_output
from outlines_cont.pipelines.reading import STDIN, RowSource
from outlines_cont.templates.program import TemplateResult
from outlines_cont.templates.template import Template

PROGRAM_FIELDS = ("_line", "output", "captures", "error")
"""The fields that the output adds to those of a row."""


def parse_values(settings: Sequence[str]) -> dict[str, str]:
    """Return the values of `--set NAME=VALUE` by name; a value `@FILE` is the text of a file. Raise `SetupError` for wrong ones."""
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise SetupError(f"expected --set NAME=VALUE, got {setting!r}")
        if name in values:
            raise SetupError(f"expected each name once, got --set {name}=... twice")
        values[name] = file_text(value[1:], "after the @ of --set", SetupError) if value.startswith("@") else value
    return values


class ProgramRun:
    """One call of `outlines-cont run`; with an input it `has_rows`. Its constructor raises for wrong options and templates."""

    def __init__(self, options: ProgramOptions, *, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._options = options
        self._values = parse_values(options.settings or [])
        self._stdout = stdout
        self._template = Template.from_file(options.template, special=True)
        self._template.check_values(self._values)
        self._has_output = options.output is not None and options.output.exists()
        if options.rows is None and options.output is not None:
            raise SetupError("expected --rows with --output, got none: one run writes its text to the standard output")
        if options.output is not None:
            input_path = None if options.rows in (None, STDIN) else Path(str(options.rows))
            check_output(options.output, input_path, resume=False, overwrite=options.overwrite)
        self._source = None if options.rows is None else RowSource(options.rows, options.input_format, "text", stdin)
        self.has_rows = self._source is not None
        self.tally = Tally(None if self._source is None else self._source.count())

    def once(self, model: HuggingFaceModel) -> TemplateResult:
        """Run the template once."""
        return self._template.run(model, [{}], **self._given())[0]

    def rows(self, model: HuggingFaceModel) -> Iterator[Tally]:
        """Run the template for each row, write a line for each in their order, and yield the tally after each."""
        assert self._source is not None
        waiting: deque[InputRow] = deque()
        with self._opened() as write:
            for result in self._template.iterate(model, _usable(self._source, waiting), **self._given()):
                while waiting[0].error is not None:
                    yield self._write(write, waiting[0], waiting.popleft().error)
                yield self._write(write, waiting.popleft(), result)
            for row in waiting:
                yield self._write(write, row, row.error)

    def _given(self) -> dict[str, Any]:
        options = self._options
        budget = TemplateBudget(tokens=options.max_tokens)
        return {"sampler": make_sampler(options.sampler), "rng": options.seed, "budget": budget, **self._values}

    def _opened(self) -> AbstractContextManager[WriteLine]:
        if self._options.output is None:
            return stream_output(self._stdout)
        return file_output(self._options.output, 0 if self._has_output else None)

    def _write(self, write: WriteLine, row: InputRow, result: Any) -> Tally:
        error = result if isinstance(result, Exception) else result.error
        failure = None if error is None else Failure.of(error)
        added = json_fields(result) if failure is None else {"error": asdict(failure)}
        write(json_line({**row.fields, "_line": row.line, **added}))
        self.tally.count(row.line, failure)
        return self.tally


def json_fields(result: TemplateResult) -> dict[str, Any]:
    """Return a result as JSON."""
    return {"output": result.text, "captures": dict(result.captures)}


def _usable(source: RowSource, waiting: deque[InputRow]) -> Iterator[dict[str, Any]]:
    """Yield the fields of usable rows; all rows are appended to `waiting`."""
    for row in source:
        try:
            check_fields(row.fields, PROGRAM_FIELDS)
        except RowError as error:
            row = InputRow(row.line, row.digest, {}, error)
        waiting.append(row)
        if row.error is None:
            yield row.fields
