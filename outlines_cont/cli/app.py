"""The command line `outlines-cont` (typer): its commands `demo`, `extract`, `run`, `schema`, `tree` and `chat`, and what they print. Exit
status: 0 success, 1 some row failed, 2 nothing could run, 130 interrupted.

Heavy imports happen inside the commands, so that `--help` and wrong options answer at once.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlines_cont import __version__
from outlines_cont.cli.command import FAILED_ROWS, app, check_picture, command, one_line, plain_warnings, write_picture
from outlines_cont.cli.options import (
    ChatOptions,
    DemoOptions,
    ExtractOptions,
    ProgramOptions,
    SchemaOptions,
    TreeOptions,
)
from outlines_cont.cli.threads import wait_passively
from outlines_cont.pipelines.rows.errors import SetupError

if TYPE_CHECKING:
    from outlines_cont.cli.demo import DemoRow
    from outlines_cont.pipelines.extraction import Outcomes, Tally
    from outlines_cont.pipelines.prompts.template import PromptTemplate
    from outlines_cont.pipelines.rows.schema import RecordSchema

_DEMO_INTRODUCTION = """\
Three generators on one state for each message: choice, JSON, regex. Tokens are
fed to the model, reused from the state, or forced by the constraint. Votes: the
record is sampled again, three times, from a fork of the state; how many samples
agree with it is a hint at how sure the model is.
"""


def main() -> None:
    """Run the command line and exit."""
    wait_passively()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without some character should show a question mark, not end the program.
            stream.reconfigure(errors="replace")
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlines-cont {__version__}")
        raise typer.Exit


@app.callback()
def outlines_cont(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Structured generation on Hugging Face models: chain generators, never feed a token twice."""


@command(DemoOptions, lambda options: "Interrupted; nothing was written.")
def demo(options: DemoOptions) -> None:
    """Read the bundled messages with the bundled model.

    For each message three generators are chained on one state: its kind (choice), the record (JSON of a pydantic model) and
    the due date (regex). The table shows what each step cost: tokens fed to the model, tokens reused from the state, and
    tokens forced by the constraint. Nothing is downloaded.
    """
    from outlines_cont.cli.demo_output import demo_output

    started = time.monotonic()
    with demo_output(options.output) as file:
        from rich.console import Console

        from outlines_cont.cli.demo import Demo, read_messages
        from outlines_cont.cli.demo_table import DemoTable
        from outlines_cont.cli.extractor import load_model
        from outlines_cont.cli.growing import GrowingRecords
        from outlines_cont.cli.threads import set_threads

        model = load_model(None, None, None)
        set_threads(model, 1)
        chain = Demo(model)
        table, growing = DemoTable(Console()), GrowingRecords(Console())
        typer.echo(_DEMO_INTRODUCTION)
        table.print_head()
        rows = []
        for message in read_messages():
            with growing:
                row = chain.read(message, growing.show_one("record")) if options.stream else chain.read(message)
            rows.append(row)
            table.print_row(row)
            file.write(row.to_json() + "\n")
    for line in _demo_summary(rows, time.monotonic() - started, options.output):
        typer.echo(line)
    if any(row.has_failed for row in rows):
        raise typer.Exit(FAILED_ROWS)


def _demo_summary(rows: Sequence[DemoRow], seconds: float, output: Path) -> list[str]:
    from outlines_cont.cli.demo import VOTES

    steps = [step for row in rows for step in row.steps]
    fed, reused = sum(step.fed for step in steps), sum(step.reused for step in steps)
    shared = sum(step.reused for step in steps if step.name == "votes")
    failed = sum(row.has_failed for row in rows)
    return [
        f"{len(rows)} messages, {len(steps)} steps, {seconds:.1f} s"
        + (f"; {failed} messages failed" if failed else ""),
        f"Fed {fed:,} tokens. Re-reading the prompt at each step: {fed + reused:,} tokens ({(fed + reused) / fed:.1f}x).",
        f"Votes: {VOTES} sampled records per message reuse {shared:,} tokens, by slice and fork.",
        f"Records: {output}",
    ]


