"""`Job`: the rows of one call, which are submitted to the engine together, with the finished rows. Each row draws its own
tokens; subclasses choose among all rows (`choose`, beam search), or call controllers outside the engine (`start_calls`). If all rows wait,
they fail with `DeadlockError`.

`Task`: what waits for steps of the engine, as a generator that yields each `Step` that it awaits, and items for its consumer; so it is
one for `for` and `async for` loops, see `Engine.items`.

`Recovery`: steps as transactions: a step that is interrupted or fails is rolled back to a `Checkpoint`, which has a function for
every row and job. Rows, jobs and random numbers are as before, so the output does not depend on where a step was interrupted; keys and
values fed since a row began are recomputed, and counters (`EngineStats`, meters) count repeated work twice. A step within a step of the
same thread is refused.

A step is committed by one assignment, its last. A checkpoint keeps the values to which rows and jobs refer. Therefore these never change: a
row and a job replace them by others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any

import torch

from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.errors import DeadlockError, UnsupportedBranch
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow


class Job:
    """The rows of one call. In this base class each row draws its own tokens.

    Attributes:
        rows: those that still run, in the order of the call; forks follow their row.
        done: the finished rows by index; forks have the indices after those of the call.
        counts: the work of its rows since the last step.
        is_cancelled: whether the call was cancelled, so that its rows are to be removed.
        is_lost: whether this process is the child of a fork, and the rows run in the parent.
        is_joint: whether `choose` chooses among all rows, so that they must run in one batch.
        is_controlled: whether controllers outside the engine are called, so that any row may change.
        is_calling: whether calls of controllers have not ended; until then no row of the job takes a token.
        reads_ahead: whether rows feed their tokens while controllers are called.
        is_urgent: whether running rows of other jobs wait for it (`RowStatus.CALLING`): it is admitted first, into the room of these.
        slow_seconds: the time that threads have worked for its rows outside of steps; see `SlowWork`.
        slow_work: their work, as `fsm` counts it.
    """

    is_joint = False
    is_controlled = False
    is_calling = False
    is_lost = False
    reads_ahead = False
    is_urgent = False
    slow_seconds = 0.0
    slow_work = 0
    _values: tuple[str, ...] = ("rows", "_num_rows")
    """The attributes that a step may replace."""

    def __init__(self, rows: Sequence[Row | None], counts: Meter) -> None:
        """Take rows, each with its index; None for an index without a row."""
        self.rows: list[Any] = [row for row in rows if row is not None]
        self.done: dict[int, StateRow] = {}
        self.counts = counts
        self.is_cancelled = False
        self._num_rows = len(rows)
        for index, row in enumerate(rows):
            if row is not None:
                row.job, row.index = self, index

    @property
    def is_over(self) -> bool:
        """Whether all rows have ended."""
        return not self.rows

    def note_end(self, row: Row, state_row: StateRow) -> None:
        """Record the result of a row that has ended."""
        self.done[row.index] = state_row
        self.rows = [other for other in self.rows if other is not row]

    def forked(self, row: Row, rows: Sequence[Row]) -> None:
        """Record the rows that a row forks into, itself first."""
        for fork in rows[1:]:
            fork.index = self._num_rows
            self._num_rows += 1
        at = self.rows.index(row)
        self.rows = [*self.rows[:at], *rows, *self.rows[at + 1 :]]

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the job without its rows, any number of times; see `Checkpoint`."""
        values, num_done = {name: getattr(self, name) for name in self._values}, len(self.done)

        def undo() -> None:
            vars(self).update(values)
            self.done = dict(islice(self.done.items(), num_done))

        return undo

    def refuse_deadlock(self) -> None:
        """Fail all rows if every one of them waits, as none is left that could wake another."""
        if all(row.status is RowStatus.WAITING and not row.has_ended and row.slow is None for row in self.rows):
            for row in self.rows:
                row.fail(DeadlockError("every row of the call waits; no row is left that could wake another"))

    def start_calls(self, notify: Callable[[], None]) -> bool:
        """Start to call the controllers of the rows, before the forward, in a thread; return whether there are any.

        `notify` is called, by any thread, when all calls have ended.
        """
        return False

    def finish_calls(self, patience: float) -> list[tuple[Row, list[Row]]] | None:
        """Execute what the controllers return within `patience` seconds; return each row that forks, with the rows that it forks into,
        itself first; None if they have not returned.
        """
        return None

    def account(self) -> None:
        """Read `counts`, which are cleared after every step."""

    def leave(self) -> None:
        """Release the resources of a cancelled job; called before its rows are removed."""

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Return (old row, new row) for each next row of a joint job; several may continue one old row.

        `rows` are those that are ready to sample; the others do not change. `logits` are their (R, V) logits, `masked` the same
        under their masks.
        """
        raise NotImplementedError


class Step:
    """A step of the engine that a task awaits; it is yielded again until `is_over`.

    Attributes:
        job: the submitted job for which a step is taken; no step if it is over.
        is_over: whether it was over after the last step.
        read: returns what the step has changed, if that is of interest. It may wait for the lock of the engine.
        found: what it has returned after that, so that nothing is missed.
        caught: the errors of whole steps that the task handles; others are raised to its consumer.
        error: the last one that was caught, or None.
        is_noted, failure: whether another task has recorded this step, and the error it got.
    """

    is_noted = False
    failure: Exception | None = None
    caught: tuple[type[Exception], ...] = ()
    error: Exception | None = None

    def __init__(self, job: Job, read: Callable[[], Sequence[Any]] | None = None) -> None:
        self.job, self.read = job, read
        self.is_over = False
        self.found: Sequence[Any] = ()

    def note(self) -> None:
        """Note what a step has changed."""
        self.is_over = self.job.is_over  # before it is read, as others may take steps meanwhile
        if self.read is not None:
            self.found = self.read()

    def note_for_task(self) -> None:
        """Do the same on behalf of the task, which raises an error of it."""
        try:
            self.note()
        except Exception as error:
            self.failure = error
        self.is_noted = True


Task = Generator[Any, None, None]


class Checkpoint:
    """What a step began with: the jobs of an engine, the room for rows, and functions that restore rows and jobs."""

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
        """Record rows before the step changes them. Cost: 1 us for each, at any length."""
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
    """Rolls back steps, its `with` blocks, after errors and interrupts; `checkpoint` is None between two steps.

    Enter `turn` first, by the thread that has the lock of the engine: `with recovery.turn(), recovery: ...`. An interrupt may come anywhere
    in the methods here, and leave a checkpoint, to which the next turn returns; the lock behind a turn is always released.
    """

    def __init__(self, begin: Callable[[], Checkpoint], roll_back: Callable[[Checkpoint], None]) -> None:
        """`begin` returns the checkpoint of a step; `roll_back` restores it."""
        self.checkpoint: Checkpoint | None = None
        self._begin, self._roll_back = begin, roll_back
        self._turn = threading.Lock()

    @property
    def has_turn(self) -> bool:
        """Whether the thread that has the lock of the engine takes a step."""
        return self._turn.locked()

    def turn(self) -> threading.Lock:
        """Return what to enter for a step.

        Raises:
            UnsupportedBranch: the thread takes one already.
        """
        if self.has_turn:
            raise UnsupportedBranch(
                "expected a check, a validator or a policy that does not run the model that waits for it, got one that calls a "
                "generator of the same model. Call it after the text is complete."
            )
        return self._turn

    def __enter__(self) -> Checkpoint:
        """Begin a transaction, after the roll-back of one that was interrupted; return its checkpoint."""
        self.undo()
        self.checkpoint = self._begin()
        return self.checkpoint

    def __exit__(self, kind: object, *_: object) -> None:
        """Commit the transaction, or roll it back after an error."""
        if kind is not None:
            self.undo()
        self.checkpoint = None

    def undo(self) -> None:
        """Roll back to the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self._roll_back(self.checkpoint)
            self.checkpoint = None
