"""`Recovery`: steps as transactions. A step that is interrupted or fails is rolled back to a `Checkpoint`; a batch whose forward fails is
bisected until the failing row is alone, and only that row fails. If there is no room for keys and values, rows wait instead. After
either, keys and values fed since a row began are recomputed.

A step begins with a checkpoint, and is committed by one assignment, its last. An error or interrupt before that leaves rows, jobs and
random numbers as they were, so the output does not depend on where a step was interrupted. Counters (`EngineStats`, meters) are not
rolled back: work that is repeated counts twice.

A checkpoint records the lengths of the lists of a row, and does not copy them. Therefore rows, policy states and jobs append to their
lists, but never change or shorten one: they replace it by a new list.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import clear_frames

from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.engine.scheduler import Scheduler
from outlines_cont.errors import KVBudgetError, UnsupportedBranch


class Checkpoint:
    """An undo log of one step: the jobs of an engine, the room for rows, and functions that restore rows and jobs."""

    def __init__(self, jobs: Sequence[Job], room: int | None) -> None:
        """Record the jobs, and all rows of controlled jobs, as a controller may change any of them."""
        self.jobs = list(jobs)
        self.room = room
        self._undo: list[Callable[[], None]] = []
        self._known: set[int] = set()
        for job in jobs:
            if job.is_controlled:
                self.add(job.rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Record rows before the step changes them. Cost: 5 us for each, whatever its length."""
        for row in rows:
            if id(row.job) not in self._known:
                self._known.add(id(row.job))
                self._undo.append(row.job.checkpoint())
            self._undo.append(row.checkpoint())

    def restore(self) -> deque[Row]:
        """Restore everything, and return the rows; may be repeated if it is interrupted itself."""
        for undo in self._undo:
            undo()
        return deque(row for job in self.jobs for row in job.rows)


class Recovery:
    """Rolls back the rows of a scheduler after errors and interrupts; `checkpoint` is None between two steps."""

    def __init__(self, scheduler: Scheduler, forget: Callable[[], None]) -> None:
        """Recover the rows of a scheduler; `forget` is called after a roll-back."""
        self.checkpoint: Checkpoint | None = None
        self._scheduler = scheduler
        self._forget = forget
        self._thread: int | None = None  # the thread that takes a step

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body as a transaction, after the roll-back of one that was interrupted.

        Raises:
            UnsupportedBranch: the thread is in a transaction.
        """
        if self.checkpoint is not None and self._thread == threading.get_ident():
            raise UnsupportedBranch(
                "expected a check, a validator or a policy that does not run the model that waits for it, got one that calls a "
                "generator of the same model. Call it after the text is complete."
            )
        self.undo()
        self._scheduler.register_submitted()
        self._thread = threading.get_ident()
        try:
            self.checkpoint = Checkpoint(self._scheduler.jobs, self._scheduler.room)
            self.checkpoint.add(row for row in self._scheduler.rows if not row.job.is_controlled)
            yield
            self.checkpoint = None
        except BaseException:
            self.undo()
            raise
        finally:
            self._thread = None

    def undo(self) -> None:
        """Roll back to the checkpoint, if there is one; all rows wait to be admitted again."""
        if self.checkpoint is not None:
            self._scheduler.restart(self.checkpoint.jobs, self.checkpoint.restore(), self.checkpoint.room)
            self._forget()
            self.checkpoint = None

    def bisect(self, batch: RunningBatch, error: Exception) -> None:
        """Split a batch whose forward has failed, to try again with fewer rows; a row, or a joint job, that is alone fails.

        If there is no room for keys and values, rows wait instead until others have ended.
        """
        clear_frames(error.__traceback__)  # to release their keys and values, as rows keep the error
        if isinstance(error, KVBudgetError) and batch.begin_alone():
            return  # shared buffers may be larger than what the rows need of them
        units = list(dict.fromkeys(_unit(row) for row in batch.rows))
        others = [other for other in self._scheduler.batches if other is not batch and other.rows]
        if isinstance(error, KVBudgetError) and others:
            self._scheduler.put_back(batch, batch.rows)
        elif len(units) == 1:
            batch.forget()
            for row in batch.rows:
                row.fail(error)
        else:
            second = [row for row in batch.rows if _unit(row) in units[len(units) // 2 :]]
            if isinstance(error, KVBudgetError):
                self._scheduler.put_back(batch, second)
            else:
                self._scheduler.batches.append(batch.split(second))


def _unit(row: Row) -> Row | Job:
    """Return the row, or its job if all rows of the job must run in one batch."""
    return row.job if row.job.is_joint else row