@command(
    ExtractOptions,
    lambda options: _extract_interrupted(options.output),
    epilog="Example: outlines-cont extract messages.jsonl --schema models:Order --output orders.jsonl",
)
def extract(options: ExtractOptions) -> None:
    """Extract a record from every message of INPUT.

    One JSON object per row comes out, in the order of the input: the fields of the row but the text, `_line` and `_digest` (the
    line of INPUT, and a digest of it and of the options, by which --resume knows it again), and `record`, which conforms to the
    schema, or `error` with `type` and `message`. A row that fails does not stop the others.

    Exit status: 0 every row has a record, 1 some row failed, 2 nothing could run (one line says why), 130 interrupted.
    """
    from rich.console import Console

    from outlines_cont.cli.extract import ExtractCommand
    from outlines_cont.cli.growing import GrowingRecords, advance, progress_bar
    from outlines_cont.generation.lengths import named_lengths

    if options.stream and options.progress:
        raise SetupError("expected --stream or --progress, got both. Leave out one: both are shown at one place.")
    if options.stream and options.has_workers:
        raise SetupError(
            "expected --stream or --workers, got both. Records of other processes are seen when they are whole."
        )
    growing = GrowingRecords(Console(stderr=True)) if options.stream else None
    started = time.monotonic()
    with plain_warnings():
        job = ExtractCommand(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
        if job.unbounded and "max_tokens" not in options.given:
            said = f"{named_lengths(job.unbounded)} may be of any length; a record is cut after {options.max_tokens} tokens."
            typer.echo(f"Note: {said} Say --max-tokens, or bound them in the schema.", err=True)
        with progress_bar(job.tally, False if options.stream else options.progress) as bar:
            say = partial(typer.echo, err=True) if options.verbose and not options.has_workers else None
            # Messages of Ray about its workers must not appear between the rows.
            with redirect_stdout(sys.stderr):
                for tally in job.run(partial(_load_extractor, say=say), growing):
                    advance(bar, tally)
    seconds = time.monotonic() - started
    typer.echo(_extract_summary(job.tally, options.output, seconds, has_workers=options.has_workers), err=True)
    if job.tally.failed:
        raise typer.Exit(FAILED_ROWS)


def _load_extractor(
    options: ExtractOptions, schema: RecordSchema, template: PromptTemplate, say: Callable[[str], None] | None = None
) -> Outcomes:
    from outlines_cont.cli.extractor import load_extractor

    return load_extractor(options, schema, template, say)


def _extract_summary(tally: Tally, output: Path | None, seconds: float, *, has_workers: bool = False) -> str:
    text = f"{tally.skipped + tally.rows} rows, {tally.failed} failed, {seconds:.1f} s"
    if tally.loading_seconds and not has_workers:  # workers load their own models, in parallel
        text += f", {tally.loading_seconds:.1f} of them loading the model"
    if tally.skipped:
        text += f"; {tally.skipped} of them were there already"
    if output is not None:
        text += f"; written to {output}"
    if tally.first_failure is not None:
        text += f". First failure: {one_line(tally.first_failure)}"
    return text


def _extract_interrupted(output: Path | None) -> str:
    from outlines_cont.pipelines.tables.table_output import lines_path

    if output is None:
        return "Interrupted."
    output = lines_path(output)
    if not output.exists():
        return "Interrupted before the first row; nothing was written."
    return f"Interrupted. {output} holds whole lines; to go on, give the same command with --resume."


@command(
    ProgramOptions,
    lambda options: "Interrupted." if options.output is None else f"Interrupted. {options.output} holds whole lines.",
    short_help="Run a program that is a Jinja template.",
    epilog="Example: outlines-cont run program.jinja --set text='Two lamps, please.'",
)
def run(options: ProgramOptions) -> None:
    """Run a program that is a Jinja template: its text is written as it stands, its generators go on from there.

    Without --rows its text is written to the standard output. With --rows many runs share the model, and a line of JSON comes out for
    each row, in their order: its fields, `_line`, and `output` (the text) and `captures`, or `error` with `type` and `message`.

    Exit status: 0 every run has come to its end, 1 some run failed, 2 nothing could run (one line says why), 130 interrupted.
    """
    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.growing import advance, progress_bar
    from outlines_cont.cli.program import ProgramRun, json_fields
    from outlines_cont.cli.sampler import parse_sampler
    from outlines_cont.cli.threads import set_threads

    started = time.monotonic()
    parse_sampler(options.sampler)
    job = ProgramRun(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
    with progress_bar(job.tally, options.progress if job.has_rows else False) as bar:
        model = load_or_refuse(options.model, options.device, options.dtype)
        job.tally.loading_seconds = time.monotonic() - started
        choice = set_threads(model, 8 if job.has_rows else 1)
        if options.verbose:
            typer.echo(str(choice), err=True)
        if job.has_rows:
            for tally in job.rows(model):
                advance(bar, tally)
        else:
            result = job.once(model)
            if result.error is None or result.text:
                typer.echo(json.dumps(json_fields(result), ensure_ascii=False) if options.as_json else result.text)
            if result.error is not None:
                typer.echo(f"Error: {one_line(str(result.error))}", err=True)
                raise typer.Exit(FAILED_ROWS)
            return
    typer.echo(_extract_summary(job.tally, options.output, time.monotonic() - started), err=True)
    if job.tally.failed:
        raise typer.Exit(FAILED_ROWS)


@command(
    SchemaOptions,
    short_help="Say how each keyword of a schema is enforced.",
    epilog="Example: outlines-cont schema order.json --draw order.svg",
)
def schema(options: SchemaOptions) -> None:
    """Say how each keyword of a schema is enforced, and show an example.

    `exact`: the automaton holds it. `checked`: the automaton allows more, the value is checked when it is complete and written
    otherwise where it fails. `annotated`: it rejects nothing, though it looks as if it should. What cannot be read is refused with the
    place and what to do.

    Exit status: 0, or 2 for a schema that is refused.
    """
    from rich.console import Console
    from rich.table import Table

    from fsm import draw
    from outlines_cont.cli.describe import describe
    from outlines_cont.generation.lengths import named_lengths
    from outlines_cont.pipelines.rows.schema import load_schema

    check_picture(options.draw, "draw", ".svg")
    key_order = "any" if options.any_order else "schema"
    expression, found = describe(load_schema(options.source).schema, strict=options.strict, key_order=key_order)
    table = Table("keyword", "where", "enforced", box=None)
    for line in found.report:
        table.add_row(line.keyword, line.pointer, line.level)
    console = Console()
    console.print(table)
    for line in found.report:
        if line.note and line.level != "checked":
            console.print(f"{line.level}: {line.pointer}: {line.note}", markup=False, highlight=False)
    for check in found.checks:
        console.print(f"checked: {check}", markup=False, highlight=False)
    if expression.report.unbounded:
        console.print(
            f"any length: {named_lengths(expression.report.unbounded)}", markup=False, soft_wrap=True, highlight=False
        )
    console.print(f"size: {found.states} states, {found.ways} transitions along the example", highlight=False)
    if found.example is None:
        console.print("no short example was found", highlight=False)
    else:
        note = "" if found.example_passes else "  (fails a check)"
        console.print(f"example: {found.example}{note}", markup=False, highlight=False)
    if options.draw is not None:
        write_picture(draw(expression), options.draw)


@command(
    TreeOptions,
    short_help="Grow a tree of completions in one batch.",
    epilog='Example: outlines-cont tree "Not many people know that" --model Qwen/Qwen3-0.6B --output tree.svg',
)
def tree(options: TreeOptions) -> None:
    """Grow a tree of completions: every leaf becomes two after each 16 tokens, and all leaves run in one batch.

    What completions have in common is computed and held once, so a tree takes as many forwards as its longest completion
    has tokens.

    Exit status: 0, 2 for a wrong option, a model that cannot be loaded or a file that cannot be written, 130 interrupted.
    """
    from rich.console import Console

    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.threads import set_threads
    from outlines_cont.cli.tree import show_growing
    from outlines_cont.conversation.tree import CompletionTree, to_html, to_svg

    prompt = _tree_prompt(options.prompt, options.model)
    if not prompt:
        raise SetupError("expected a text that the tree begins with as PROMPT, got an empty one")
    check_picture(options.output, "output", ".svg", ".html")
    model = load_or_refuse(options.model, options.device, options.dtype)
    set_threads(model, 4)
    grown = CompletionTree(
        model, prompt, depth=options.depth, every=options.every, seed=options.seed, distinct=options.distinct
    )
    started = time.monotonic()
    with model.meter() as meter:
        show_growing(grown, Console())
    leaves, seconds = len(grown.leaves), time.monotonic() - started
    typer.echo(
        f"{leaves} leaves, {grown.num_sampled} tokens sampled in {meter.forwards} forwards (one by one: "
        f"{leaves * options.depth:,}), {seconds:.1f} s; {grown.kv_bytes / 1e6:.1f} MB of keys and values"
    )
    if options.output is not None:
        is_svg = options.output.suffix.lower() == ".svg"
        write_picture(to_svg(grown) if is_svg else to_html(grown), options.output)
        typer.echo(f"Picture: {options.output}")


def _tree_prompt(prompt: str | None, model: str | None) -> str:
    """Return where a tree begins: the bundled model knows messages and records only."""
    if prompt is not None:
        return prompt
    return (
        "Not many people know that" if model is not None else "Message: Please send 12 desk lamps to Porto.\nRecord: "
    )


@command(ChatOptions, epilog="Example: outlines-cont chat Qwen/Qwen3-0.6B --system 'Be short.'")
def chat(options: ChatOptions) -> None:
    """Talk with a chat model; `/help` says what else can be typed.

    After each reply a line shows how many tokens were fed to the model, and how many were kept from what came before. The bundled
    model talks about messages only: it writes their records, and answers short questions.

    Exit status: 0, or 2 for a wrong option, a model that cannot be loaded or has no chat template.
    """
    from outlines_cont.cli.chat import ChatSession, begun_chat, terminal_lines
    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.sampler import make_sampler
    from outlines_cont.cli.threads import set_threads

    sampler = make_sampler(options.sampler)
    model = load_or_refuse(options.model, options.device, options.dtype)
    set_threads(model, 1)
    begun = begun_chat(model, options.template, options.system, options.seed)
    if sys.stdin.isatty():
        typer.echo("Type a message, or /help.")
    ChatSession(begun, sampler, options.max_tokens, sys.stdout).run(terminal_lines())
