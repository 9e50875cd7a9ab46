"""`Demo`: three generators (choice, JSON, regular expression) chained on one state per message; then the state is cropped to before the
record and forked, to sample more records and count those equal to the first, with the tokens fed, reused and forced in each step. `KINDS`,
`Record` and the texts between the steps are as in the training data of the bundled model.

`show_demo`: prints the steps of each bundled message as a table, 72 to 110 columns wide (rich), and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TextIO

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from outlines_cont import continuous, generate, samplers
from outlines_cont.cli.growing import GrowingRecords
from outlines_cont.cli.model import load_model
from outlines_cont.cli.options import DemoOptions
from outlines_cont.continuation import Continuation
from outlines_cont.errors import IncompleteOutput
from outlines_cont.models.hugging_face import HuggingFaceModel
from outlines_cont.state.sequence_state import SequenceState

ShowRecord = Callable[[Any, bool], None]
"""Shows a record while it is written: its value so far, and whether it is whole."""
KINDS = ("order", "invoice", "shipment", "complaint", "quote", "meeting", "application", "other")
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
VOTES = 3
"""How many more records are sampled to compare with the first one."""
_MAX_TOKENS = 400
_NARROWEST, _WIDEST = 72, 110
_INTRODUCTION = """\
Three generators on one state for each message: choice, JSON, regex. Tokens are
fed to the model, reused from the state, or forced by the constraint. Votes: the
record is sampled again, three times, from a fork of the state; how many samples
agree with it shows roughly how sure the model is.
"""


class Record(BaseModel):
    """The record that the demo extracts from a message."""

    customer: str
    city: str
    item: str
    quantity: int
    price: float
    currency: Literal["EUR", "USD", "GBP", "JPY"]


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One generator on one message.

    Attributes:
        name: `kind`, `record`, `due` or `votes`.
        value: the generated value as JSON; for `votes` how many sampled records are equal to the record; None if it failed.
        error: why it failed, else None.
        fed: tokens that were fed to the model.
        reused: tokens before them whose keys and values the state had.
        forced: generated tokens that the constraint determined.
    """

    name: str
    value: Any
    error: Exception | None
    fed: int
    reused: int
    forced: int


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A message and its steps."""

    text: str
    steps: tuple[DemoStep, ...]

    @property
    def has_failed(self) -> bool:
        """Whether a step failed."""
        return any(step.error is not None for step in self.steps)

    def to_json(self) -> str:
        """Return the row as one line of JSON: the text, a field per step, and `error` if a step failed."""
        fields: dict[str, Any] = {"text": self.text} | {step.name: step.value for step in self.steps}
        errors = [step.error for step in self.steps if step.error is not None]
        if errors:
            fields["error"] = {"type": type(errors[0]).__name__, "message": str(errors[0])}
        return json.dumps(fields, ensure_ascii=False)


class Demo:
    """The chain of generators, compiled once, for the bundled model or any other."""

    def __init__(self, model: HuggingFaceModel) -> None:
        self._model = model
        self._kind = continuous(generate.choice(model, KINDS))
        self._record = continuous(generate.json(model, Record, whitespace="none"))
        self._due = continuous(generate.regex(model, DATE))
        sampler = samplers.multinomial(VOTES)
        self._vote = continuous(generate.json(model, Record, whitespace="none", sampler=sampler))

    def read(self, text: str, show: ShowRecord | None = None) -> DemoRow:
        """Return the steps of one message; show the record while it is written."""
        state, kind = self._step("kind", self._kind, f"Message: {text}\nKind: ", str)
        state += "\nRecord: "
        before_record = len(str(state))
        state, record = self._step("record", self._record, state, BaseModel.model_dump, show)
        state, due = self._step("due", self._due, state + "\nDue: ", str)
        return DemoRow(text, (kind, record, due, self._votes(state, before_record, record)))

    def _votes(self, state: SequenceState, before_record: int, record: DemoStep) -> DemoStep:
        """Crop the state to the text before the record, fork, sample more records, and count those that are equal."""
        with self._model.meter() as meter:
            forks = self._vote(state.crop(slice(before_record)).fork(VOTES), max_tokens=_MAX_TOKENS, rng=0)
        values = [value.model_dump() for value in forks.values[0] if value is not None]
        same = sum(value == record.value for value in values) if record.error is None else 0
        return DemoStep("votes", same, None, meter.fed_tokens, meter.reused_tokens, meter.forced_tokens)

    def _step(
        self,
        name: str,
        generator: Continuation,
        start: str | SequenceState,
        to_json: Callable[[Any], Any],
        show: ShowRecord | None = None,
    ) -> tuple[SequenceState, DemoStep]:
        with self._model.meter() as meter:
            state = generator(start, max_tokens=_MAX_TOKENS) if show is None else _streamed(generator, start, show)
        error = state.errors[0][0]
        if error is None and state.finish_reasons[0][0] == "length":
            error = IncompleteOutput(f"expected a whole {name}, but max_tokens={_MAX_TOKENS} cut it", "", "length")
        value = to_json(state.value) if error is None else None
        return state, DemoStep(name, value, error, meter.fed_tokens, meter.reused_tokens, meter.forced_tokens)


def _streamed(generator: Continuation, start: str | SequenceState, show: ShowRecord) -> SequenceState:
    """Return the state after a generator; show the value while it is written."""
    stream = generator.stream(start, partial=True, max_tokens=_MAX_TOKENS)
    for event in stream:
        show(event.value, event.finish_reason not in ("", "length", "error"))
    return stream.state


def read_messages() -> list[str]:
    """Return the bundled messages."""
    lines = (files("outlines_cont") / "demo_messages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if line.strip()]


def show_demo(options: DemoOptions, file: TextIO) -> bool:
    """Run the demo, print its table and summary, and write the records to `file`; return whether no step has failed."""
    started = time.monotonic()
    model = load_model(options.model, None, None)
    chain, table, growing = Demo(model), DemoTable(Console()), GrowingRecords(Console())
    typer.echo(_INTRODUCTION)
    table.print_head()
    rows = []
    for message in read_messages():
        with growing:
            row = chain.read(message, partial(growing.show, "record")) if options.stream else chain.read(message)
        rows.append(row)
        table.print_row(row)
        file.write(row.to_json() + "\n")
    _print_summary(rows, time.monotonic() - started, options.output)
    return not any(row.has_failed for row in rows)


def _print_summary(rows: Sequence[DemoRow], seconds: float, output: Path) -> None:
    steps = [step for row in rows for step in row.steps]
    fed, reused = sum(step.fed for step in steps), sum(step.reused for step in steps)
    shared = sum(step.reused for step in steps if step.name == "votes")
    failed = sum(row.has_failed for row in rows)
    failures = f"; {failed} messages failed" if failed else ""
    typer.echo(f"{len(rows)} messages, {len(steps)} steps, {seconds:.1f} s{failures}")
    saved = f"{fed + reused:,} tokens ({(fed + reused) / fed:.1f}x)"
    typer.echo(f"Fed {fed:,} tokens. Re-reading the prompt at each step: {saved}.")
    typer.echo(f"Votes: {VOTES} sampled records per message reuse {shared:,} tokens, by slice and fork.")
    typer.echo(f"Records: {output}")


class DemoTable:
    """A table that is printed row by row, also into a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = max(_NARROWEST, min(console.width, _WIDEST))

    def print_head(self) -> None:
        """Print the names of the columns."""
        self._print("Message", [("Step", "Result", "Fed", "Reused", "Forced")], "bold")
        self._console.print(Rule(style="dim"), width=self._width)

    def print_row(self, row: DemoRow) -> None:
        """Print a message, shortened to the height of its steps, and the steps."""
        self._print(row.text, [(s.name, _result(s), f"{s.fed:,}", f"{s.reused:,}", f"{s.forced:,}") for s in row.steps])
        self._console.print()

    def _print(self, message: str, rows: Iterable[Sequence[str | Text]], style: str = "") -> None:
        width, padding = self._width * 3 // 10, (0, 2, 0, 0)
        numbers = (Column(width=width, justify="right") for width in (5, 6, 6))
        steps = Table.grid(Column(width=6), Column(ratio=1, overflow="fold"), *numbers, padding=padding)
        steps.width = self._width - width - 2
        for row in rows:
            steps.add_row(*row, style=style)
        height = len(self._console.render_lines(steps))
        line = Table.grid(Column(width=width, overflow="fold"), Column(), padding=padding)
        line.add_row(Text(shorten(message, height * width * 9 // 10, placeholder="…"), style), steps)
        self._console.print(line, width=self._width)


def _result(step: DemoStep) -> Text:
    """Return the value of a step for reading: a record as its values, in order."""
    if step.error is not None:
        return Text(f"{type(step.error).__name__}: {step.error}", style="red")
    if isinstance(step.value, dict):
        return Text(
            ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in step.value.values())
        )
    if step.name == "votes":
        return Text(f"{step.value} of {VOTES} samples agree", style="cyan")
    return Text(str(step.value), style="cyan")
