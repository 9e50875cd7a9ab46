"""The command line `outlines-cont` (typer): options and output of `demo`, `extract`, `run`, `schema`, `tree` and `chat`.

Heavy imports happen inside the commands, so that `--help` and wrong options answer at once.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlines_cont import __version__
from outlines_cont.cli.options import Draft, DType, ExtractOptions, Whitespace
from outlines_cont.cli.threads import wait_passively
from outlines_cont.defaults import DEFAULT_MAX_TOKENS
from outlines_cont.errors import OutlinesContError, shortened
from outlines_cont.pipelines.rows.row import InputFormat

if TYPE_CHECKING:
    from outlines_cont.cli.demo import DemoRow
    from outlines_cont.cli.program import ProgramOptions
    from outlines_cont.pipelines.extraction import Outcomes, Tally
    from outlines_cont.pipelines.prompts.template import PromptTemplate
    from outlines_cont.pipelines.rows.schema import RecordSchema

_FAILED_ROWS, _UNUSABLE, _INTERRUPTED = 1, 2, 130
_LONGEST_ERROR = 600
_DEMO_INTRODUCTION = """\
Three generators on one state for each message: choice, JSON, regex. Tokens are
fed to the model, reused from the state, or forced by the constraint. Votes: the
record is sampled again, three times, from a fork of the state; how many samples
agree with it is a hint at how sure the model is.
"""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


InputOption = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Messages: a .jsonl file (a `text` field per line, the rest is carried over), a .csv or .parquet table (with a `text` "
        "column), a .txt file (a message per line), or - for the standard input (JSON lines if the first line is a JSON object, else "
        "text).",
    ),
]
SchemaOption = Annotated[
    str,
    typer.Option(
        "--schema",
        "-s",
        metavar="FILE.json|module:Class",
        help="What a record is: a JSON Schema file, or a pydantic model (module:Class, looked up in the current directory "
        "first, or FILE.py:Class).",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="HUB_ID|PATH",
        help="A Hugging Face causal language model.",
        show_default="the bundled one",
    ),
]
PromptOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt",
        "-p",
        metavar="TEMPLATE.jinja",
        help="A Jinja template of the prompt. It may use {{ text }}, any other field of the row, {{ row }} (all fields) and "
        "{{ schema }} (the JSON Schema).",
        show_default=r'"Message: {{ text }}\nRecord: "; with --chat a request for a JSON object, with the schema',
    ),
]
ChatOption = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="The prompt is a message of the user, in the chat template of the model; the record is the reply.",
    ),
]
SystemOption = Annotated[str | None, typer.Option(metavar="TEXT", help="How the model is to behave.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT.jsonl|.csv|.parquet",
        help="Where to write: lines of JSON, or a table, made when all rows are there.",
        show_default="standard output",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with OUT.jsonl: skip the rows that it holds. Starts from the beginning if it does not exist.",
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace OUT.jsonl if it exists.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, metavar="N", help="Rows that run together.")]
MaxTokensOption = Annotated[int, typer.Option(min=1, metavar="N", help="The most tokens of a record.")]
TextFieldOption = Annotated[str, typer.Option(metavar="NAME", help="The field of a JSON row that holds the message.")]
KeepTextOption = Annotated[bool, typer.Option("--keep-text", help="Write the message beside the record, too.")]
InputFormatOption = Annotated[InputFormat, typer.Option(help="What the lines of INPUT are; auto goes by its name.")]
DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Where the model runs, such as cuda or mps.", show_default="cpu")
]
DTypeOption = Annotated[DType | None, typer.Option(help="Float type of the weights.", show_default="the checkpoint's")]
AnyOrderOption = Annotated[bool, typer.Option("--any-order", help="Allow the members of an object in any order.")]
SamplerOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="How tokens are chosen: greedy, multinomial, 'multinomial(temperature=0.7, top_p=0.9)'."
    ),
]
DraftOption = Annotated[
    Draft, typer.Option(help="Speculative decoding by prompt lookup: the same records in fewer forwards.")
]
SeedOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Of the random numbers. A row's record depends on it and on its prompt alone."
    ),
]
SamplesOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Sample N more records for each row, and say for each value how many have the same."
    ),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Write log-probabilities, tokens and agreement beside each record.")
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write a page on what came out, with what to look at first.")
]
GoldOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The field of a row that holds the right record, for the report.")
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json", help="What agreement is worth: the chance that a value is right stands beside it."
    ),
]
SaveCalibrationOption = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Learn that from --gold and --samples, for other messages.")
]
WorkersOption = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Processes that run the model, each with its own. More than one need Ray."),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A cluster of Ray, such as auto.", show_default="this machine"),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say what was chosen, such as the number of threads.")
]
WhitespaceOption = Annotated[Whitespace, typer.Option(help="Spaces after : and , of the JSON that the model writes.")]
ProgressOption = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress", help="A progress bar on the standard error.", show_default="on a terminal"
    ),
]
StreamOption = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Show records while they are written, on the standard error: a table that grows on a terminal, else a line for "
        "each field that is whole. The output stays whole lines.",
    ),
]


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


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the records, one JSON object per line.")
    ] = Path("records.jsonl"),
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Show each record while it is written: growing on a terminal, else a line for each field that is whole.",
        ),
    ] = False,
) -> None:
    """Read the bundled messages with the bundled model.

    For each message three generators are chained on one state: its kind (choice), the record (JSON of a pydantic model) and
    the due date (regex). The table shows what each step cost: tokens fed to the model, tokens reused from the state, and
    tokens forced by the constraint. Nothing is downloaded.
    """
    with _one_line_errors(lambda: "Interrupted; nothing was written."):
        _demo(output, stream)


@app.command(epilog="Example: outlines-cont extract messages.jsonl --schema models:Order --output orders.jsonl")
def extract(
    context: typer.Context,
    input: InputOption,
    schema: SchemaOption,
    model: ModelOption = None,
    prompt: PromptOption = None,
    chat: ChatOption = False,
    system: SystemOption = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    batch_size: BatchSizeOption = 32,
    max_tokens: MaxTokensOption = DEFAULT_MAX_TOKENS,
    text_field: TextFieldOption = "text",
    keep_text: KeepTextOption = False,
    input_format: InputFormatOption = InputFormat.AUTO,
    device: DeviceOption = None,
    dtype: DTypeOption = None,
    whitespace: WhitespaceOption = Whitespace.ONE_SPACE,
    any_order: AnyOrderOption = False,
    sampler: SamplerOption = "greedy",
    seed: SeedOption = 0,
    draft: DraftOption = Draft.NONE,
    samples: SamplesOption = 0,
    details: DetailsOption = False,
    report: ReportOption = None,
    gold: GoldOption = None,
    calibration: CalibrationOption = None,
    save_calibration: SaveCalibrationOption = None,
    workers: WorkersOption = 1,
    ray_address: RayAddressOption = None,
    progress: ProgressOption = None,
    stream: StreamOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Extract a record from every message of INPUT.

    One JSON object per row comes out, in the order of the input: the fields of the row but the text, `_line` and `_digest` (the
    line of INPUT, and a digest of it and of the options, by which --resume knows it again), and `record`, which conforms to the
    schema, or `error` with `type` and `message`. A row that fails does not stop the others.

    Exit status: 0 every row has a record, 1 some row failed, 2 nothing could run (one line says why), 130 interrupted.
    """
    options = ExtractOptions(
        input=input,
        schema=schema,
        model=model,
        prompt=prompt,
        chat=chat,
        system=system,
        output=output,
        resume=resume,
        overwrite=overwrite,
        batch_size=batch_size,
        max_tokens=max_tokens,
        text_field=text_field,
        keep_text=keep_text,
        input_format=input_format,
        device=device,
        dtype=dtype,
        whitespace=whitespace,
        any_order=any_order,
        sampler=sampler,
        seed=seed,
        draft=draft,
        samples=samples,
        details=details,
        report=report,
        gold=gold,
        calibration=calibration,
        save_calibration=save_calibration,
        workers=workers,
        ray_address=ray_address,
    )
    with _one_line_errors(lambda: _extract_interrupted(output)):
        _extract(options, progress, stream, verbose, has_limit=_is_given(context, "max_tokens"))


