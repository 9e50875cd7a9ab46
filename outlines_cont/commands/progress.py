"""A progress bar on the standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

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
    with Progress(*bar_columns(), console=console) as progress:
        progress.add_task("loading", total=tally.total, completed=tally.skipped, failed=tally.failed)
        yield progress


def advance(progress: Progress | None, tally: Tally) -> None:
    """Move the bar to where the work stands now."""
    if progress is not None:
        task = progress.task_ids[0]
        progress.update(task, description="rows", completed=tally.skipped + tally.rows, failed=tally.failed)
