"""`Engine`: the inference engine of one model: continuous batching, where rows join and leave between any two steps. A step plans every row
by its policies, drafts, feeds the pending tokens of each batch in one forward (long prompts in parts), and draws a token for each row that
is ready, or several if draft tokens were accepted. It has no thread: callers that wait for a job take the steps for all jobs, in turns.
`engine_of` returns the engine of a model.

`EngineStats`: counters of an engine since it was created: steps, rows summed over steps, tokens by kind, and seconds in total and by
phase (forward, with the masks computed meanwhile; policies and other masks; sampling; the rest). `-` returns the counts between two copies.

The `Scheduler` chooses the rows that run, and bisects a batch whose forward fails; `Recovery` rolls back an interrupted step. The
controllers of a job (`Job.start_calls`) are called during the forward.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fsm.process_fork import give_way, reset_in_child
from outlines_cont.checks import check_int, check_model
from outlines_cont.engine.drawing.masking import overlap_mask_computation
from outlines_cont.engine.job import Checkpoint, Job, Recovery, Step, Task
from outlines_cont.engine.row import Row
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.engine.scheduler import Scheduler
from outlines_cont.engine.steering import plan, plan_if_drafted
from outlines_cont.engine.token_draws import Speculation, TokenDraws
from outlines_cont.errors import ProcessForked
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import LazyTokenSet
from outlines_cont.policies.slow_work import begin_step, end_step
from outlines_cont.state.row import StateRow


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was created.

    Attributes:
        steps: steps taken.
        rows: rows that ran, summed over steps.
        work: tokens by kind, and forwards; see `Meter`.
        seconds: time of all steps.
        forward_seconds: time of the forwards.
        sampling_seconds: time of the draws.
    """

    steps: int = 0
    rows: int = 0
    work: Meter = field(default_factory=Meter)
    seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0

    @property
    def mask_seconds(self) -> float:
        """Time in which policies decided; of masks that are computed during a forward only the wait for them."""
        return self.work.mask_seconds

    @property
    def rows_per_step(self) -> float:
        """Mean number of rows per step; 0 before the first step."""
        return self.rows / self.steps if self.steps else 0.0

    @property
    def python_seconds(self) -> float:
        """Time of steps outside of the three phases."""
        return max(self.seconds - self.forward_seconds - self.mask_seconds - self.sampling_seconds, 0.0)

    def __sub__(self, before: EngineStats) -> EngineStats:
        """Return the counts since an earlier copy: `engine.stats - before`."""
        if not isinstance(before, EngineStats):
            return NotImplemented
        return EngineStats(*(getattr(self, part.name) - getattr(before, part.name) for part in fields(self)))

    def __str__(self) -> str:
        work = self.work
        drafted = f"{work.accepted_tokens:,} of {work.proposed_tokens:,} drafted, " if work.proposed_tokens else ""
        return (
            f"{self.steps:,} steps of {self.rows_per_step:.1f} rows; {work.forwards:,} forwards, {work.fed_tokens:,} tokens fed, "
            f"{work.sampled_tokens:,} sampled, {work.forced_tokens:,} forced, {drafted}{work.recomputed_tokens:,} recomputed; "
            f"{self.seconds:.2f} s: forward {self.forward_seconds:.2f}, masks {self.mask_seconds:.2f}, "
            f"sampling {self.sampling_seconds:.2f}, Python {self.python_seconds:.2f}"
        )


MAX_BATCH_TOKENS = 4096
MAX_ROWS = 256
# The longest wait for controllers after a forward, as a fraction of its time.
_PATIENCE = 0.25
# The wait after controllers were called, in seconds, so that quick calls do not compete with the forward for the interpreter.
_HEAD_START = 0.0005
# The longest wait under the lock in a step that does nothing but wait for controllers, in seconds.
_LONGEST_WAIT = 0.01


