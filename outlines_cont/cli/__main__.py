"""The command line `outlines-cont` (typer): its commands `demo`, `extract`, `run`, `schema` and `chat`, and their messages. Exit
status: 0 success, 1 some row failed or the output was closed, 2 an error ended the command (mostly before any row), 130 interrupted.

Heavy imports happen inside the commands, so that `--help` and wrong options do not wait for them.
"""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlines_cont import __version__
from outlines_cont.cli.command import FAILED_ROWS, app, command, one_line, plain_warnings
from outlines_cont.cli.options import (
    ChatOptions,
    DemoOptions,
    Draft,
    ExtractOptions,
    ProgramOptions,
    SchemaOptions,
)
from outlines_cont.errors import NoChatTemplate
from outlines_cont.pipelines.outcome import SetupError

if TYPE_CHECKING:
    from outlines_cont.pipelines.extraction import Outcomes, Tally
    from outlines_cont.pipelines.prompt_template import PromptTemplate
    from outlines_cont.pipelines.record_schema import RecordSchema


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks becomes a question mark, not an error.
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
        from outlines_cont.cli.demo_table import show_demo

        has_failed = show_demo(options, file, started)
    if has_failed:
        raise typer.Exit(FAILED_ROWS)


@command(
    ExtractOptions,
    lambda options: _extract_interrupted(options.output),
    epilog="Example: outlines-cont extract messages.jsonl --schema models:Order --output orders.jsonl",
)
def extract(options: ExtractOptions) -> None:
    """Extract a record from every message of INPUT.

    One JSON object per row is written, in the order of the input: the fields of the row but the text, `_line` and `_digest` (the
    line of INPUT, and a digest of it and of the options, by which --resume recognises it), and `record`, which conforms to the
    schema, or `error` with `type` and `message`. A row that fails does not stop the others.

    Exit status: 0 every row has a record, 1 some row failed, 2 nothing could run (one line tells the reason), 130 interrupted.
    """
    from rich.console import Console

    from outlines_cont.cli.extract import ExtractCommand
    from outlines_cont.cli.growing import GrowingRecords, progress_bar
    from outlines_cont.generation.options import named_lengths

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
            limit = f"may be of any length; a record is cut after {options.max_tokens} tokens"
            note = f"Note: {named_lengths(job.unbounded)} {limit}. Say --max-tokens, or bound them in the schema."
            typer.echo(note, err=True)
        progress = progress_bar(job.tally, False if options.stream else options.progress)
        # Messages of Ray about its workers must not appear between the rows.
        with progress as show, redirect_stdout(sys.stderr):
            for tally in job.run(_load_extractor, growing):
                show(tally)
    seconds = time.monotonic() - started
    typer.echo(_extract_summary(job.tally, options.output, seconds, has_workers=options.has_workers), err=True)
    if job.tally.failed:
        raise typer.Exit(FAILED_ROWS)


def _load_extractor(options: ExtractOptions, schema: RecordSchema, template: PromptTemplate) -> Outcomes:
    from outlines_cont.cli.chat import begun_chat
    from outlines_cont.cli.options import load_model
    from outlines_cont.cli.sampler import make_sampler
    from outlines_cont.pipelines.extractor import Extractor

    sampler = make_sampler(options.sampler)
    verbose = options.verbose and not options.has_workers
    model = load_model(options.model, options.device, options.dtype, num_rows=options.batch_size, verbose=verbose)
    try:
        chat = begun_chat(model, None, options.system, options.seed) if options.chat else None
    except NoChatTemplate as error:
        raise SetupError(
            f"expected a model with a chat template with --chat, got {options.model!r}, whose tokenizer has none. Leave out --chat, and "
            "say in the template of --prompt what the model is to do."
        ) from error
    return Extractor(
        model,
        schema,
        template,
        allow_missing=options.missing,
        text_field=options.text_field,
        max_tokens=options.max_tokens,
        sampler=sampler,
        seed=options.seed,
        batch_size=options.batch_size,
        chat=chat,
        draft=None if options.draft is Draft.NONE else options.draft.value,
        samples=options.samples,
        is_scored=options.has_details,
        **options.schema_options,
    )


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
    from outlines_cont.pipelines.output import lines_path

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
    """Run a program that is a Jinja template: its text is written unchanged, and its generators continue it.

    Without --rows its text is written to the standard output. With --rows many runs share the model, and a line of JSON is written for
    each row, in their order: its fields, `_line`, and `output` (the text) and `captures`, or `error` with `type` and `message`.

    Exit status: 0 every run is complete, 1 some run failed, 2 nothing could run (one line tells the reason), 130 interrupted.
    """
    from outlines_cont.cli.growing import progress_bar
    from outlines_cont.cli.options import load_model
    from outlines_cont.cli.program import ProgramRun, json_fields
    from outlines_cont.cli.sampler import parse_sampler

    started = time.monotonic()
    parse_sampler(options.sampler)
    job = ProgramRun(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
    with progress_bar(job.tally, options.progress if job.has_rows else False) as show:
        num_rows = 8 if job.has_rows else 1
        model = load_model(options.model, options.device, options.dtype, num_rows=num_rows, verbose=options.verbose)
        job.tally.loading_seconds = time.monotonic() - started
        if job.has_rows:
            for tally in job.rows(model):
                show(tally)
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
    from outlines_cont.cli.options import describe

    describe(options)


@command(ChatOptions, epilog="Example: outlines-cont chat Qwen/Qwen3-0.6B --system 'Be short.'")
def chat(options: ChatOptions) -> None:
    """Talk with a chat model; `/help` says what else can be typed.

    After each reply a line shows how many tokens were fed to the model, and how many were kept from what came before. The bundled
    model talks about messages only: it writes their records, and answers short questions.

    Exit status: 0, or 2 for a wrong option, a model that cannot be loaded or has no chat template.
    """
    from outlines_cont.cli.chat import ChatSession, begun_chat, terminal_lines
    from outlines_cont.cli.options import load_model
    from outlines_cont.cli.sampler import make_sampler

    sampler = make_sampler(options.sampler)
    model = load_model(options.model, options.device, options.dtype)
    begun = begun_chat(model, options.template, options.system, options.seed)
    if sys.stdin.isatty():
        typer.echo("Type a message, or /help.")
    ChatSession(begun, sampler, options.max_tokens, sys.stdout).run(terminal_lines())


if __name__ == "__main__":
    main()
