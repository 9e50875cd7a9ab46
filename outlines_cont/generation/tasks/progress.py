"""`Progress`, the argument of `on_progress=` callbacks, `ProgressBar`, which shows it on the standard error if that is a terminal (rich),
and `ProgressReporter`, which is called after every step, and calls back when a row has ended, a tenth of a second has passed, or the call
is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

OnProgress = Callable[["Progress"], object]
# Seconds between two calls of the callback while no row ends.
_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call: rows, tokens and seconds so far.

    Attributes:
        rows: texts of the call, samples counted.
        done: those that have ended, with an error or not.
        failed: those that have ended with an error.
        tokens: tokens of all of them so far, prompts left out.
        seconds: since the call began.
        is_over: nothing follows: all have ended, or the call was interrupted.
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
        console: where it is shown; None is the standard error. Nothing is shown unless it is a terminal.
    """

    def __init__(self, description: str = "texts", *, console: Console | None = None) -> None:
        self._description = description
        self._console = console if console is not None else Console(stderr=True)
        self._bar: RichProgress | None = None

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        if self._bar is None:
            self.start(progress.rows)
        rate = f"{progress.tokens / progress.seconds:,.0f} tokens/s" if progress.seconds else ""
        self.update(progress.done, progress.failed, rate, self._description)
        if progress.is_over:
            self.stop()

    def start(self, total: int | None, done: int = 0, failed: int = 0) -> None:
        """Show the bar; `total` is None for an unknown number of rows."""
        if not self._console.is_terminal:
            return
        before = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        notes = (TextColumn("{task.fields[failed]} failed"), TextColumn("{task.fields[rate]}"))
        self._bar = RichProgress(*before, *notes, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._bar.add_task(self._description, total=total, completed=done, failed=failed, rate="")
        self._bar.start()

    def update(self, done: int, failed: int, rate: str, description: str) -> None:
        """Show new numbers, if there is a terminal."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=description, completed=done, failed=failed, rate=rate)

    def stop(self) -> None:
        """End the bar, which stays on the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class ProgressReporter:
    """Calls a callback with the progress: when a row ends, at most ten times a second otherwise, and at the end.

    `counts` returns (rows, done, failed, tokens).
    """

    def __init__(self, report: OnProgress, counts: Callable[[], tuple[int, int, int, int]]) -> None:
        self._report, self._counts = report, counts
        self._started = self._last = monotonic()
        self._done, self._is_over = -1, False

    def __call__(self, *, is_over: bool = False) -> None:
        """Call the callback, unless it was called less than a tenth of a second ago; at the end always."""
        if self._is_over:
            return
        self._is_over = is_over
        rows, done, failed, tokens = self._counts()
        now = monotonic()
        if is_over or done != self._done or now - self._last >= _INTERVAL:
            self._done, self._last = done, now
            self._report(Progress(rows, done, failed, tokens, now - self._started, is_over))
