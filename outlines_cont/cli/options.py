"""The commands of `outlines-cont` (typer) and their options: each command is a dataclass whose fields are its options and arguments and
whose docstring is its help. typer makes it of the command line, and `__main__` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from outlines_cont.checks import DEFAULT_MAX_TOKENS, MAX_SAMPLES
from outlines_cont.cli.model_names import models_by_name
from outlines_cont.pipelines.image_files import is_image_file
from outlines_cont.pipelines.outcome import Confidence, InputFormat

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


DType = Literal["float32", "float16", "bfloat16"]
"""Float types of weights."""
Draft = Literal["none", "lookup"]
"""The draft of a record for speculative decoding; see docs/draft.md."""
Whitespace = Literal["none", "one_space", "spaced"]
"""Spaces in the JSON that a model writes, as in `fsm.json_schema`."""

# Options of several commands.
_MODEL = "A Hugging Face causal language model."
ModelName = Annotated[
    str | None, Option("--model", "-m", metavar="HUB_ID|PATH", help=_MODEL, show_default="the bundled one")
]
_SEVERAL = "A Hugging Face causal language model, with its name in requests, or by itself; {}. May be repeated."
_DEVICE = "Where the model runs, such as cuda or mps."
Device = Annotated[str | None, Option(metavar="DEVICE", help=_DEVICE, show_default="cpu")]
WeightType = Annotated[DType | None, Option(help="Float type of the weights.", show_default="the checkpoint's")]
_FUSED = "Whether known families run by the fused forward; else transformers runs all layers."
Fused = Annotated[bool, Option("--fused/--no-fused", help=_FUSED)]
_DETERMINISTIC = "Whether texts are equal, whatever else runs, in half precision too: on a CPU, and slower."
Deterministic = Annotated[bool, Option("--deterministic", help=_DETERMINISTIC)]
_SAMPLER = "How tokens are chosen: greedy, multinomial, 'multinomial(temperature=0.7, top_p=0.9)'."
Sampler = Annotated[str, Option(metavar="NAME", help=_SAMPLER)]
_SEED = "Seed of the random numbers. A record depends only on it and on its prompt."
Seed = Annotated[int, Option(min=0, metavar="N", help=_SEED)]
System = Annotated[str | None, Option(metavar="TEXT", help="The system message.")]
AnyOrder = Annotated[bool, Option("--any-order", help="Allow the members of an object in any order.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace OUT.jsonl if it exists.")]
LineFormat = Annotated[InputFormat, Option(help="The format of INPUT; auto infers it from the name.")]
_PROGRESS = "A progress bar on the standard error."
Progress = Annotated[bool | None, Option("--progress/--no-progress", help=_PROGRESS, show_default="on a terminal")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Print choices that were made, such as the number of threads.")
]


@app.command("demo")
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Read bundled messages, or pictures of receipts, into records.

    The messages are read by the bundled model, or by another.

    For each message three generators are chained on one state: its kind (choice), the record (JSON of a pydantic model) and
    the due date (regex). The table shows what each step cost: tokens fed to the model, tokens reused from the state, and
    tokens forced by the constraint. Nothing is downloaded.

    With --images twenty receipts are drawn and read into records by the bundled vision model, and compared with what was drawn. It needs
    the extra `images`.
    """

    # fmt: off
    model: ModelName = None
    output: Annotated[Path, Option("--output", "-o", help="Where to write the records, one JSON object per line.")] = Path("records.jsonl")
    stream: Annotated[bool, Option("--stream",
        help="Show each record while it is written: growing on a terminal, otherwise a line for each complete field.")] = False
    images: Annotated[bool, Option("--images", help="Draw receipts, and read the pictures.")] = False
    report: Annotated[Path | None, Option(metavar="FILE.html",
        help="With --images: write a page with the wrong values and their pictures.")] = None
    # fmt: on


