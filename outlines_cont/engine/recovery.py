"""`Recovery`: steps as transactions: a step that is interrupted or fails is rolled back to a `Checkpoint`, an undo log with a function for
every row and job. Rows, jobs and random numbers are as before, so the output does not depend on where a step was interrupted; keys and
values fed since a row began are recomputed, and counters (`EngineStats`, meters) count repeated work twice. A step within a step of the
same thread is refused.

A step is committed by one assignment, its last. A checkpoint records the lengths of the lists of a row, and does not copy them. Therefore
rows, policy states and jobs append to their lists, but never change or shorten one: they replace it by a new list.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.errors import UnsupportedBranch


class Checkpoint:
    """An undo log of one step: the jobs of an engine, the room for rows, and functions that restore rows and jobs."""

    def __init__(self, jobs: Sequence[Job], room: int | None) -> None:
        """Record the jobs, and all rows of controlled jobs, as a controller may change any of them."""
        self.jobs = list(jobs)
        self.room = room
        self._undo: list[Callable[[], None]] = []
        self._known: set[Job] = set()
        for job in jobs:
            if job.is_controlled:
                self.add(job.rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Record rows before the step changes them. Cost: 5 us for each, at any length."""
        for row in rows:
            if row.job not in self._known:
                self._known.add(row.job)
                self._undo.append(row.job.checkpoint())
            self._undo.append(row.checkpoint())

    def restore(self) -> deque[Row]:
        """Restore everything, and return the rows; may be repeated if it is interrupted itself."""
        for undo in self._undo:
            undo()
        return deque(row for job in self.jobs for row in job.rows)


class Recovery:
    """Rolls back steps after errors and interrupts; `checkpoint` is None between two steps."""

    def __init__(self, begin: Callable[[], Checkpoint], roll_back: Callable[[Checkpoint], None]) -> None:
        """`begin` returns the checkpoint of a step; `roll_back` restores it."""
        self.checkpoint: Checkpoint | None = None
        self._begin, self._roll_back = begin, roll_back
        self._thread: int | None = None  # the thread that takes a step

    @contextmanager
    def transaction(self) -> Iterator[Checkpoint]:
        """Run the body as a transaction, after the roll-back of one that was interrupted; yield its checkpoint.

        Raises:
            UnsupportedBranch: the thread is in a transaction.
        """
        if self.checkpoint is not None and self._thread == threading.get_ident():
            raise UnsupportedBranch(
                "expected a check, a validator or a policy that does not run the model that waits for it, got one that calls a "
                "generator of the same model. Call it after the text is complete."
            )
        self.undo()
        self._thread = threading.get_ident()
        try:
            self.checkpoint = self._begin()
            yield self.checkpoint
            self.checkpoint = None
        except BaseException:
            self.undo()
            raise
        finally:
            self._thread = None

    def undo(self) -> None:
        """Roll back to the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self._roll_back(self.checkpoint)
            self.checkpoint = None
