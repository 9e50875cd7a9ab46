"""`Progress`, the argument of `on_progress=` callbacks; `ProgressBar`, a callback that shows a bar on a terminal (rich); and
`ProgressReporter`, which calls the callback when a row ends, else at most ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

OnProgress = Callable[["Progress"], object]
# Seconds between two calls of the callback while no row ends.
_INTERVAL = 0.1


def bar_columns(*more: ProgressColumn) -> tuple[ProgressColumn, ...]:
    """Return the columns of a bar of rows with a field `failed`, and `more` before the times."""
    rows = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )
    return (*rows, *more, TimeElapsedColumn(), TimeRemainingColumn())


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call: rows, tokens and seconds so far.

    Attributes:
        rows: the number of texts of the call, including all samples.
        done: the number of those that have ended, with an error or not.
        failed: the number of those that have ended with an error.
        tokens: the number of tokens of all of them so far, without prompts.
        seconds: the time since the call began.
        is_over: whether this is the last report: all have ended, or the call was interrupted.
    """

    rows: int
    done: int
    failed: int
    tokens: int
    seconds: float
    is_over: bool


class ProgressBar:
    """A bar on the standard error, for one call: `on_progress=ProgressBar()`.

    Args:
        description: the text before the bar.
        console: the console of rich to write to; None is the standard error. Nothing is written unless it is a terminal.
    """

    def __init__(self, description: str = "texts", *, console: Console | None = None) -> None:
        self._description = description
        self._console = console if console is not None else Console(stderr=True)
        self._bar: RichProgress | None = None

    def __call__(self, progress: Progress) -> None:
        """Update the bar."""
        if not self._console.is_terminal:
            return
        bar = self._bar or self._opened(progress)
        rate = f"{progress.tokens / progress.seconds:,.0f} tokens/s" if progress.seconds else ""
        bar.update(bar.task_ids[0], completed=progress.done, failed=progress.failed, rate=rate)
        if progress.is_over:
            bar.stop()
            self._bar = None

    def _opened(self, progress: Progress) -> RichProgress:
        bar = self._bar = RichProgress(*bar_columns(TextColumn("{task.fields[rate]}")), console=self._console)
        bar.add_task(self._description, total=progress.rows, failed=0, rate="")
        bar.start()
        return bar


class ProgressReporter:
    """Calls a callback with the progress: when a row ends, at most ten times a second otherwise, and at the end.

    Args:
        report: the callback.
        counts: a function that returns (rows, done, failed, tokens).
    """

    def __init__(self, report: OnProgress, counts: Callable[[], tuple[int, int, int, int]]) -> None:
        self._report, self._counts = report, counts
        self._started = self._last = monotonic()
        self._done, self._is_over = -1, False

    def __call__(self, *, is_over: bool = False) -> None:
        """Call the callback, unless no row has ended and the last call was less than a tenth of a second ago; at the end always."""
        if self._is_over:
            return
        self._is_over = is_over
        rows, done, failed, tokens = self._counts()
        now = monotonic()
        if is_over or done != self._done or now - self._last >= _INTERVAL:
            self._done, self._last = done, now
            self._report(Progress(rows, done, failed, tokens, now - self._started, is_over))
