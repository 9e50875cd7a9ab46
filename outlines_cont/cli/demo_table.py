"""`DemoTable`: the table of the demo (rich), printed row by row: a message, its steps, and the tokens that each cost. 72 to 110 columns
wide; a message that is longer than its steps is shortened.
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outlines_cont.cli.demo import VOTES, DemoRow, DemoStep

_NARROWEST, _WIDEST = 72, 110


class DemoTable:
    """A table whose rows appear as they come, in a pipe, too; it is 72 to 110 columns wide.

    Args:
        console: where it is printed. The console decides on colours: a pipe has none.
    """

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
        """Return the message on at most `height` lines; an ellipsis replaces what is left out."""
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
