"""`Engine`: all rows of one model that run now. Rows come and go between any two steps.

A step asks every row what it wants, lets rows fork and those that have ended leave, feeds what is pending in one forward, and
draws a token for every row that has logits to draw from. Who steers rows from outside (`Job.ask`) is asked before the forward and
answers after it.

Order: jobs are admitted in the order in which they were submitted, as many rows as there is room for; every row that was
admitted goes on by one token per step. New prompts are read in a lane of their own, `max_batch_tokens` per step, so that a
long one does not hold up those that write; when it is read, its rows join the others.

Nobody drives an engine in the background: whoever waits for a job takes the steps, for all jobs. Threads take turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from traceback import clear_frames
from weakref import WeakKeyDictionary

import torch

from outlines_cont.engine.checkpoint import Checkpoint
from outlines_cont.engine.drawing.draw_place import Draw, DrawPlace, foresees
from outlines_cont.engine.drawing.draw_plan import DrawPlan
from outlines_cont.engine.drawing.masking import Masker, made_beside
from outlines_cont.engine.failure import fails
from outlines_cont.engine.guided_row import guided
from outlines_cont.engine.job import Job
from outlines_cont.engine.proposals import Guessing
from outlines_cont.engine.reuse import Reuse
from outlines_cont.engine.row import Row, Want
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.engine.stats import EngineStats
from outlines_cont.errors import KVBudgetError, OptionError, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv import RowKV
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow

MAX_BATCH_TOKENS = 4096
MAX_ROWS = 256
# Beside more rows than these a short text is not worth its copy for the prefix cache: to feed it again costs less in a batch.
_FEW_ROWS = 8
# How long an answer may be waited for after a forward, as a part of the time that it took.
_PATIENCE = 0.25
# How long the engine stands back after it has asked, so that those who answer at once are not in its way later, in seconds.
_HEAD_START = 0.0005
# How long the engine holds its lock where there is nothing to do but to wait for answers, in seconds.
_LONGEST_WAIT = 0.01


class Engine:
    """Runs rows of one model together.

    Args:
        model: the model.
        max_batch_tokens: the most tokens of one forward, padding included; longer prompts are read in parts.
        max_rows: the most rows that run at once, no more than `max_batch_tokens`; the others wait.

    Both limits are attributes, too, and may be changed at any time. All methods may be called by any thread.

    Raises:
        OptionError: a limit is not an int, 1 or more; `model` is none that `outlines_cont.models` has made.
        AttributeError: an attribute is set that there is none of, such as a misspelt limit.
    """

    __slots__ = (
        "__weakref__",
        "_answer",
        "_checkpoint",
        "_counts",
        "_guessing",
        "_jobs",
        "_lanes",
        "_last_plan",
        "_lock",
        "_masker",
        "_max_batch_tokens",
        "_max_rows",
        "_room",
        "_stats",
        "_stepping",
        "_steps",
        "_submitted",
        "_waiting",
        "model",
    )

    def __init__(
        self, model: LanguageModel, *, max_batch_tokens: int = MAX_BATCH_TOKENS, max_rows: int = MAX_ROWS
    ) -> None:
        check_model(model)
        self.model = model
        self.max_batch_tokens = max_batch_tokens
        self.max_rows = max_rows
        self._room: int | None = None  # for rows, where keys and values have run out of room
        self._lanes: list[RunningBatch] = []
        self._waiting: deque[Row] = deque()
        self._jobs: list[Job] = []
        self._submitted: deque[Job] = deque()
        self._checkpoint: Checkpoint | None = None
        self._stepping: int | None = None  # the thread that takes a step
        self._counts = Meter()
        self._stats = EngineStats()
        self._masker = Masker()
        self._guessing = Guessing(model.device.type)
        self._last_plan: DrawPlan | None = None
        self._answer = threading.Event()
        self._lock = threading.RLock()
        self._steps: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[None]] = WeakKeyDictionary()

    # -- limits --------------------------------------------------------------------------------------------------------

    @property
    def max_batch_tokens(self) -> int:
        """The most tokens of one forward, padding included. Set to anything but an int, 1 or more: `OptionError`."""
        return self._max_batch_tokens

    @max_batch_tokens.setter
    def max_batch_tokens(self, value: int) -> None:
        self._max_batch_tokens = _checked_limit(value, "max_batch_tokens")

    @property
    def max_rows(self) -> int:
        """The most rows that are admitted at once. Set to anything but an int, 1 or more: `OptionError`."""
        return self._max_rows

    @max_rows.setter
    def max_rows(self, value: int) -> None:
        self._max_rows = _checked_limit(value, "max_rows")

    def __repr__(self) -> str:
        return (
            f"<Engine of {self.model!r}, max_rows={self.max_rows}, max_batch_tokens={self.max_batch_tokens}, "
            f"{self.num_running} rows running>"
        )

    # -- for those who wait --------------------------------------------------------------------------------------------

    @property
    def lock(self) -> threading.RLock:
        """Held during a step; hold it to read rows that run."""
        return self._lock

    @property
    def stats(self) -> EngineStats:
        """What the engine has done so far; a copy."""
        with self._lock:
            return self._stats.copy()

    @property
    def num_running(self) -> int:
        """Rows that run now, those that wait for room left out."""
        return sum(len(lane.rows) for lane in self._lanes)

    def submit(self, job: Job) -> None:
        """Let the rows of a job run from the next step on, when there is room. Returns at once."""
        self._submitted.append(job)

    def cancel(self, job: Job) -> None:
        """Take the rows of a job out, now, or at the end of the step that is being taken. Nothing happens to a job that is over."""
        if job.is_over:
            return
        job.is_cancelled = True
        if self._lock.acquire(blocking=False):
            try:
                if self._checkpoint is None:  # else a step of this very thread has yet to end
                    with self._transaction():
                        self._sweep()
            finally:
                self._lock.release()

    def advance(self, job: Job) -> None:
        """Take a step for all, unless the job is over by the time that it is this thread's turn."""
        with self._lock:
            if not job.is_over:
                self.step()

    async def advance_async(self, job: Job) -> None:
        """Wait until a step has been taken, in a thread; tasks of one event loop wait for the same one."""
        loop = asyncio.get_running_loop()
        step = self._steps.get(loop)
        if step is None:
            step = self._steps[loop] = asyncio.ensure_future(asyncio.to_thread(self.advance, job))
            step.add_done_callback(lambda done: (self._steps.pop(loop, None) and done.cancelled()) or done.exception())
        # A task that is cancelled leaves the step to the others.
        await asyncio.shield(step)

    def steps(self, job: Job) -> Generator[None, None, None]:
        """Take steps until a job that was submitted is over; whoever stops earlier cancels it.

        After the last one everything is there to be seen, whoever has taken the steps.
        """
        is_over = False
        try:
            while not is_over:
                self.advance(job)
                is_over = job.is_over  # not asked after the yield: others may take steps meanwhile
                yield
        finally:
            self.cancel(job)

    async def async_steps(self, job: Job) -> AsyncGenerator[None, None]:
        """Do the same without holding up an event loop. Close it with `contextlib.aclosing`, to cancel at once."""
        is_over = False
        try:
            while not is_over:
                await self.advance_async(job)
                is_over = job.is_over
                yield
        finally:
            self.cancel(job)

    def snapshots(self, rows: Sequence[Row]) -> list[StateRow]:
        """Return running rows as values, as they are between two steps; they go on. No token is ever fed again because of it.

        Cost: for each row what its tokens take as tuples; keys and values are shared.
        """
        with self._lock, torch.inference_mode():
            self._undo()
            held: dict[int, RowKV | None] = {}
            for lane in self._lanes:
                if any(row is other for row in rows for other in lane.rows):
                    held.update((id(row), share) for row, share in zip(lane.rows, lane.shares(), strict=True))
            kept = [held.get(id(row), row.base_kv) for row in rows]
            return [
                row.snapshot(kv[: row.cached] if kv is not None else None) for row, kv in zip(rows, kept, strict=True)
            ]

    def step(self) -> None:
        """Let every row go on by one token.

        Raises:
            BaseException: an interrupt, or a mistake of the engine itself. Then the step never was: every row goes on as if
                nothing had happened, but what it had fed is fed again. What goes wrong in a row is its error, and no one else's.
        """
        with self._lock, torch.inference_mode():
            started = perf_counter()
            try:
                with self._transaction():
                    self._admit()
                    self._plan()
                    # Some lanes are parted on the way, and all of these have their turn.
                    moved = [self._step_lane(lane) for lane in self._lanes]
                    if not any(moved):
                        self._await_answers()
                    self._merge()
                    self._sweep()
            finally:
                self._note(perf_counter() - started)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Let the body happen as a whole, or not at all; see `Checkpoint`. What was interrupted before is undone first."""
        if self._checkpoint is not None and self._stepping == threading.get_ident():
            raise UnsupportedBranch(
                "expected a check, a validator or a policy that runs nothing on the model that waits for it, got one that calls a "
                "generator of the same model. Call it after the text is complete."
            )
        self._undo()
        self._take_submitted()
        self._stepping = threading.get_ident()
        try:
            self._checkpoint = Checkpoint(self._jobs, self._room)
            self._checkpoint.add(row for lane in self._lanes for row in lane.rows if not row.job.is_steered)
            yield
            self._checkpoint = None
        except BaseException:
            self._undo()
            raise
        finally:
            self._stepping = None

    def _undo(self) -> None:
        """Go back to the checkpoint, if there is one; all rows wait to be admitted again."""
        if self._checkpoint is None:
            return
        for lane in self._lanes:
            lane.close()
        self._lanes = []
        self._waiting = self._checkpoint.restore()
        self._jobs, self._room = [*self._checkpoint.jobs], self._checkpoint.room
        self._masker, self._last_plan = Masker(), None
        self._guessing.keep(())
        self._checkpoint = None

    # -- who runs ------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let waiting rows in, in their order: as many as there is room for, those of a joint job all at once."""
        self._sweep()
        if not self._waiting:
            return
        reuse = Reuse(self.model, self._lanes)
        admitted: list[Row] = []
        later: list[Row] = []  # those that wait for others to read what they share
        while self._waiting and (
            self.num_running + len(admitted) + len(later) < self._limit or not (self._lanes or admitted)
        ):
            row = self._waiting.popleft()
            if reuse.must_wait(row):
                later.append(row)
                continue
            admitted.append(row)
            while row.job.is_joint and self._waiting and self._waiting[0].job is row.job:
                reuse.must_wait(self._waiting[0])
                admitted.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(later))
        if not admitted:
            return
        assert self._checkpoint is not None
        self._checkpoint.add(row for row in admitted if not row.job.is_steered)
        groups = reuse.groups(admitted) if self.model.can_stack else [[row] for row in admitted]
        self._lanes += [RunningBatch(self.model, group, self._counts) for group in groups]

    @property
    def _limit(self) -> int:
        """The most rows that may run now."""
        limit = min(self.max_rows, self.max_batch_tokens)
        if limit > self.max_batch_tokens // 2 and self._has_shadows:  # each of these is a second sequence
            limit = max(self.max_batch_tokens // 2, 1)
        return limit if self._room is None else min(limit, self._room)

    @property
    def _has_shadows(self) -> bool:
        return any(
            row.shadow is not None for rows in (self._waiting, *(lane.rows for lane in self._lanes)) for row in rows
        )

    def _take_submitted(self) -> None:
        """Take in new jobs. It comes before the checkpoint, so wherever it is interrupted, it can be done again."""
        if not self._submitted:
            return
        jobs, rows = {id(job) for job in self._jobs}, {id(row) for row in self._waiting}
        while self._submitted:
            job = self._submitted[0]
            if id(job) not in jobs:
                self._waiting.extend([row for row in job.rows if id(row) not in rows])
                self._jobs.append(job)
            self._submitted.popleft()

    def _merge(self) -> None:
        """Let lanes that have read their prompts join the first of them."""
        self._lanes = [lane for lane in self._lanes if lane.rows]
        ready = [lane for lane in self._lanes if not lane.is_reading] if self.model.can_stack else []
        for lane in ready[1:]:
            ready[0].join(lane)
            self._lanes.remove(lane)
        if not self._lanes:
            self._room = None
        self._guessing.keep(row for lane in self._lanes for row in lane.rows)

    def _sweep(self) -> None:
        """Take out the rows of jobs that were cancelled."""
        cancelled = [job for job in self._jobs if job.is_cancelled and not job.is_over]
        if not cancelled:
            return
        self._waiting = deque(row for row in self._waiting if not row.job.is_cancelled)
        for lane in self._lanes:
            for row in lane.rows:
                if row.job.is_cancelled:
                    row.want = Want.LEAVE
            # Others may have ended in the same step.
            ended = lane.leave()
            self._keep_prefixes(ended)
            for row, state_row in ended:
                if not row.job.is_cancelled:
                    row.job.settle(row, state_row)
        self._lanes = [lane for lane in self._lanes if lane.rows]
        for job in cancelled:
            job.leave()
            job.rows = []

    # -- one lane ------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Let every row say what it wants, and those that have ended leave; ask who steers others from outside."""
        self._plan_rows()
        self._answer.clear()
        asked = [job for job in self._jobs if job.ask(self._answer.set)]
        if not asked:
            return
        # Without it a thread that wants to answer at once waits for the interpreter until the forward has begun.
        self._answer.wait(_HEAD_START)
        if self._collect([job for job in asked if not job.reads_ahead], 0.0):
            self._plan_rows()

    def _plan_rows(self) -> None:
        for lane in list(self._lanes):
            for row in lane.rows:
                row.plan()
            while forking := [row for row in lane.rows if row.want is Want.FORK]:
                for row in forking:
                    self._branch(lane, row)
            self._leave(lane)

    def _branch(self, lane: RunningBatch, row: Row) -> None:
        """Let a row fork by the branches that its policies want."""
        if row.job.is_joint:
            row.fail(UnsupportedBranch("the rows of a search are forked by the search; a policy cannot fork them"))
        elif not row.job.can_fork:
            row.fail(
                UnsupportedBranch(
                    "expected policies that return one branch or none in a call of a generator, which returns as many rows as it was "
                    "given, got several. Fork with `state.fork(n)` before the call, or write a program for `control.run`."
                )
            )
        else:
            self._fork(row, row.branched(row.forks))

    def _fork(self, row: Row, rows: list[Row]) -> None:
        """Put the rows that a row goes on as, itself first, in its place."""
        row.job.forked(row, rows)
        for lane in self._lanes:
            if any(row is other for other in lane.rows):
                self._lanes += lane.fork(row, rows)
                return
        at = next(i for i, other in enumerate(self._waiting) if other is row)
        for offset, fork in enumerate(rows[1:], 1):
            self._waiting.insert(at + offset, fork)

    def _step_lane(self, lane: RunningBatch) -> bool:
        """Feed what is pending, take in what was answered meanwhile, and draw; return whether anything was done."""
        self._guessing.guess(lane.rows)
        started, forwards = perf_counter(), self._counts.forwards
        logits = self._feed(lane)
        asked = list(dict.fromkeys(row.job for row in lane.rows if row.job.is_asked))
        # An answer that comes a little later than the logits is worth waiting for; a late one holds up nobody else for long.
        has_answers = bool(asked) and self._collect(asked, (perf_counter() - started) * _PATIENCE)
        for row in lane.rows:
            row.settle()
        ready = [row for row in lane.rows if row.is_ready and not row.job.is_asked]
        if ready:
            started = perf_counter()
            is_plain = logits is not None and len(ready) == len(lane.rows)
            self._sample(
                lane, ready, logits if is_plain and logits is not None else torch.stack([*map(_logits, ready)])
            )
            if self._counts.forwards > forwards and not asked:
                self._guessing.note_forward(lane.num_fed)
            while ready := [row for row in ready if row.goes_on()]:
                if left := [row for row in ready if not _takes_foreseen(row)]:
                    self._sample(lane, left, torch.stack([*map(_logits, left)]))
                self._guessing.note_draw()
            self._stats.sampling_seconds += perf_counter() - started
        elif self._counts.forwards == forwards and not has_answers:
            self._refuse_deadlock(lane)
        return bool(ready) or has_answers or self._counts.forwards > forwards

    def _collect(self, jobs: list[Job], patience: float) -> bool:
        """Take in the answers to what jobs have asked, those that come within `patience` seconds; return whether any came."""
        deadline = perf_counter() + patience
        has_answers = False
        for job in jobs:
            forks = job.answered(max(deadline - perf_counter(), 0.0))
            has_answers = has_answers or forks is not None
            for row, rows in forks or ():
                self._fork(row, rows)
        return has_answers

    def _await_answers(self) -> None:
        """Nothing is left to do but to wait for those who were asked; a little, so that others may submit and cancel."""
        self._answer.clear()
        asked = [job for job in self._jobs if job.is_asked]
        if any(lane.rows for lane in self._lanes) and not self._collect(asked, 0.0):
            self._answer.wait(_LONGEST_WAIT)

    def _leave(self, lane: RunningBatch) -> None:
        ended = lane.leave()
        self._keep_prefixes(ended)
        for row, state_row in ended:
            row.job.settle(row, state_row)
            if self._room is not None:
                self._room += 1

    def _keep_prefixes(self, ended: list[tuple[Row, StateRow]]) -> None:
        """Let prompts begin with what rows have read and written; those that have fed a few tokens only are not looked at."""
        cache = self.model.prefix_cache
        if not ended or not cache.is_on:
            return
        least = cache.min_tokens if self.num_running + len(ended) <= _FEW_ROWS else 2 * cache.min_tokens
        held = [(row, state_row, state_row.kv) for row, state_row in ended if state_row.kv and row.error is None]
        worth = [(state_row, kv) for row, state_row, kv in held if 2 * (len(kv) - row.source.cached) >= least]
        if worth:
            cache.refresh()
        for state_row, kv in worth:
            cache.keep(state_row.token_ids[: len(kv)], kv, least)

    def _feed(self, lane: RunningBatch) -> torch.Tensor | None:
        """Feed what is pending. What goes wrong costs rows what they have fed; a row that is alone with it fails."""
        if not lane.rows:
            return None
        self._stats.rows += len(lane.rows)
        started = perf_counter()
        try:
            with made_beside([mask for row in lane.rows for mask in row.next_masks], self.model.device):
                return lane.feed(self.max_batch_tokens)
        except Exception as error:
            self._part(lane, error)
            return None
        finally:
            self._stats.forward_seconds += perf_counter() - started

    def _part(self, lane: RunningBatch, error: Exception) -> None:
        """After an error of a forward: try again with fewer rows, until those that cause it are alone."""
        clear_frames(error.__traceback__)  # they hold keys and values, and rows hold the error
        if isinstance(error, KVBudgetError) and lane.begin_alone():
            return  # what others hold may be more than the rows need of it
        units = list(dict.fromkeys(_unit(row) for row in lane.rows))
        if isinstance(error, KVBudgetError) and any(other.rows for other in self._lanes if other is not lane):
            self._put_back(lane, lane.rows)
        elif len(units) == 1:
            lane.forget()
            for row in lane.rows:
                row.fail(error)
        else:
            later = [row for row in lane.rows if _unit(row) in units[len(units) // 2 :]]
            if isinstance(error, KVBudgetError):
                self._put_back(lane, later)
            else:
                self._lanes.append(lane.split(later))

    def _put_back(self, lane: RunningBatch, rows: list[Row]) -> None:
        """Let rows wait until others have ended: there is no room for all of them at once."""
        self._waiting.extendleft(reversed(lane.split(rows).rows))
        self._room = max(self.num_running, 1)

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _sample(self, lane: RunningBatch, rows: list[Row], logits: torch.Tensor) -> None:
        """Draw a token for every row; joint jobs choose among theirs when all of them are ready."""
        drawn_from = guided(rows, logits)
        single = [i for i, row in enumerate(rows) if not row.job.is_joint]
        if len(single) == len(rows):
            self._draw(rows, logits, drawn_from)
            return
        if single:
            self._draw([rows[i] for i in single], logits[single], drawn_from[single])
        for job in dict.fromkeys(row.job for row in rows if row.job.is_joint):
            if not any(row.is_reading for row in job.rows):
                mine = [i for i, row in enumerate(rows) if row.job is job]
                asked = [rows[i] for i in mine]
                masked = self._masker.masked(drawn_from[mine], [row.mask for row in asked])
                self._choose(lane, job, asked, logits[mine], masked)

    def _draw(self, rows: list[Row], logits: torch.Tensor, drawn_from: torch.Tensor) -> None:
        """Draw a token for every row, and those that come after it if what was guessed comes true."""
        ends = [(row, row.next_place) for row in rows]
        ahead = [(row, place) for row in rows for place in row.places_ahead()] if foresees(logits) else []
        if ahead:
            lines = torch.stack([place.logits for _, place in ahead])
            logits, drawn_from = torch.cat([logits, lines]), torch.cat([drawn_from, lines])
        draws = self._drawn([*ends, *ahead], logits, drawn_from)
        # First those ahead: where a row takes another token than was guessed, it forgets them.
        for (row, place), draw in zip(ahead, draws[len(ends) :], strict=True):
            row.foresee(place, draw)
        for row, draw in zip(rows, draws, strict=False):
            _take(row, draw)

    def _drawn(
        self, asked: Sequence[tuple[Row, DrawPlace]], logits: torch.Tensor, drawn_from: torch.Tensor
    ) -> list[Draw]:
        """Return what is drawn at each place of a row; rows whose sampler fails have failed."""
        rows, places = [row for row, _ in asked], [place for _, place in asked]
        masked = self._masker.masked(drawn_from, [place.mask for place in places])
        token_ids, sampling_logprobs = self._token_ids(rows, places, masked)
        normal = logits.log_softmax(dim=-1)  # one kernel, where `logsumexp` takes six
        logprobs = normal.gather(-1, token_ids[:, None])[:, 0]
        norm = logits.amax(dim=-1) - normal.amax(dim=-1)
        # One transfer from the device per step; ids up to 2 ** 24 are exact in float32.
        table = torch.stack([token_ids.to(logits.dtype), norm, logprobs, sampling_logprobs])
        tops = _tops(rows, logits, norm)
        return [
            Draw(int(token_id), logprob, sampling_logprob, total, top)
            for top, (token_id, total, logprob, sampling_logprob) in zip(tops, table.T.tolist(), strict=True)
        ]

    def _token_ids(
        self, rows: list[Row], places: list[DrawPlace], masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R,) token ids and (R,) log-probabilities as they were drawn."""
        drawings = [place.drawing for place in places]
        uniforms, counts = None, None
        if any(drawing.needs_random for drawing in drawings):
            uniforms = torch.tensor([place.uniform or 0.0 for place in places], dtype=torch.float64)
        if any(drawing.needs_counts for drawing in drawings):
            counts = [drawing.counts_of(row) for row, drawing in zip(rows, drawings, strict=True)]
        self._last_plan = DrawPlan.of(drawings, self._last_plan)
        draws = self._last_plan.draw(masked, uniforms, counts)
        for index, error in draws.errors.items():
            rows[index].fail(error)
        return draws.token_ids, draws.logprobs

    def _choose(
        self, lane: RunningBatch, job: Job, rows: list[Row], logits: torch.Tensor, masked: torch.Tensor
    ) -> None:
        """Let a joint job choose what its rows go on with, and put that in their place."""
        going = job.choose(rows, logits, masked)
        plan: list[tuple[int, Row]] = []
        for index, row in enumerate(lane.rows):
            if row.job is job:
                plan += [(index, new) for source, new in going if source is row]
            else:
                plan.append((index, row))
        job.rows = [new for _, new in going]
        lane.replace([index for index, _ in plan], [row for _, row in plan])

    def _refuse_deadlock(self, lane: RunningBatch) -> None:
        """Fail the rows of jobs all of whose rows wait: nobody is left who could wake them."""
        for job in dict.fromkeys(row.job for row in lane.rows):
            job.refuse_deadlock()

    def _note(self, seconds: float) -> None:
        """Add the work of the step to what was counted."""
        self._stats.steps += 1
        self._stats.seconds += seconds
        for job in self._jobs:
            job.account()
        for counts in [self._counts, *(job.counts for job in self._jobs)]:
            self.model.count(counts)
            self._stats.work.add(counts)
            counts.clear()
        self._jobs = [job for job in self._jobs if not job.is_over]


def check_model(model: object) -> None:
    """Raise for what is no model.

    Raises:
        OptionError: `model` is none that `outlines_cont.models` has made.
    """
    if not hasattr(model, "kv_store"):
        raise OptionError(
            f"expected a model that `models.transformers` or `models.from_transformers` has made, got {model!r}",
            "model",
        )


def _checked_limit(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"expected an int, 1 or more, as `{name}`, got {value!r}", name)
    return value


def _unit(row: Row) -> Row | Job:
    """Return what cannot be parted: a row, or the rows of a joint job."""
    return row.job if row.job.is_joint else row


def _tops(rows: Sequence[Row], logits: torch.Tensor, norm: torch.Tensor) -> list[tuple[tuple[int, float], ...]]:
    """Return for each row the most probable tokens with their log-probabilities, as many as it wants."""
    most = min(max(row.num_top for row in rows), logits.shape[-1])
    if not most:
        return [()] * len(rows)
    values, token_ids = logits.topk(most, dim=-1)
    pairs = zip(token_ids.tolist(), (values - norm[:, None]).tolist(), strict=True)
    return [
        tuple(zip(ids[: row.num_top], logprobs, strict=False)) for row, (ids, logprobs) in zip(rows, pairs, strict=True)
    ]


def _takes_foreseen(row: Row) -> bool:
    """Take the draw that was made ahead for a row; return whether there was one."""
    draw = row.foreseen()
    if draw is not None:
        _take(row, draw)
    return draw is not None


def _take(row: Row, draw: Draw) -> None:
    """Let a row have what was drawn for it, or fail with why nothing can be."""
    if not fails(row, draw.norm, draw.sampling_logprob):
        row.take(draw)


def _logits(row: Row) -> torch.Tensor:
    assert row.logits is not None
    return row.logits


def engine_of(model: LanguageModel) -> Engine:
    """Return the engine that all generators of a model share; made when first asked for.

    Raises:
        OptionError: `model` is none that `outlines_cont.models` has made.
    """
    check_model(model)
    engine: Engine = model.memo.get("engine") or model.memo.setdefault("engine", Engine(model))
    return engine
