"""Output while rows run (rich): `progress_bar`, the `summary` at the end, and `GrowingRecords`, a live table of the last 20 records
that are being written. Without a terminal the bar is hidden unless it is requested, and each field is a line when it is complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Self

from pydantic_core import to_json
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlines_cont.cli.console import flags_of, in_words_of_shell, one_line
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.generation.tasks.progress import ProgressBar
from outlines_cont.pipelines.extraction import Tally

_MOST_ROWS = 20


@contextmanager
def progress_bar(tally: Tally, show: bool | None) -> Iterator[Callable[[Tally], None]]:
    """Show a bar during the block, and yield the function that updates it. If `show` is None, it is shown on a terminal only."""
    bar = ProgressBar("loading", console=Console(stderr=True, force_terminal=True if show else None))
    started = monotonic()

    def update(tally: Tally) -> None:
        seconds = monotonic() - started - tally.loading_seconds
        rate = f"{tally.rows / seconds:,.1f} rows/s" if seconds > 0 else ""
        reused = f", {tally.reused_tokens:,} tokens reused" if tally.reused_tokens else ""
        bar.update(tally.skipped + tally.rows, tally.failed, rate + reused, "rows")

    if show is not False:
        bar.start(tally.total, tally.skipped, tally.failed)
    try:
        yield update
    finally:
        bar.stop()


def summary(tally: Tally, output: Path | None, seconds: float, *, has_workers: bool = False) -> str:
    """Return the last line of a command that writes rows."""
    text = f"{tally.skipped + tally.rows} rows, {tally.failed} failed, {seconds:.1f} s"
    if tally.loading_seconds and not has_workers:  # workers load their own models, in parallel
        text += f", {tally.loading_seconds:.1f} of them loading the model"
    if tally.skipped:
        text += f"; {tally.skipped} of them were there already"
    if output is not None:
        text += f"; written to {output}"
    if tally.first_failure is not None:
        text += f". First failure: {one_line(in_words_of_shell(tally.first_failure, flags_of(ExtractOptions)))}"
    return text


class GrowingRecords:
    """Shows records while they are written: `with growing:` around those that are shown together."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._fields: dict[str, dict[str, Any]] = {}
        self._num_printed: dict[str, int] = {}

    def show(self, label: str, value: Any, is_whole: bool) -> None:
        """Show the record of a row so far, or None before there is one; a None that is whole removes the row."""
        if value is None:
            if is_whole:
                self._fields.pop(label, None)
                self._num_printed.pop(label, None)
            return
        self._fields[label] = fields = _fields_of(value)
        if self._console.is_terminal:
            self._grow()
            return
        # Only the last field may be incomplete.
        printed = self._num_printed.get(label, 0)
        self._num_printed[label] = max(printed, len(fields) - (not is_whole))
        for name, field in [*fields.items()][printed : self._num_printed[label]]:
            self._console.print(f"{label}: {name}: {_shown(field)}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the table and the records."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._fields, self._num_printed = {}, {}

    def _grow(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        table = Table.grid(padding=(0, 2, 0, 0))
        for label, fields in [*self._fields.items()][-_MOST_ROWS:]:
            text = ", ".join(f"{name}: {_shown(field)}" for name, field in fields.items())
            table.add_row(Text(label, style="bold"), Text(text, overflow="ellipsis", no_wrap=True))
        self._live.update(table, refresh=True)


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a record by name, the items of an array by number, any other value under `value`."""
    if isinstance(value, Mapping):
        return {str(name): field for name, field in value.items()}
    if isinstance(value, list | tuple):
        return {str(number): item for number, item in enumerate(value)}
    if hasattr(value, "__dict__"):
        return dict(vars(value))
    return {"value": value}


def _shown(value: Any) -> str:
    """Return a field, which may be incomplete, as JSON."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an incomplete record may fit no type of a union
            return to_json(value, fallback=str).decode()
    except Exception:  # a serializer or computed field of the user's class may need fields that are missing
        return "..."