@app.command(
    "extract", epilog="Example: outlines-cont extract messages.jsonl --schema models:Order --output orders.jsonl"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """Extract a record from every message of INPUT, or every image.

    One JSON object per row is written, in the order of the input: the fields of the row but the text, `_line` and `_digest` (the
    line of INPUT, and a digest of it and of the options, by which --resume recognises it), and `record`, which conforms to the
    schema, or `error` with `type` and `message`. A row that fails does not stop the others.

    Exit status: 0 every row has a record, 1 some row failed, 2 nothing could run (one line tells the reason), 130 interrupted.
    """

    # fmt: off
    input: Annotated[list[str], Argument(metavar="INPUT...",
        help="Messages: a .jsonl file (a `text` field per line, the rest is carried over), a .csv or .parquet table (with a `text` "
        "column), a .txt file (a message per line), or - for the standard input (JSON lines if the first line is a JSON object, else "
        "text). Or image files, each of which is a row.")]
    schema: Annotated[str, Option("--schema", "-s", metavar="FILE.json|module:Class",
        help="The schema of a record: a JSON Schema file, or a pydantic model (module:Class, looked up in the current directory first, or "
        "FILE.py:Class).")]
    model: ModelName = None
    prompt: Annotated[Path | None, Option("--prompt", "-p", metavar="TEMPLATE.jinja",
        show_default=r'"Message: {{ text }}\nRecord: "; with --chat a request for a JSON object, with the schema',
        help="A Jinja template of the prompt. It may use {{ text }}, any other field of the row, {{ row }} (all fields) and {{ schema }} "
        "(the JSON Schema).")] = None
    images: Annotated[list[str] | None, Option(metavar="NAME", show_default="none; of image files their path, `image`",
        help="A field of a row with an image: a path, or in Parquet the bytes. <image> in the template stands for it. May be "
        "repeated.")] = None
    allow_missing: Annotated[list[str] | None, Option(metavar="NAME",
        help="A field that may be missing, null or blank in a row, as the template tests it; * for all. May be repeated.")] = None
    chat: Annotated[bool, Option("--chat",
        help="Make the prompt a user message in the chat template of the model; the record is the reply.")] = False
    system: System = None
    output: Annotated[Path | None, Option("--output", "-o", metavar="OUT.jsonl|.csv|.parquet", show_default="standard output",
        help="Where to write: lines of JSON, or a table, which is written when all rows are done.")] = None
    resume: Annotated[bool, Option("--resume",
        help="Continue OUT.jsonl: skip the rows that it has. If it does not exist, start from the beginning.")] = False
    overwrite: Overwrite = False
    batch_size: Annotated[int, Option(min=1, metavar="N", help="Rows that run together.")] = 32
    max_tokens: Annotated[int | None, Option(min=1, metavar="N", show_default=str(DEFAULT_MAX_TOKENS),
        help="The most tokens of a record.")] = None
    text_field: Annotated[str, Option(metavar="NAME", help="The field of a JSON row that holds the message.")] = "text"
    keep_text: Annotated[bool, Option("--keep-text", help="Write the message, too.")] = False
    input_format: LineFormat = InputFormat.AUTO
    device: Device = None
    dtype: WeightType = None
    fused: Fused = True
    deterministic: Deterministic = False
    whitespace: Annotated[Whitespace, Option(help="Spaces after : and , in JSON.")] = "one_space"
    any_order: AnyOrder = False
    sampler: Sampler = "greedy"
    seed: Seed = 0
    draft: Annotated[Draft, Option(help="Speculative decoding by prompt lookup: the same records in fewer forwards.")] = "none"
    thinking: Annotated[bool, Option("--thinking",
        help="Let the model think before each record, between the marks of its chat template, 2,048 tokens at most.")] = False
    samples: Annotated[int, Option(min=0, max=MAX_SAMPLES, metavar="N",
        help="Sample N more records for each row, and count for each value how many agree.")] = 0
    confidence: Annotated[Confidence | None, Option(show_default="none; with --abstain-below agreement",
        help="Write how sure each value is: by the agreement of samples (5, or --samples), or without samples by the tokens of the "
        "record alone.")] = None
    abstain_below: Annotated[float | None, Option(min=0.0, max=1.0, metavar="SHARE",
        help="Write null for a value whose confidence is below SHARE, and the value with the reason to `_details`.")] = None
    details: Annotated[bool, Option("--details", help="Write log-probabilities, tokens and agreement with each record.")] = False
    report: Annotated[Path | None, Option(metavar="FILE.html", help="Write a page about the results, and what to check first.")] = None
    gold: Annotated[str | None, Option(metavar="NAME", help="The field of a row with the correct record, for the report.")] = None
    calibration: Annotated[Path | None, Option(metavar="FILE.json",
        help="A calibration table: each value is written with its probability of being right.")] = None
    save_calibration: Annotated[Path | None, Option(metavar="FILE.json",
        help="Where to write a calibration table, learnt from --gold, and --samples or --confidence.")] = None
    workers: Annotated[int, Option(min=1, metavar="N", help="Processes, each with its own model. More than one requires Ray.")] = 1
    ray_address: Annotated[str | None, Option(metavar="ADDRESS", show_default="this machine",
        help="A cluster of Ray, such as auto.")] = None
    progress: Progress = None
    stream: Annotated[bool, Option("--stream",
        help="Show records while they are written, on the standard error: a table that grows on a terminal, else a line for each field "
        "that is whole. The output stays whole lines.")] = False
    verbose: Verbose = False
    # fmt: on

    @property
    def most_tokens(self) -> int:
        """`max_tokens`, or the default if it is not given."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def missing(self) -> list[str] | bool:
        """The fields that may be missing, as `Extractor` takes them."""
        names = sorted(self.allow_missing or [])
        return True if "*" in names else names

    @property
    def image_names(self) -> list[str] | None:
        """The fields with images, as `Extractor` takes them."""
        return self.images or (["image"] if self.has_image_files else None)

    @property
    def has_image_files(self) -> bool:
        """Whether the rows are image files."""
        return len(self.input) > 1 or any(map(is_image_file, self.input))

    @property
    def has_reports(self) -> bool:
        """Whether a file is made of all rows at the end."""
        return self.report is not None or self.save_calibration is not None

    @property
    def has_details(self) -> bool:
        """Whether details of records are written to the output: on request, or since another option needs them."""
        return self.details or self.has_confidence or self.has_reports

    @property
    def has_confidence(self) -> bool:
        """Whether it is told how sure values are: by samples, or otherwise."""
        return self.samples > 0 or self.abstains

    @property
    def abstains(self) -> bool:
        """Whether the extractor itself has a confidence of values, by which it may withhold some."""
        return self.confidence is not None or self.abstain_below is not None

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in other processes."""
        return self.workers > 1 or self.ray_address is not None

    @property
    def schema_options(self) -> dict[str, Any]:
        """The options of `fsm.json_schema`."""
        return {"whitespace": self.whitespace, "key_order": "any" if self.any_order else "schema"}


@app.command(
    "run",
    short_help="Run a program written as a Jinja template.",
    epilog="Example: outlines-cont run program.jinja --set text='Two lamps, please.'",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Run a program written as a Jinja template: its text is written unchanged, and its generators continue it.

    Without --rows the text is written to the standard output. With --rows many runs share the model, and a line of JSON is written for
    each row, in order: its fields, `_line`, and `output` (the text) and `captures`, or `error` with `type` and `message`.

    Exit status: 0 every run is complete, 1 some run failed, 2 nothing could run (one line tells the reason), 130 interrupted.
    """

    # fmt: off
    template: Annotated[Path, Argument(metavar="TEMPLATE.jinja",
        help="A Jinja template with generators: gen, choice, json, grammar. Special tokens in its text are control tokens, in values "
        "they are letters.")]
    settings: Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE",
        help="A value, a text; @FILE is the text of a file. May be repeated.")] = None
    rows: Annotated[str | None, Option("--rows", "-r", metavar="INPUT",
        help="Run once for each row: a .jsonl, .csv, .parquet or .txt file (a line is `text`), or - for the standard input. Its fields are "
        "values.")] = None
    output: Annotated[Path | None, Option("--output", "--out", "-o", metavar="OUT.jsonl", show_default="standard output",
        help="Where to write the rows.")] = None
    overwrite: Overwrite = False
    as_json: Annotated[bool, Option("--json", help="Without --rows: write a line of JSON with the captures, not the text.")] = False
    input_format: LineFormat = InputFormat.AUTO
    model: ModelName = None
    device: Device = None
    dtype: WeightType = None
    fused: Fused = True
    deterministic: Deterministic = False
    sampler: Sampler = "greedy"
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the random numbers of each row; equal rows get equal texts.")] = 0
    max_tokens: Annotated[int, Option(min=1, metavar="N", help="The most tokens of a run, the text of the template included.")] = 16_384
    progress: Progress = None
    verbose: Verbose = False
    # fmt: on


@app.command(
    "schema",
    short_help="Show how each keyword of a schema is enforced.",
    epilog="Example: outlines-cont schema order.json --draw order.svg",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Show how each keyword of a schema is enforced, and an example.

    `exact`: the automaton enforces it. `checked`: the automaton allows more; the value is checked when it is complete, and written
    again if the check fails. `annotated`: it rejects nothing, though it looks as if it should. A schema that cannot be read is refused,
    with the place and what to do.

    Exit status: 0, or 2 for a schema that is refused.
    """

    # fmt: off
    source: Annotated[str, Argument(metavar="FILE.json|module:Class", help="The schema of a record, as for `extract`.")]
    strict: Annotated[bool, Option("--strict", help="Refuse keywords that are not exact, and probable misspellings.")] = False
    any_order: AnyOrder = False
    draw: Annotated[Path | None, Option(metavar="FILE.svg", help="Write a picture of the automaton.")] = None
    # fmt: on


@app.command("chat", epilog="Example: outlines-cont chat Qwen/Qwen3-0.6B --system 'Be short.'")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Talk with a chat model; `/help` says what else can be typed.

    After each reply a line shows how many tokens were fed to the model, and how many were kept from what came before. The bundled
    model talks about messages only: it writes their records, and answers short questions.

    Exit status: 0, or 2 for a wrong option, a model that cannot be loaded or has no chat template.
    """

    # fmt: off
    model: Annotated[str | None, Argument(metavar="MODEL", show_default="the bundled one", help="A chat model.")] = None
    system: System = None
    template: Annotated[Path | None, Option(metavar="FILE.jinja", show_default="the tokenizer's template", help="A chat template.")] = None
    image: Annotated[list[Path] | None, Option(metavar="FILE", show_default="none",
        help="An image of the first message, for a model that takes images. May be repeated.")] = None
    max_tokens: Annotated[int, Option(min=1, metavar="N", help="The most tokens of a reply.")] = 512
    sampler: Sampler = "greedy"
    seed: Seed = 0
    device: Device = None
    dtype: WeightType = None
    fused: Fused = True
    deterministic: Deterministic = False
    # fmt: on


@app.command(
    "batch",
    short_help="Answer the requests of a batch file of OpenAI.",
    epilog="Example: outlines-cont batch requests.jsonl replies.jsonl --model Qwen/Qwen3-0.6B",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Answer the requests of INPUT, a batch file of OpenAI, without a server.

    A line of INPUT has `custom_id`, `method` (POST), `url` (/v1/chat/completions, /v1/responses, /v1/completions, /v1/messages) and `body`.
    Many requests run together. A line of OUTPUT has the `custom_id` and the reply, in the order in which the replies are complete; what
    fails goes to the file of errors, and does not stop the others.

    Exit status: 0 every request has a reply, 1 some request failed, 2 nothing could run (one line tells the reason), 130 interrupted.
    """

    # fmt: off
    input: Annotated[Path, Argument(metavar="INPUT.jsonl", help="The requests.")]
    output: Annotated[Path, Argument(metavar="OUTPUT.jsonl", help="Where to write the replies.")]
    errors: Annotated[Path | None, Option("--errors", metavar="FILE.jsonl", show_default="OUTPUT.errors.jsonl",
        help="Where to write the records of requests that failed; there is no such file if none does.")] = None
    model: Annotated[list[str] | None, Option("--model", "-m", metavar="[NAME=]HUB_ID|PATH", show_default="the bundled one",
        help=_SEVERAL.format("requests that name none get the first, others are opened when a request names them"))] = None
    name: Annotated[str | None, Option(metavar="NAME", show_default="the model, or its folder", help="The first model in requests.")] = None
    url: Annotated[str | None, Option(metavar="ADDRESS",
        help="Send the requests to a server that runs already, with the key OUTLINES_CONT_API_KEY; no model is loaded.")] = None
    resume: Annotated[bool, Option("--resume",
        help="Continue OUTPUT: send the requests that have no record yet. If it does not exist, start from the beginning.")] = False
    overwrite: Annotated[bool, Option("--overwrite", help="Replace OUTPUT and the file of errors if they exist.")] = False
    at_once: Annotated[int, Option(min=1, metavar="N", help="Requests that run together.")] = 64
    max_tokens: Annotated[int, Option(min=1, metavar="N", help="The most tokens of a text; also the default.")] = 4_096
    kv_budget_bytes: Annotated[int | None, Option(min=1, metavar="N", show_default="no limit",
        help="The most bytes of keys and values of a model, of all requests and its prefix cache; requests without room wait.")] = None
    device: Device = None
    dtype: WeightType = None
    fused: Fused = True
    progress: Progress = None
    verbose: Verbose = False
    # fmt: on

    @property
    def models(self) -> dict[str, str | None]:
        """The models by name; None is the bundled one."""
        return models_by_name(self.model or [None], self.name)


@app.command(
    "serve",
    short_help="Serve models by the protocols of OpenAI and Anthropic.",
    epilog="Example: outlines-cont serve Qwen/Qwen3-0.6B --port 8000",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Serve a model, or several: Chat Completions, Responses, Completions, and Anthropic's Messages, with the constraints of this package.

    It needs the extra `serve`: `pip install 'outlines-cont[serve]'`. Clients send the key in the variable OUTLINES_CONT_API_KEY, if it is
    set. `/health` and `/metrics` are for those who run it. Ctrl-C or SIGTERM ends it, after the requests that are being answered, or
    after 30 seconds.

    Exit status: 0 after Ctrl-C, 143 after SIGTERM, 2 for a wrong option, or a model that cannot be loaded.
    """

    # fmt: off
    model: Annotated[str | None, Argument(metavar="MODEL", show_default="the first --model, or the bundled one",
        help="A causal language model.")] = None
    others: Annotated[list[str] | None, Option("--model", "-m", metavar="[NAME=]HUB_ID|PATH", show_default="none",
        help=_SEVERAL.format("it is opened when a request first names it"))] = None
    port: Annotated[int, Option(min=0, max=65_535, metavar="N", help="The port; 0 takes a free one.")] = 8000
    host: Annotated[str, Option(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 admits other machines.")] = "127.0.0.1"
    allow_host: Annotated[list[str] | None, Option(metavar="NAME", show_default="those of this machine",
        help="A name by which a proxy or a browser reaches the server; may be given several times.")] = None
    name: Annotated[str | None, Option(metavar="NAME", show_default="MODEL, or its folder", help="MODEL in requests.")] = None
    max_requests: Annotated[int, Option(min=1, metavar="N", help="Requests answered at the same time; others get status 429.")] = 256
    max_tokens: Annotated[int, Option(min=1, metavar="N", help="The most tokens of a text; also the default.")] = 4_096
    max_choices: Annotated[int, Option(min=1, metavar="N", help="The most texts of a request: prompts times `n`.")] = 16
    max_body_bytes: Annotated[int, Option(min=1, metavar="N", help="The most bytes of a request; others get status 413.")] = 4_000_000
    max_prompt_characters: Annotated[int | None, Option(min=1, metavar="N", show_default="8 times the context of the model, in tokens",
        help="The most characters of a prompt, or of all messages.")] = None
    max_messages: Annotated[int, Option(min=1, metavar="N", help="The most messages of a conversation.")] = 2_048
    max_tools: Annotated[int, Option(min=1, metavar="N", help="The most tools of a request.")] = 256
    max_phrases: Annotated[int, Option(min=1, metavar="N", help="The most texts of `ban`, and of `stop`.")] = 1_024
    max_phrase_characters: Annotated[int, Option(min=1, metavar="N", help="The most characters of these.")] = 65_536
    allow_image_urls: Annotated[list[str] | None, Option(metavar="HOST[:PORT]", show_default="none, and nothing is fetched",
        help="A host from which images of requests are fetched by http or https; a private address is refused unless it is named itself. "
        "May be given several times.")] = None
    max_images: Annotated[int, Option(min=0, metavar="N", help="The most images of a request.")] = 16
    max_image_bytes: Annotated[int, Option(min=1, metavar="N", help="The most bytes of an image, as a file.")] = 16_000_000
    max_image_pixels: Annotated[int, Option(min=1, metavar="N", help="The most pixels of an image: width times height.")] = 16_000_000
    max_image_seconds: Annotated[float, Option(min=0.001, metavar="S", help="How long the images of a request are fetched.")] = 10.0
    cache_bytes: Annotated[int | None, Option(min=1, metavar="N", show_default="an eighth of the memory, 8 GiB at most",
        help="The most bytes of what is kept for later requests: prefixes, states, constraints and masks.")] = None
    prefix_cache_bytes: Annotated[int | None, Option(min=0, metavar="N", show_default="half of --cache-bytes",
        help="The most bytes of keys and values of prefixes.")] = None
    cors_origin: Annotated[list[str] | None, Option(metavar="ORIGIN", show_default="none",
        help="A site whose pages may ask, such as https://app.example; may be given several times.")] = None
    kv_budget_bytes: Annotated[int | None, Option(min=1, metavar="N", show_default="no limit",
        help="The most bytes of keys and values of a model, of all requests and its prefix cache; requests without room wait.")] = None
    max_schema_work: Annotated[int, Option(min=1, metavar="N", help="Steps of work, of 3 to 10 us each, to compile a schema.")] = 120_000
    max_mask_work: Annotated[int, Option(min=1, metavar="N", help="The same for the token mask of one state of a constraint.")] = 150_000
    max_slow_work: Annotated[
        int, Option(min=1, metavar="N", help="The same for all masks of a request that the batch does not wait for.")
    ] = 4_000_000
    device: Device = None
    dtype: WeightType = None
    fused: Fused = True
    deterministic: Deterministic = False
    # fmt: on

    @property
    def models(self) -> dict[str, str | None]:
        """The models by name; None is the bundled one."""
        others = self.others or []
        return models_by_name(others if self.model is None and others else [self.model, *others], self.name)