@app.command(
    short_help="Run a program that is a Jinja template.",
    epilog="Example: outlines-cont run program.jinja --set text='Two lamps, please.'",
)
def run(
    template: Annotated[
        Path,
        typer.Argument(
            metavar="TEMPLATE.jinja",
            help="A Jinja template with generators: gen, choice, json, grammar. Special tokens in its text are such tokens, those in "
            "values are letters.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A value, a text; @FILE is the text of a file. May be repeated."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            "-r",
            metavar="INPUT",
            help="Run once for each row: a .jsonl, .csv, .parquet or .txt file (a line is `text`), or - for the standard input. Its "
            "fields are values.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "--out", "-o", metavar="OUT.jsonl", help="Where the rows go.", show_default="standard output"
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Without --rows: write a line of JSON with the captures, not the text.")
    ] = False,
    input_format: InputFormatOption = InputFormat.AUTO,
    model: ModelOption = None,
    device: DeviceOption = None,
    dtype: DTypeOption = None,
    sampler: SamplerOption = "greedy",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random numbers; each row has its own.")] = 0,
    max_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most tokens of a run, the text of the template included.")
    ] = 16_384,
    progress: ProgressOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Run a program that is a Jinja template: its text is written as it stands, its generators go on from there.

    Without --rows its text is written to the standard output. With --rows many runs share the model, and a line of JSON comes out for
    each row, in their order: its fields, `_line`, and `output` (the text) and `captures`, or `error` with `type` and `message`.

    Exit status: 0 every run has come to its end, 1 some run failed, 2 nothing could run (one line says why), 130 interrupted.
    """
    with _one_line_errors(lambda: "Interrupted." if output is None else f"Interrupted. {output} holds whole lines."):
        from outlines_cont.cli.program import ProgramOptions, parse_values

        options = ProgramOptions(
            template=template,
            values=parse_values(settings or []),
            rows=rows,
            output=output,
            overwrite=overwrite,
            input_format=input_format,
            model=model,
            device=device,
            dtype=dtype,
            sampler=sampler,
            seed=seed,
            max_tokens=max_tokens,
        )
        _run(options, as_json, progress, verbose)


@app.command(
    short_help="Say how each keyword of a schema is enforced.",
    epilog="Example: outlines-cont schema order.json --draw order.svg",
)
def schema(
    source: Annotated[
        str, typer.Argument(metavar="FILE.json|module:Class", help="What a record is, as for `extract`.")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject what is not exact, and what looks misspelt.")
    ] = False,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Allow the members of an object in any order.")
    ] = False,
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE.svg", help="Write a picture of the automaton.")
    ] = None,
) -> None:
    """Say how each keyword of a schema is enforced, and show an example.

    `exact`: the automaton holds it. `checked`: the automaton allows more, the value is checked when it is complete and written
    otherwise where it fails. `annotated`: it rejects nothing, though it looks as if it should. What cannot be read is refused with the
    place and what to do.

    Exit status: 0, or 2 for a schema that is refused.
    """
    with _one_line_errors(lambda: "Interrupted."):
        _schema(source, strict, any_order, draw)


@app.command(
    short_help="Grow a tree of completions in one batch.",
    epilog='Example: outlines-cont tree "Not many people know that" --model Qwen/Qwen3-0.6B --output tree.svg',
)
def tree(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="Where all completions begin.",
            show_default='a message for the bundled model, "Not many people know that" for others',
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of each completion.")] = 72,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens between two partings.")] = 16,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random numbers.")] = 0,
    distinct: Annotated[bool, typer.Option("--distinct", help="Let twins begin with different tokens.")] = False,
    model: ModelOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.svg|FILE.html", help="Write a picture, too.")
    ] = None,
    device: DeviceOption = None,
    dtype: DTypeOption = None,
) -> None:
    """Grow a tree of completions: every leaf becomes two after each 16 tokens, and all leaves run in one batch.

    What completions have in common is computed and held once, so a tree takes as many forwards as its longest completion
    has tokens.

    Exit status: 0, 2 for a wrong option, a model that cannot be loaded or a file that cannot be written, 130 interrupted.
    """
    with _one_line_errors(lambda: "Interrupted."):
        _tree(_tree_prompt(prompt, model), depth, every, seed, distinct, model, output, device, dtype)


@app.command(epilog="Example: outlines-cont chat Qwen/Qwen3-0.6B --system 'Be short.'")
def chat(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A chat model.", show_default="the bundled one")
    ] = None,
    system: SystemOption = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jinja", help="A chat template.", show_default="that of the tokenizer"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The most tokens of a reply.")] = 512,
    sampler: SamplerOption = "greedy",
    seed: SeedOption = 0,
    device: DeviceOption = None,
    dtype: DTypeOption = None,
) -> None:
    """Talk with a chat model; `/help` says what else can be typed.

    After each reply a line shows how many tokens were fed to the model, and how many were kept from what came before. The bundled
    model talks about messages only: it writes their records, and answers short questions.

    Exit status: 0, or 2 for a wrong option, a model that cannot be loaded or has no chat template.
    """
    with _one_line_errors(lambda: "Interrupted."):
        _chat(model, system, template, max_tokens, sampler, seed, device, dtype)


def _chat(
    name: str | None,
    system: str | None,
    template: Path | None,
    max_tokens: int,
    sampler: str,
    seed: int,
    device: str | None,
    dtype: DType | None,
) -> None:
    from outlines_cont.cli.chat import ChatSession, begun_chat, terminal_lines
    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.sampler import make_sampler
    from outlines_cont.cli.threads import set_threads

    chosen = make_sampler(sampler)
    model = load_or_refuse(name, device, dtype)
    set_threads(model, 1)
    begun = begun_chat(model, template, system, seed)
    if sys.stdin.isatty():
        typer.echo("Type a message, or /help.")
    ChatSession(begun, chosen, max_tokens, sys.stdout).run(terminal_lines())


def _tree_prompt(prompt: str | None, model: str | None) -> str:
    """Return where a tree begins: the bundled model knows messages and records only."""
    if prompt is not None:
        return prompt
    return (
        "Not many people know that" if model is not None else "Message: Please send 12 desk lamps to Porto.\nRecord: "
    )


def _tree(
    prompt: str,
    depth: int,
    every: int,
    seed: int,
    distinct: bool,
    name: str | None,
    output: Path | None,
    device: str | None,
    dtype: DType | None,
) -> None:
    from rich.console import Console

    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.threads import set_threads
    from outlines_cont.cli.tree import check_options, show_growing, write_picture
    from outlines_cont.conversation.tree import CompletionTree

    check_options(prompt, output)
    model = load_or_refuse(name, device, dtype)
    set_threads(model, 4)
    grown = CompletionTree(model, prompt, depth=depth, every=every, seed=seed, distinct=distinct)
    started = time.monotonic()
    with model.meter() as meter:
        show_growing(grown, Console())
    leaves, seconds = len(grown.leaves), time.monotonic() - started
    typer.echo(
        f"{leaves} leaves, {grown.num_sampled} tokens sampled in {meter.forwards} forwards (one by one: "
        f"{leaves * depth:,}), {seconds:.1f} s; {grown.kv_bytes / 1e6:.1f} MB of keys and values"
    )
    if output is not None:
        write_picture(grown, output)
        typer.echo(f"Picture: {output}")


def _schema(source: str, strict: bool, any_order: bool, picture: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from outlines_cont.cli.describe import check_picture, describe, write_picture
    from outlines_cont.generation.lengths import named_lengths
    from outlines_cont.pipelines.rows.schema import load_schema

    check_picture(picture)
    options = {"strict": strict, "key_order": "any" if any_order else "schema"}
    expression, found = describe(load_schema(source).schema, **options)
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
    if picture is not None:
        write_picture(expression, picture)


def _demo(output: Path, stream: bool) -> None:
    from outlines_cont.cli.demo_output import demo_output

    started = time.monotonic()
    with demo_output(output) as file:
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
                row = chain.read(message, growing.show_one("record")) if stream else chain.read(message)
            rows.append(row)
            table.print_row(row)
            file.write(row.to_json() + "\n")
    for line in _demo_summary(rows, time.monotonic() - started, output):
        typer.echo(line)
    if any(row.has_failed for row in rows):
        raise typer.Exit(_FAILED_ROWS)


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


def _is_given(context: typer.Context, option: str) -> bool:
    """Return whether an option of the command that runs was given, and is not its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _extract(options: ExtractOptions, progress: bool | None, stream: bool, verbose: bool, *, has_limit: bool) -> None:
    from rich.console import Console

    from outlines_cont.cli.extract import ExtractCommand
    from outlines_cont.cli.growing import GrowingRecords
    from outlines_cont.cli.progress import advance, progress_bar
    from outlines_cont.generation.lengths import named_lengths
    from outlines_cont.pipelines.rows.errors import SetupError

    if stream and progress:
        raise SetupError("expected --stream or --progress, got both. Leave out one: both are shown at one place.")
    if stream and options.has_workers:
        raise SetupError(
            "expected --stream or --workers, got both. Records of other processes are seen when they are whole."
        )
    growing = GrowingRecords(Console(stderr=True)) if stream else None
    started = time.monotonic()
    with _plain_warnings():
        command = ExtractCommand(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
        if command.unbounded and not has_limit:
            said = f"{named_lengths(command.unbounded)} may be of any length; a record is cut after {options.max_tokens} tokens."
            typer.echo(f"Note: {said} Say --max-tokens, or bound them in the schema.", err=True)
        with progress_bar(command.tally, False if stream else progress) as bar:
            say = partial(typer.echo, err=True) if verbose and not options.has_workers else None
            # Messages of Ray about its workers must not appear between the rows.
            with redirect_stdout(sys.stderr):
                for tally in command.run(partial(_load_extractor, say=say), growing):
                    advance(bar, tally)
    seconds = time.monotonic() - started
    typer.echo(_extract_summary(command.tally, options.output, seconds, has_workers=options.has_workers), err=True)
    if command.tally.failed:
        raise typer.Exit(_FAILED_ROWS)


def _run(options: ProgramOptions, as_json: bool, progress: bool | None, verbose: bool) -> None:
    from outlines_cont.cli.extractor import load_or_refuse
    from outlines_cont.cli.program import ProgramRun, json_fields
    from outlines_cont.cli.progress import advance, progress_bar
    from outlines_cont.cli.sampler import parse_sampler
    from outlines_cont.cli.threads import set_threads

    started = time.monotonic()
    parse_sampler(options.sampler)
    run = ProgramRun(options, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer)
    with progress_bar(run.tally, progress if run.has_rows else False) as bar:
        model = load_or_refuse(options.model, options.device, options.dtype)
        run.tally.loading_seconds = time.monotonic() - started
        choice = set_threads(model, 8 if run.has_rows else 1)
        if verbose:
            typer.echo(str(choice), err=True)
        if run.has_rows:
            for tally in run.rows(model):
                advance(bar, tally)
        else:
            result = run.once(model)
            if result.error is None or result.text:
                typer.echo(json.dumps(json_fields(result), ensure_ascii=False) if as_json else result.text)
            if result.error is not None:
                typer.echo(f"Error: {_one_line(str(result.error))}", err=True)
                raise typer.Exit(_FAILED_ROWS)
            return
    typer.echo(_extract_summary(run.tally, options.output, time.monotonic() - started), err=True)
    if run.tally.failed:
        raise typer.Exit(_FAILED_ROWS)


def _load_extractor(
    options: ExtractOptions, schema: RecordSchema, template: PromptTemplate, say: Callable[[str], None] | None = None
) -> Outcomes:
    from outlines_cont.cli.extractor import load_extractor

    return load_extractor(options, schema, template, say)


def _extract_summary(tally: Tally, output: Path | None, seconds: float, *, has_workers: bool = False) -> str:
    text = f"{tally.skipped + tally.rows} rows, {tally.failed} failed, {seconds:.1f} s"
    if tally.loading_seconds and not has_workers:  # workers load models of their own, beside each other
        text += f", {tally.loading_seconds:.1f} of them loading the model"
    if tally.skipped:
        text += f"; {tally.skipped} of them were there already"
    if output is not None:
        text += f"; written to {output}"
    if tally.first_failure is not None:
        text += f". First failure: {_one_line(tally.first_failure)}"
    return text


def _extract_interrupted(output: Path | None) -> str:
    from outlines_cont.pipelines.tables.table_output import lines_path

    if output is None:
        return "Interrupted."
    output = lines_path(output)
    if not output.exists():
        return "Interrupted before the first row; nothing was written."
    return f"Interrupted. {output} holds whole lines; to go on, give the same command with --resume."


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show each warning once, and without its place in our source."""
    from fsm import SchemaWarning

    shown, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if not issubclass(category, SchemaWarning):
            shown(message, category, *place, **options)
        elif str(message) not in said:
            said.add(str(message))
            typer.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", SchemaWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _one_line_errors(interrupted: Callable[[], str]) -> Iterator[None]:
    """Turn errors on purpose into one line and an exit status; a bug keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted(), err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does. Nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_FAILED_ROWS) from None
    except Exception as error:
        from fsm import FSMError

        if not isinstance(error, OutlinesContError | FSMError):
            raise
        typer.echo(f"Error: {_one_line(str(error))}", err=True)
        raise typer.Exit(_UNUSABLE) from None


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST_ERROR)
