"""What is shown while rows run (rich): `progress_bar`, and `GrowingRecords`, a live table of the records that are being written. Without a
terminal the bar is hidden, and each field is printed as a line when it is complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from pydantic_core import to_json
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from outlines_cont.pipelines.extraction import Tally
from outlines_cont.pipelines.rows.outcome import ShowValue
from outlines_cont.progress import bar_columns

_MOST_ROWS = 20


@contextmanager
def progress_bar(tally: Tally, show: bool | None) -> Iterator[Progress | None]:
    """Yield a bar that `advance` moves, None where none is shown.

    Args:
        tally: the progress at the beginning.
        show: whether to show it; None shows it on a terminal only.
    """
    console = Console(stderr=True, force_terminal=True if show else None)
    if show is False or not console.is_terminal:
        yield None
        return
    with Progress(*bar_columns(TextColumn("{task.fields[notes]}")), console=console) as progress:
        progress.add_task("loading", total=tally.total, completed=tally.skipped, failed=tally.failed, notes="")
        yield progress


def advance(progress: Progress | None, tally: Tally) -> None:
    """Move the bar to the present progress."""
    if progress is not None:
        done = tally.skipped + tally.rows
        task = progress.task_ids[0]
        progress.update(task, description="rows", completed=done, failed=tally.failed, notes=_notes(progress, tally))


def _notes(progress: Progress, tally: Tally) -> str:
    """Return how fast it is, and what was saved."""
    elapsed = progress.tasks[0].elapsed or 0.0
    seconds = elapsed - tally.loading_seconds
    rate = f"{tally.rows / seconds:,.1f} rows/s" if seconds > 0 else ""
    return rate + (f", {tally.reused_tokens:,} tokens reused" if tally.reused_tokens else "")


class GrowingRecords:
    """Records while they are written: `with growing:` around those that are shown together.

    Args:
        console: where they are shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._fields: dict[str, dict[str, Any]] = {}
        self._num_told: dict[str, int] = {}

    def show(self, label: str, value: Any, is_whole: bool) -> None:
        """Show a record so far, or None before there is one; with `is_whole` the final one, after which its row is forgotten."""
        if value is None:
            if is_whole:
                self._fields.pop(label, None)
                self._num_told.pop(label, None)
            return
        self._fields[label] = fields = _fields_of(value)
        if self._console.is_terminal:
            self._grow()
            return
        # The last field is whole when the record is, or another one follows.
        told = self._num_told.get(label, 0)
        self._num_told[label] = max(told, len(fields) - (not is_whole))
        for name, field in [*fields.items()][told : self._num_told[label]]:
            self._console.print(f"{label}: {name}: {_shown(field)}", markup=False, highlight=False, soft_wrap=True)

    def show_one(self, label: str) -> ShowValue:
        """Return a function that shows the record of a call with only one."""
        return lambda _, value, is_whole: self.show(label, value, is_whole)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Take the table away, and forget the records, before others come."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._fields, self._num_told = {}, {}

    def _grow(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        for label, fields in [*self._fields.items()][-_MOST_ROWS:]:
            text = ", ".join(f"{name}: {_shown(field)}" for name, field in fields.items())
            table.add_row(Text(label, style="bold"), Text(text, overflow="ellipsis", no_wrap=True))
        return table


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a record by name; those of an array by number, any other value under `value`."""
    if isinstance(value, Mapping):
        return {str(name): field for name, field in value.items()}
    if isinstance(value, list | tuple):
        return {str(number): item for number, item in enumerate(value)}
    if hasattr(value, "__dict__"):
        return dict(vars(value))
    return {"value": value}


def _shown(value: Any) -> str:
    """Return a field as JSON, as far as it goes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a part of a record is not one of a union
            return to_json(value, fallback=str).decode()
    except Exception:  # a serializer or a computed field of the user's class may need all fields
        return "..."
