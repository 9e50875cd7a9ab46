"""`run_program`: the command `outlines-cont run`: a template run once, or for each row of an input, many rows together, with a line of JSON
for each in order. A row that is unreadable, has a field of the output or fails while it runs gets a line with an error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from outlines_cont.checks import file_text
from outlines_cont.cli.console import in_words_of_shell, one_line, parse_sampler
from outlines_cont.cli.growing import progress_bar, summary
from outlines_cont.cli.model import load_model, make_sampler
from outlines_cont.cli.options import ProgramOptions
from outlines_cont.jinja_sandbox import TemplateBudget
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
        if os.path.isfile(value):
            typer.echo(
                f"Note: {name} is the text {value!r}. To give the text of the file write --set {name}=@{value}",
                err=True,
            )
    return values


def run_program(options: ProgramOptions) -> bool:
    """Run the template once, or for each row, and return whether each run is complete; wrong options raise before a model is loaded."""
    started = time.monotonic()
    parse_sampler(options.sampler)
    values = parse_values(options.settings or [])
    template = Template.from_file(options.template, special=True)
    template.check_values(values)
    keep = 0 if options.output is not None and options.output.exists() else None
    if options.rows is None and options.output is not None:
        raise SetupError("expected --rows with --output, got none: one run writes its text to the standard output")
    if options.output is not None:
        input_path = None if options.rows in (None, STDIN) else Path(str(options.rows))
        check_output(options.output, input_path, resume=None, overwrite=options.overwrite)
    source = None if options.rows is None else RowSource(options.rows, options.input_format, "text", sys.stdin.buffer)
    tally = Tally(None if source is None else source.count())
    with progress_bar(tally, options.progress if source is not None else False) as show:
        num_rows = 1 if source is None else 8
        model = load_model(
            options.model,
            options.device,
            options.dtype,
            fused=options.fused,
            deterministic=options.deterministic,
            num_rows=num_rows,
            verbose=options.verbose,
        )
        tally.loading_seconds = time.monotonic() - started
        given: dict[str, Any] = {
            "sampler": make_sampler(options.sampler),
            "rng": options.seed,
            "budget": TemplateBudget(tokens=options.max_tokens),
        }
        if source is None:
            return _show_run(template.run(model, [values], **given)[0], options.as_json)
        waiting: deque[InputRow] = deque()
        with stream_output(sys.stdout.buffer) if options.output is None else file_output(options.output, keep) as write:
            for row, result in _in_order(waiting, template.iterate(model, _usable(source, waiting, values), **given)):
                _write(write, row, result, tally)
                show(tally)
    typer.echo(summary(tally, options.output, time.monotonic() - started), err=True)
    return not tally.failed


def _show_run(result: TemplateResult, as_json: bool) -> bool:
    """Print the only run, as text or as JSON, and its error; return whether it has none."""
    if result.error is None or result.text:
        typer.echo(json.dumps(json_fields(result), ensure_ascii=False) if as_json else result.text)
    if result.error is not None:
        typer.echo(f"Error: {one_line(in_words_of_shell(str(result.error), ()))}", err=True)
    return result.error is None


def _in_order(waiting: deque[InputRow], results: Iterator[TemplateResult]) -> Iterator[tuple[InputRow, Any]]:
    """Yield each row with its result, or with the error that kept it from running."""
    for result in results:
        while waiting[0].error is not None:
            yield waiting[0], waiting.popleft().error
        yield waiting.popleft(), result
    for row in waiting:
        yield row, row.error


def _write(write: WriteLine, row: InputRow, result: Any, tally: Tally) -> None:
    error = result if isinstance(result, Exception) else result.error
    failure = None if error is None else Failure.of(error)
    added = json_fields(result) if failure is None else {"error": asdict(failure)}
    write(json_line({**row.fields, "_line": row.line, **added}))
    tally.count(row.line, failure)


def json_fields(result: TemplateResult) -> dict[str, Any]:
    """Return a result as JSON."""
    return {"output": result.text, "captures": dict(result.captures)}


def _usable(source: RowSource, waiting: deque[InputRow], values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of usable rows beside the values of all rows; all rows are appended to `waiting`."""
    for row in source:
        try:
            check_fields(row.fields, PROGRAM_FIELDS)
        except RowError as error:
            row = InputRow(row.line, row.digest, {}, error)
        waiting.append(row)
        if row.error is None:
            yield {**values, **row.fields}
