"""`show_demo`: runs the demo, prints its table (rich) row by row (a message, its steps, and the tokens that each cost), and writes a line
of JSON for each. The table is 72 to 110 columns wide; a message that is longer than its steps is shortened.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import typer
from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outlines_cont.cli.demo import VOTES, Demo, DemoRow, DemoStep, read_messages
from outlines_cont.cli.growing import GrowingRecords
from outlines_cont.cli.options import DemoOptions, load_model

_NARROWEST, _WIDEST = 72, 110
_INTRODUCTION = """\
Three generators on one state for each message: choice, JSON, regex. Tokens are
fed to the model, reused from the state, or forced by the constraint. Votes: the
record is sampled again, three times, from a fork of the state; how many samples
agree with it is a hint at how sure the model is.
"""


def show_demo(options: DemoOptions, file: TextIO, started: float) -> bool:
    """Run the demo, print its table and summary, and write the records to `file`; return whether a step has failed."""
    model = load_model(None, None, None)
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
    return any(row.has_failed for row in rows)


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
        self._message_width = self._width * 3 // 10

    def print_head(self) -> None:
        """Print the names of the columns."""
        steps = self._steps()
        steps.add_row("Step", "Result", "Fed", "Reused", "Forced", style="bold")
        self._print(Text("Message", style="bold"), steps)
        self._console.print(Rule(style="dim"), width=self._width)

    def print_row(self, row: DemoRow) -> None:
        """Print a message and its steps."""
        steps = self._steps()
        for step in row.steps:
            counts = (f"{count:,}" for count in (step.fed, step.reused, step.forced))
            steps.add_row(step.name, _result(step), *counts)
        height = len(self._console.render_lines(steps))
        self._print(self._shortened(row.text, height), steps)
        self._console.print()

    def _steps(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.width = self._width - self._message_width - 2
        table.add_column(width=6)
        table.add_column(ratio=1, overflow="fold")
        for width in (5, 6, 6):
            table.add_column(width=width, justify="right")
        return table

    def _print(self, message: RenderableType, steps: Table) -> None:
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=self._message_width, overflow="fold")
        line.add_column()
        line.add_row(message, steps)
        self._console.print(line, width=self._width)

    def _shortened(self, message: str, height: int) -> Text:
        """Return the message on at most `height` lines, cut with an ellipsis."""
        lines = list(Text(" ".join(message.split())).wrap(self._console, self._message_width))
        if len(lines) > height:
            lines = lines[:height]
            lines[-1].truncate(self._message_width - 1)
            lines[-1].append("…")
        return Text("\n").join(lines)


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
