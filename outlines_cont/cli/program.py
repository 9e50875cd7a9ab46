"""`ProgramRun`: the command `outlines-cont run`: a template run once, or for each row of an input, many rows together, with a line of JSON
for each in order. A row that is unreadable, has a field of the output or fails while it runs gets a line with an error.

`grow`: the command `outlines-cont tree`: grows a `CompletionTree`, redrawn on a terminal after each step, printed once elsewhere, and on
request written as SVG or HTML.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from outlines_cont.checks import file_text
from outlines_cont.cli.command import check_picture, write_picture
from outlines_cont.cli.options import ProgramOptions, TreeOptions, load_model
from outlines_cont.cli.sampler import make_sampler
from outlines_cont.conversation.tree import CompletionTree, to_html, to_svg, to_text
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


_PROMPT = "Not many people know that"
_PROMPT_OF_BUNDLED = (
    "Message: Please send 12 desk lamps to Porto.\nRecord: "  # its training data are such messages and records
)


def grow(options: TreeOptions) -> None:
    """Grow a tree, show it, and write a picture if there is a file for it."""
    prompt = options.prompt
    if prompt is None:
        prompt = _PROMPT_OF_BUNDLED if options.model is None else _PROMPT
    if not prompt:
        raise SetupError("expected a text that the tree begins with as PROMPT, got an empty one")
    check_picture(options.output, "output", ".svg", ".html")
    model = load_model(options.model, options.device, options.dtype, num_rows=4)
    tree = CompletionTree(
        model, prompt, depth=options.depth, every=options.every, seed=options.seed, distinct=options.distinct
    )
    started = time.monotonic()
    with model.meter() as meter:
        show_growing(tree, Console())
    leaves, seconds = len(tree.leaves), time.monotonic() - started
    typer.echo(
        f"{leaves} leaves, {tree.num_sampled} tokens sampled in {meter.forwards} forwards (one by one: "
        f"{leaves * options.depth:,}), {seconds:.1f} s; {tree.kv_bytes / 1e6:.1f} MB of keys and values"
    )
    if options.output is not None:
        is_svg = options.output.suffix.lower() == ".svg"
        write_picture(to_svg(tree) if is_svg else to_html(tree), options.output)
        typer.echo(f"Picture: {options.output}")


def show_growing(tree: CompletionTree, console: Console) -> None:
    """Grow a tree; show it after every step on a terminal, once elsewhere."""
    if not console.is_terminal:
        for _ in tree.grow():
            pass
        console.print(_picture(tree), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for _ in tree.grow():
            live.update(_picture(tree), refresh=True)
    console.print(_picture(tree))


def _picture(tree: CompletionTree) -> Text:
    # `Text` is not read as markup.
    return Text(to_text(tree), no_wrap=True, overflow="ellipsis")
