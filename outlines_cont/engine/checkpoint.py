"""`Checkpoint`: a snapshot of the jobs of an engine between two steps, to roll back a step that is interrupted.

A step is a transaction. It begins with a checkpoint, and what it has done holds from one assignment on, its last. Whatever ends it
earlier, an interrupt above all, leaves rows, jobs and random numbers as they were before; only keys and values that were fed since
a row began are fed again. So what a row writes never depends on where a step was interrupted.

To be cheap, a checkpoint holds no copies of what rows hold per token, but how much of it there was. Therefore rows, tracks and jobs
append to their lists, but never change or shorten one: they take a new one instead.

Left out: what is only counted (`EngineStats`, meters), where work that was done twice counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row, RowCheckpoint


class Checkpoint:
    """The jobs of an engine, and how to bring back what a step may change of them.

    Attributes:
        jobs: those of then.
        room: how many rows there was room for.
    """

    def __init__(self, jobs: Sequence[Job], room: int | None) -> None:
        """Hold the jobs, and the rows of those that are steered from outside, where a step may look at any row."""
        self.jobs = list(jobs)
        self.room = room
        self._undo: dict[int, Callable[[], None]] = {}
        self._rows: list[tuple[Row, RowCheckpoint]] = []
        for job in jobs:
            if job.is_steered:
                self.add(job.rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Hold rows before the step changes them. Cost: 5 us for each, however long it is."""
        for row in rows:
            if id(row.job) not in self._undo:
                self._undo[id(row.job)] = row.job.checkpoint()
            self._rows.append((row, row.checkpoint()))

    def restore(self) -> deque[Row]:
        """Bring everything back, and return the rows; may be done again, where it was interrupted itself."""
        for undo in self._undo.values():
            undo()
        for row, point in self._rows:
            row.restore(point)
        return deque(row for job in self.jobs for row in job.rows)
