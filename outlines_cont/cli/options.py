"""The options of each command as a frozen dataclass: every field but `given` is an option or argument (typer), with its name, default and
help: its description under `Attributes`, or part of a type that several commands share.

`load_model`: the model of a command, by hub id or path, or the bundled one, with its number of threads; failures are `SetupError`s.

`describe`: prints how each keyword of a schema is enforced, a shortest example (breadth-first search in the automaton, at most 50,000
states), and how much of the lazy DFA is built to read it (states, transitions). `--draw`: a picture of its first states.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar
from typer import Argument, Option

import fsm
from fsm.automaton.lazy_dfa import Automaton, shortest_text
from outlines_cont.checks import DEFAULT_MAX_TOKENS
from outlines_cont.cli.command import check_picture, write_picture
from outlines_cont.cli.threads import set_threads
from outlines_cont.errors import ModelNotFound
from outlines_cont.generation.options import named_lengths
from outlines_cont.models.hugging_face import HuggingFaceModel, tiny, transformers
from outlines_cont.pipelines.outcome import InputFormat, SetupError
from outlines_cont.pipelines.record_schema import load_schema


class DType(StrEnum):
    """Float types of weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Draft(StrEnum):
    """The draft of a record for speculative decoding; see docs/draft.md."""

    NONE = "none"
    LOOKUP = "lookup"


class Whitespace(StrEnum):
    """Spaces in the JSON that a model writes, as in `fsm.json_schema`."""

    NONE = "none"
    ONE_SPACE = "one_space"
    SPACED = "spaced"


