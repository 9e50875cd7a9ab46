"""`progress_bar`: a progress bar of rich on the standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn

from outlines_cont.pipelines.extraction import Tally
from outlines_cont.progress import bar_columns


@contextmanager
def progress_bar(tally: Tally, show: bool | None) -> Iterator[Progress | None]:
    """Yield a bar that `advance` moves, None where none is shown.

    Args:
        tally: where the work stands at the beginning.
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
    """Move the bar to where the work stands now."""
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