class Engine:
    """The inference engine of one model, which runs the rows of all its calls together.

    Args:
        model: the model.
        max_batch_tokens: the most tokens of one forward, padding included; longer prompts are fed in parts.
        max_rows: the most rows that run together, no more than `max_batch_tokens`; the others wait.

    Both limits are attributes, too, and may be changed at any time. All methods may be called by any thread.

    Raises:
        OptionError: a limit is not an int, 1 or more; `model` was not made by `outlines_cont.models`.
        AttributeError: an attribute is set that the engine does not have, such as a misspelt limit.
    """

    __slots__ = (
        "__weakref__",
        "_calls_ended",
        "_draws",
        "_recovery",
        "_scheduler",
        "_speculation",
        "_stats",
        "_steps",
        "model",
    )

    def __init__(
        self, model: LanguageModel, *, max_batch_tokens: int = MAX_BATCH_TOKENS, max_rows: int = MAX_ROWS
    ) -> None:
        check_model(model)
        self.model = model
        self._stats = EngineStats()
        self._begin(max_batch_tokens, max_rows)
        reset_in_child(self._begin_in_child)

    def _begin(self, max_batch_tokens: int, max_rows: int) -> None:
        """Begin without a job."""
        self._scheduler = Scheduler(self.model, max_batch_tokens, max_rows)
        self._recovery = Recovery(self._begin_step, self._roll_back)
        self._speculation = Speculation(self.model.device.type)
        self._draws = TokenDraws()
        self._calls_ended = threading.Event()
        self._steps: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Future[None], list[Step]]] = (
            WeakKeyDictionary()
        )

    def _begin_in_child(self) -> None:
        """Begin without a job in the child of a fork: the threads that ran them are in the parent, and so are those of OpenMP.

        OpenMP would wait for its threads, so the child has one, as the workers of a `DataLoader` have.
        """
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
        before = self._scheduler
        for job in (*before.jobs, *before.submitted):
            job.is_lost = True
        for batch in before.batches:
            with suppress(Exception):  # of a step that runs in the parent
                batch.close()
        self._begin(before.max_batch_tokens, before.max_rows)

    # -- limits --------------------------------------------------------------------------------------------------------

    @property
    def max_batch_tokens(self) -> int:
        """The most tokens of one forward, padding included; `OptionError` if set to anything but an int, 1 or more."""
        return self._scheduler.max_batch_tokens

    @max_batch_tokens.setter
    def max_batch_tokens(self, value: int) -> None:
        check_int("max_batch_tokens", value, 1)
        self._scheduler.max_batch_tokens = value

    @property
    def max_rows(self) -> int:
        """The most rows that run together; `OptionError` if set to anything but an int, 1 or more."""
        return self._scheduler.max_rows

    @max_rows.setter
    def max_rows(self, value: int) -> None:
        check_int("max_rows", value, 1)
        self._scheduler.max_rows = value

    def __repr__(self) -> str:
        return (
            f"<Engine of {self.model!r}, max_rows={self.max_rows}, max_batch_tokens={self.max_batch_tokens}, "
            f"{self.num_running} rows running>"
        )

    # -- for callers that wait -----------------------------------------------------------------------------------------

    @property
    def lock(self) -> threading.RLock:
        """Acquired during a step; acquire it to read running rows."""
        return self.model.kv_store.lock

    @property
    def stats(self) -> EngineStats:
        """A copy of the counters."""
        with self.lock:
            return copy.deepcopy(self._stats)

    @property
    def num_running(self) -> int:
        """How many rows run, without those that wait to be admitted."""
        return self._scheduler.num_running

    def submit(self, job: Job) -> None:
        """Add the rows of a job, which run from the next step on, if there is room. Does not block."""
        self._scheduler.submitted.append(job)

    def cancel(self, job: Job) -> None:
        """Remove the rows of a job, after the running step if there is one; at its end if this thread takes it. Nothing if the job is over.

        It waits for the lock: a reader may hold it, and no later step may come to remove the rows.
        """
        if job.is_over:
            return
        job.is_cancelled = True
        with self.lock:
            if not self._recovery.has_turn:  # else this thread is in a step
                with self._recovery.turn(), self._recovery:
                    self._scheduler.remove_cancelled()
                self._account()  # which lets go of the job, and of the keys and values of its rows that had ended

    def advance(self, job: Job) -> None:
        """Take a step for all jobs, unless this job is over when the lock is acquired.

        Raises:
            ProcessForked: the job was submitted before this process was forked from another.
        """
        give_way()
        with self.lock:
            if job.is_lost:
                raise ProcessForked(
                    "expected a call of this process, got one that ran when the process was forked: it runs on in the parent alone. "
                    "States of before the fork are valid here: call the generator again."
                )
            if not job.is_over:
                self.step()

    async def _advance_async(self, item: Step) -> None:
        """Wait for a step in a thread; all tasks of one event loop wait for the same step, and read what it has changed after it."""
        loop = asyncio.get_running_loop()
        step, items = self._steps.get(loop, (None, []))
        if step is None or step.done():
            step, items = asyncio.ensure_future(asyncio.to_thread(self.advance, item.job)), []
            self._steps[loop] = step, items
            step.add_done_callback(self._end_step)
        items.append(item)
        try:
            # If this task is cancelled, the step continues for the others.
            await asyncio.shield(step)
        except asyncio.CancelledError:
            if item in items:
                items.remove(item)
            raise

    def _end_step(self, step: asyncio.Future[None]) -> None:
        """Drop a step that is done: note for all its tasks what it has changed, before one of them begins the next step.

        An error is retrieved; all tasks that wait for it raise it. Where another thread holds the lock, each task notes for itself.
        """
        loop = step.get_loop()
        items = []
        if loop in self._steps and self._steps[loop][0] is step:
            items = self._steps.pop(loop)[1]
        if step.cancelled() or step.exception() is not None or not self.lock.acquire(blocking=False):
            return
        try:
            for item in items:
                item.note_for_task()
        finally:
            self.lock.release()

    def steps(self, job: Job) -> Generator[Step, None, None]:
        """Return a task that lasts until a submitted job is over; to close it earlier cancels the job."""
        step = Step(job)
        try:
            while not step.is_over:
                yield step
        finally:
            self.cancel(job)

    def run(self, job: Job) -> None:
        """Submit a job, and run it to its end."""
        self.submit(job)
        deque(self.items(self.steps(job)), maxlen=0)

    def items(self, task: Task) -> Generator[Any, None, None]:
        """Take the steps that a task awaits, and yield its items; closing the generator earlier closes the task."""
        with closing(task):
            for item in task:
                if isinstance(item, Step):
                    try:
                        self.advance(item.job)
                    except item.caught as error:
                        item.error = error
                    item.note()
                else:
                    yield item

    async def async_items(self, task: Task) -> AsyncGenerator[Any, None]:
        """Do the same without blocking an event loop. Close it with `contextlib.aclosing` to close the task immediately."""
        try:
            for item in task:
                if isinstance(item, Step):
                    item.is_noted = False
                    try:
                        await self._advance_async(item)
                    except item.caught as error:
                        item.error = error
                    if item.failure is not None:
                        raise item.failure
                    if not item.is_noted and item.read is None:
                        item.note()
                    elif not item.is_noted:
                        # In a thread, since another task may have begun the next step, which holds the lock.
                        await asyncio.to_thread(item.note)
                else:
                    yield item
        except BaseException:
            # Shielded: if no thread is free yet, cancelling it again would leave the task open.
            await asyncio.shield(asyncio.to_thread(task.close))
            raise

    def snapshots(self, rows: Sequence[Row]) -> list[StateRow]:
        """Return running rows as values, as they are between two steps; they continue to run, and no token is fed again.

        Cost: the tokens of each row, which are copied to tuples; keys and values are shared.
        """
        with self.lock, self._recovery.turn(), torch.inference_mode():
            self._recovery.undo()
            kept = self._scheduler.shares(rows)
            return [
                row.snapshot(kv[: row.cached] if kv is not None else None) for row, kv in zip(rows, kept, strict=True)
            ]

    def kv_of(self, row: Row) -> RowKV | None:
        """Return the keys and values of the tokens that a row has fed, in a step, in which its program asks; nothing is copied."""
        (kv,) = self._scheduler.shares([row])
        return kv[: row.cached] if kv is not None else None

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take one step for all rows: admit, plan, feed, draw.

        Raises:
            BaseException: an interrupt, or a bug in the engine. The step is rolled back: every row continues as before it, and feeds
                its tokens again. An error of one row ends that row, and is not raised.
        """
        with self.lock, torch.inference_mode():
            started = perf_counter()
            begin_step()
            try:
                with self._recovery.turn(), self._recovery as checkpoint:  # registers new jobs
                    self._scheduler.remove_cancelled()
                    self._scheduler.admit(checkpoint.add)
                    self._plan()
                    self._scheduler.merge()
                    # The list grows if a batch is bisected.
                    has_moved = [self._step_batch(batch) for batch in self._scheduler.batches]
                    if not any(has_moved) and not self._scheduler.submitted:
                        self._await_calls()
                    self._speculation.keep(self._scheduler.rows)
                    self._scheduler.remove_cancelled()
            finally:
                end_step()
                self._count(perf_counter() - started)

    def _plan(self) -> None:
        """Plan every row, and remove those that have ended; then call the controllers of jobs."""
        self._plan_rows()
        if self._calls_ended.is_set():
            self._calls_ended.clear()
        calling = [job for job in self._scheduler.jobs if job.start_calls(self._calls_ended.set)]
        if not calling:
            return
        self._calls_ended.wait(_HEAD_START)
        if self._finish_calls([job for job in calling if not job.reads_ahead], 0.0):
            self._plan_rows()

    def _plan_rows(self) -> None:
        for batch in list(self._scheduler.batches):
            for row in batch.rows:
                plan(row)
            self._scheduler.leave(batch)

    def _step_batch(self, batch: RunningBatch) -> bool:
        """Draft, feed, execute what controllers have returned, and draw for one batch; return whether anything was done."""
        self._speculation.draft(batch.rows)
        lazy = _lazy(batch)
        started, forwards = perf_counter(), self._scheduler.counts.forwards
        logits = self._feed(batch, lazy)
        has_fed = self._scheduler.counts.forwards > forwards
        calling = [job for job in self._scheduler.jobs if job.is_calling]
        if calling:
            calling = list(dict.fromkeys(row.job for row in batch.rows if row.job.is_calling))
        if calling:
            batch.read_scores()  # which controllers may read
        # A short wait for controllers saves a step; a long one would delay the other rows.
        has_returned = bool(calling) and self._finish_calls(calling, (perf_counter() - started) * _PATIENCE)
        for row in _lazy(batch) if has_returned else lazy:
            row.make_masks()
        ready = batch.rows
        if logits is None or lazy or calling:
            ready = [row for row in batch.rows if row.is_ready and not row.job.is_calling]
        if ready:
            self._draw(batch, ready, logits)
        else:
            batch.read_scores()
        if not (ready or has_fed or has_returned):
            for job in dict.fromkeys(row.job for row in batch.rows):
                job.refuse_deadlock()
        return bool(ready) or has_returned or has_fed

    def _feed(self, batch: RunningBatch, lazy: Sequence[Row]) -> torch.Tensor | None:
        """Feed pending tokens while the masks of `lazy` rows are computed. On failure, bisect the batch until the failing row is alone.

        Returns:
            (R, V) logits if every row has one position to draw from; else None, and rows have their own.
        """
        if not batch.rows:
            return None
        self._stats.rows += len(batch.rows)
        started = perf_counter()
        try:
            if not lazy:
                return batch.feed(self.max_batch_tokens)
            with overlap_mask_computation([mask for row in lazy for mask in row.next_masks], self.model.device):
                return batch.feed(self.max_batch_tokens)
        except Exception as error:
            self._scheduler.bisect(batch, error)
            return None
        finally:
            self._stats.forward_seconds += perf_counter() - started

    def _draw(self, batch: RunningBatch, ready: list[Row], logits: torch.Tensor | None) -> None:
        """Draw a token for every row that is ready; repeat without a forward for rows whose draft token was accepted."""
        started = perf_counter()
        self._draws.take(batch, ready, logits if len(ready) == len(batch.rows) else None)
        while ready := [row for row in ready if row.feed.is_drafted and plan_if_drafted(row)]:
            self._draws.take_drafted(batch, ready)
        self._stats.sampling_seconds += perf_counter() - started

    def _finish_calls(self, jobs: list[Job], patience: float) -> bool:
        """Execute what the controllers of jobs return within `patience` seconds; return whether any did."""
        deadline = perf_counter() + patience
        has_returned = False
        for job in jobs:
            forks = job.finish_calls(max(deadline - perf_counter(), 0.0))
            has_returned = has_returned or forks is not None
            for row, rows in forks or ():
                self._scheduler.fork(row, rows)
        return has_returned

    def _await_calls(self) -> None:
        """Wait for controllers in a step that does nothing else, for a short time, so that others may submit and cancel."""
        self._calls_ended.clear()
        calling = [job for job in self._scheduler.jobs if job.is_calling]
        slow = next((row.slow for row in self._scheduler.rows if row.slow is not None), None)
        if not all(row.has_ended for row in self._scheduler.rows) and not self._finish_calls(calling, 0.0):
            (slow or self._calls_ended).wait(_LONGEST_WAIT)

    # -- before and after a step ---------------------------------------------------------------------------------------

    def _begin_step(self) -> Checkpoint:
        """Register new jobs, and return the checkpoint of the step."""
        scheduler = self._scheduler
        scheduler.register_submitted()
        checkpoint = Checkpoint(scheduler.jobs, scheduler.room)
        checkpoint.add(row for row in scheduler.rows if not row.job.is_controlled)
        return checkpoint

    def _roll_back(self, checkpoint: Checkpoint) -> None:
        """Restore the rows and jobs of a checkpoint; all rows wait to be admitted again."""
        self._scheduler.restart(checkpoint.jobs, checkpoint.restore(), checkpoint.room)
        self._draws = TokenDraws()
        self._speculation.keep(())

    def _count(self, seconds: float) -> None:
        """Count the step, and its work."""
        self._stats.steps += 1
        self._stats.seconds += seconds
        self._account()

    def _account(self) -> None:
        """Add the work of the jobs to all counters, and remove those that are over."""
        scheduler, work = self._scheduler, Meter()
        scheduler.counts.move(work)
        for job in scheduler.jobs:
            job.account()
            job.counts.move(work)
        self.model.count(work)
        self._stats.work.add(work)
        scheduler.jobs = [job for job in scheduler.jobs if not job.is_over]


def _lazy(batch: RunningBatch) -> list[Row]:
    """Return the rows with masks that may not be computed yet."""
    return [
        row
        for row in batch.rows
        if (row.draft is not None or isinstance(row.sample.mask, LazyTokenSet)) and row.slow is None
    ]


def engine_of(model: LanguageModel) -> Engine:
    """Return the engine that all generators of a model share, created by the first call.

    Raises:
        OptionError: `model` was not made by `outlines_cont.models`.
    """
    check_model(model)
    engine: Engine = model.memo.get("engine") or model.memo.setdefault("engine", Engine(model))
    return engine