Count = Annotated[int, Option(min=1, metavar="N")]
Natural = Annotated[int, Option(min=0, metavar="N")]
# Options of several commands.
ModelName = Annotated[
    str | None,
    Option(
        "--model",
        "-m",
        metavar="HUB_ID|PATH",
        help="A Hugging Face causal language model.",
        show_default="the bundled one",
    ),
]
Device = Annotated[
    str | None, Option(metavar="DEVICE", help="Where the model runs, such as cuda or mps.", show_default="cpu")
]
WeightType = Annotated[DType | None, Option(help="Float type of the weights.", show_default="the checkpoint's")]
Sampler = Annotated[
    str,
    Option(
        metavar="NAME", help="How tokens are chosen: greedy, multinomial, 'multinomial(temperature=0.7, top_p=0.9)'."
    ),
]
Seed = Annotated[
    int, Option(min=0, metavar="N", help="Of the random numbers. A row's record depends on it and on its prompt alone.")
]
System = Annotated[str | None, Option(metavar="TEXT", help="How the model is to behave.")]
AnyOrder = Annotated[bool, Option("--any-order", help="Allow the members of an object in any order.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace OUT.jsonl if it exists.")]
LineFormat = Annotated[InputFormat, Option(help="The format of INPUT; auto takes it from the name.")]
Progress = Annotated[
    bool | None,
    Option("--progress/--no-progress", help="A progress bar on the standard error.", show_default="on a terminal"),
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print what was chosen, such as the number of threads.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of `outlines-cont demo`.

    Attributes:
        output: Where to write the records, one JSON object per line.
        stream: Show each record while it is written: growing on a terminal, else a line for each field that is whole.
    """

    output: Annotated[Path, Option("--output", "-o")] = Path("records.jsonl")
    stream: Annotated[bool, Option("--stream")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """The options of `outlines-cont extract`, and in `given` the names of those that the command line has.

    Attributes:
        input: Messages: a .jsonl file (a `text` field per line, the rest is carried over), a .csv or .parquet table (with a `text` column),
            a .txt file (a message per line), or - for the standard input (JSON lines if the first line is a JSON object, else text).
        schema: What a record is: a JSON Schema file, or a pydantic model (module:Class, looked up in the current directory first, or
            FILE.py:Class).
        prompt: A Jinja template of the prompt. It may use {{ text }}, any other field of the row, {{ row }} (all fields) and {{ schema }}
            (the JSON Schema).
        allow_missing: A field that may be missing, null or blank in a row, as the template tests it; * for all. May be repeated.
        chat: The prompt is a message of the user, in the chat template of the model; the record is the reply.
        output: Where to write: lines of JSON, or a table, made when all rows are there.
        resume: Continue OUT.jsonl: skip the rows that it has. Starts from the beginning if it does not exist.
        batch_size: Rows that run together.
        max_tokens: The most tokens of a record.
        text_field: The field of a JSON row that holds the message.
        keep_text: Write the message, too.
        whitespace: Spaces after : and , of the JSON that the model writes.
        draft: Speculative decoding by prompt lookup: the same records in fewer forwards.
        samples: Sample N more records for each row, and count for each value how many have the same.
        details: Write log-probabilities, tokens and agreement with each record.
        report: Write a page on what came out, with what to look at first.
        gold: The field of a row that holds the right record, for the report.
        calibration: Curves from agreement to the probability that a value is right, which is written with it.
        save_calibration: Learn that from --gold and --samples, for other messages.
        workers: Processes that run the model, each with its own. More than one need Ray.
        ray_address: A cluster of Ray, such as auto.
        stream: Show records while they are written, on the standard error: a table that grows on a terminal, else a line for each field
            that is whole. The output stays whole lines.
    """

    input: Annotated[str, Argument(metavar="INPUT")]
    schema: Annotated[str, Option("--schema", "-s", metavar="FILE.json|module:Class")]
    model: ModelName = None
    prompt: Annotated[
        Path | None,
        Option(
            "--prompt",
            "-p",
            metavar="TEMPLATE.jinja",
            show_default=r'"Message: {{ text }}\nRecord: "; with --chat a request for a JSON object, with the schema',
        ),
    ] = None
    allow_missing: Annotated[list[str] | None, Option("--allow-missing", metavar="NAME")] = None
    chat: Annotated[bool, Option("--chat")] = False
    system: System = None
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="OUT.jsonl|.csv|.parquet", show_default="standard output")
    ] = None
    resume: Annotated[bool, Option("--resume")] = False
    overwrite: Overwrite = False
    batch_size: Count = 32
    max_tokens: Count = DEFAULT_MAX_TOKENS
    text_field: Annotated[str, Option(metavar="NAME")] = "text"
    keep_text: Annotated[bool, Option("--keep-text")] = False
    input_format: LineFormat = InputFormat.AUTO
    device: Device = None
    dtype: WeightType = None
    whitespace: Annotated[Whitespace, Option()] = Whitespace.ONE_SPACE
    any_order: AnyOrder = False
    sampler: Sampler = "greedy"
    seed: Seed = 0
    draft: Annotated[Draft, Option()] = Draft.NONE
    samples: Natural = 0
    details: Annotated[bool, Option("--details")] = False
    report: Annotated[Path | None, Option(metavar="FILE.html")] = None
    gold: Annotated[str | None, Option(metavar="NAME")] = None
    calibration: Annotated[Path | None, Option(metavar="FILE.json")] = None
    save_calibration: Annotated[Path | None, Option(metavar="FILE.json")] = None
    workers: Count = 1
    ray_address: Annotated[str | None, Option(metavar="ADDRESS", show_default="this machine")] = None
    progress: Progress = None
    stream: Annotated[bool, Option("--stream")] = False
    verbose: Verbose = False
    given: frozenset[str] = frozenset()

    @property
    def missing(self) -> list[str] | bool:
        """The fields that may be missing, as `Extractor` takes them."""
        names = sorted(self.allow_missing or [])
        return True if "*" in names else names

    @property
    def has_details(self) -> bool:
        """Whether details of records are written to the output: on request, or since another option needs them."""
        return self.details or self.samples > 0 or self.report is not None or self.save_calibration is not None

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in other processes."""
        return self.workers > 1 or self.ray_address is not None

    @property
    def schema_options(self) -> dict[str, Any]:
        """The options of `fsm.json_schema`."""
        return {"whitespace": self.whitespace.value, "key_order": "any" if self.any_order else "schema"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """The options of `outlines-cont run`.

    Attributes:
        template: A Jinja template with generators: gen, choice, json, grammar. Special tokens in its text are such tokens, those in values
            are letters.
        settings: A value, a text; @FILE is the text of a file. May be repeated.
        rows: Run once for each row: a .jsonl, .csv, .parquet or .txt file (a line is `text`), or - for the standard input. Its fields are
            values.
        output: Where the rows go.
        as_json: Without --rows: write a line of JSON with the captures, not the text.
        seed: Of the random numbers; each row has its own.
        max_tokens: The most tokens of a run, the text of the template included.
    """

    template: Annotated[Path, Argument(metavar="TEMPLATE.jinja")]
    settings: Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE")] = None
    rows: Annotated[str | None, Option("--rows", "-r", metavar="INPUT")] = None
    output: Annotated[
        Path | None, Option("--output", "--out", "-o", metavar="OUT.jsonl", show_default="standard output")
    ] = None
    overwrite: Overwrite = False
    as_json: Annotated[bool, Option("--json")] = False
    input_format: LineFormat = InputFormat.AUTO
    model: ModelName = None
    device: Device = None
    dtype: WeightType = None
    sampler: Sampler = "greedy"
    seed: Natural = 0
    max_tokens: Count = 16_384
    progress: Progress = None
    verbose: Verbose = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """The options of `outlines-cont schema`.

    Attributes:
        source: What a record is, as for `extract`.
        strict: Reject what is not exact, and what looks misspelt.
        draw: Write a picture of the automaton.
    """

    source: Annotated[str, Argument(metavar="FILE.json|module:Class")]
    strict: Annotated[bool, Option("--strict")] = False
    any_order: AnyOrder = False
    draw: Annotated[Path | None, Option("--draw", metavar="FILE.svg")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of `outlines-cont chat`.

    Attributes:
        model: A chat model.
        template: A chat template.
        max_tokens: The most tokens of a reply.
    """

    model: Annotated[str | None, Argument(metavar="MODEL", show_default="the bundled one")] = None
    system: System = None
    template: Annotated[Path | None, Option(metavar="FILE.jinja", show_default="that of the tokenizer")] = None
    max_tokens: Count = 512
    sampler: Sampler = "greedy"
    seed: Seed = 0
    device: Device = None
    dtype: WeightType = None


def load_model(
    name: str | None, device: str | None, dtype: DType | None, *, num_rows: int = 1, verbose: bool = False
) -> HuggingFaceModel:
    """Return a model by hub id or path, or the bundled one for None, and choose the threads for `num_rows` rows at a time.

    Raises `SetupError` if the model cannot be loaded; with `verbose` the choice of threads is printed.
    """
    model = _loaded(name, device, dtype)
    choice = set_threads(model, num_rows)
    if verbose:
        typer.echo(str(choice), err=True)
    return model


def _loaded(name: str | None, device: str | None, dtype: DType | None) -> HuggingFaceModel:
    # Its bar for the files of a model would interfere with ours; downloads keep theirs.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if name is None:
            return tiny(device=device, dtype=torch.float32 if dtype is None else getattr(torch, dtype.value))
        return transformers(name, device=device, dtype=None if dtype is None else dtype.value)
    except ModelNotFound as error:  # its message has what was tried, and what to do
        raise SetupError(f"the model {name!r} cannot be loaded: {error}") from error
    except Exception as error:  # hub, files, weights and devices have errors of many classes
        which = "the bundled model" if name is None else f"the model {name!r}"
        raise SetupError(
            f"{which} cannot be loaded: {type(error).__name__}: {error} -- "
            "Give a hub id, or a folder with config, weights and tokenizer, and a --device and --dtype that this machine has."
        ) from error


def describe(options: SchemaOptions) -> None:
    """Print the description of a schema, and write a picture of its automaton if there is a file for it."""
    check_picture(options.draw, "draw", ".svg")
    schema = load_schema(options.source).schema
    with warnings.catch_warnings(action="ignore", category=fsm.SchemaWarning):  # the report has the same notes
        expression = fsm.json_schema(schema, strict=options.strict, key_order="any" if options.any_order else "schema")
    text = shortest_text(expression.node)
    size = _size(expression, text or b"")
    console, table = Console(highlight=False, markup=False), Table("keyword", "where", "enforced", box=None)
    for keyword in expression.report:
        table.add_row(keyword.keyword, keyword.pointer, keyword.level)
    console.print(table)
    for keyword in expression.report:
        if keyword.note and keyword.level != "checked":
            console.print(f"{keyword.level}: {keyword.pointer}: {keyword.note}")
    for check in expression.checks:
        console.print(f"checked: {check}")
    if expression.report.unbounded:
        console.print(f"any length: {named_lengths(expression.report.unbounded)}", soft_wrap=True)
    console.print(size)
    if text is None:
        console.print("no short example was found")
    else:
        console.print(f"example: {text.decode()}{'' if expression.accepts(text) else '  (fails a check)'}")
    if options.draw is not None:
        write_picture(fsm.draw(expression), options.draw)


def _size(expression: fsm.Expression, example: bytes) -> str:
    automaton = Automaton(expression.node)
    state = automaton.initial_state
    num_transitions = len(automaton.moves(state))
    for byte in example:
        state = automaton.next_state(state, bytes((byte,)))
        num_transitions += len(automaton.moves(state))
    return f"size: {len(automaton) - 1} states, {num_transitions} transitions along the example"
