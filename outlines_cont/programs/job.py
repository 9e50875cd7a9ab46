"""`ProgramJob`: the forks of one program as rows of the engine, driven in rounds: a thread calls the drivers of all forks that need a plan
in the order of their rows, then all plans are executed together, so that a program is deterministic but for limits in seconds. Also
enforces the budget in time and memory, detects deadlocks on shared variables, and restores the program when a step is undone.

`Caller`: a daemon thread that makes the calls of one program in order, a `Round` of them at a time. A thread cannot be killed, so a call
that takes too long is abandoned with its thread: its result is ignored, and a new thread makes the calls after it.

`Result`: the result of a program: its forks, shared variables, events and usage. `Fork`: the result of one sequence of it: state, text,
captures, finish reason, error, and the last 65,536 characters logged.

Until the last call has returned, no fork of the program takes a token; other programs do not wait. So the order in which forks read and
write shared variables does not depend on timing.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from operator import eq
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from outlines_cont.budget import Budget, Usage
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.errors import (
    BudgetError,
    CallbackTimeout,
    DeadlockError,
    ForkBudgetError,
    KVShareError,
    ProgramCancelled,
    ProgramTimeout,
    ScriptError,
    shortened,
    with_result,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.near_names import NearKeys
from outlines_cont.programs.fork_program import Capture, Event, Finish, Forked, ForkPlan, ForkProgram, ForkView
from outlines_cont.programs.variables import Shared
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState


class Callback:
    """A call of a driver, which is made once: `outcome` is its result and its error, None until it has ended or was abandoned."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.outcome: tuple[Any, Exception | None] | None = None
        self._function: Callable[[], Any] | None = function
        self._lock = threading.Lock()
        self._started: float | None = None
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far; 0 before it begins."""
        return 0.0 if self._started is None else (self._ended or perf_counter()) - self._started

    def make(self) -> bool:
        """Call the function, unless it was called or dropped; return False if the call was abandoned meanwhile, with its thread."""
        return self._function is None or self.end(self._made())

    def drop(self) -> None:
        """Never make the call, if it has not begun."""
        self._function = None

    def end(self, outcome: tuple[Any, Exception | None]) -> bool:
        """Set the outcome; return False if there is one already."""
        with self._lock:
            is_first = self.outcome is None
            self.outcome = outcome if is_first else self.outcome
        return is_first

    def _made(self) -> tuple[Any, Exception | None]:
        # The error refers to this frame, which is cleared, and to those that called it, which may not refer to the function.
        function, self._function = self._function, None
        if function is None:
            return None, None  # it was dropped meanwhile
        self._started = perf_counter()
        try:
            return function(), None
        except Exception as error:
            return None, error
        except BaseException as error:  # such as `sys.exit()`: it must not end the thread, for which others wait
            told = f"expected a controller to return or to raise an Exception, but it raised {error!r}"
            return None, ScriptError(told)
        finally:
            self._ended = perf_counter()


class Round:
    """Calls that are made one after the other; `notify` is called, by their thread, when all are over."""

    def __init__(self, calls: Sequence[Callback], notify: Callable[[], None]) -> None:
        self.calls = calls
        self.is_started = False  # whether it was passed to a thread
        self._notify = notify
        self._is_over = threading.Event()

    @property
    def present(self) -> Callback | None:
        """The call that is being made, or is the next; None when all are over."""
        return next((call for call in self.calls if call.outcome is None), None)

    def wait(self, seconds: float) -> bool:
        """Wait until all calls are over, at most `seconds`; return whether they are."""
        return self._is_over.wait(seconds)

    def run(self) -> bool:
        """Make the calls that are not over yet; return False if one was abandoned with its thread."""
        if not all(call.make() for call in self.calls):
            return False
        self._is_over.set()
        self._notify()
        return True


class Caller:
    """A daemon thread that makes calls, started when it is first needed."""

    def __init__(self) -> None:
        self._rounds: SimpleQueue[Round | None] | None = None

    def start(self, calls: Round) -> None:
        """Begin to make the calls of a round, after those of earlier ones."""
        if self._rounds is None:
            rounds: SimpleQueue[Round | None] = SimpleQueue()
            threading.Thread(target=_work, args=(rounds,), name="outlines-cont-control", daemon=True).start()
            self._rounds = rounds  # after the thread has started, wherever this is interrupted
        self._rounds.put(calls)
        calls.is_started = True

    def abandon(self, calls: Round, call: Callback, error: Exception) -> None:
        """End a call of a round with an error, and leave it to its thread; a new thread makes the calls after it."""
        if call.end((None, error)):
            self.close()
            self.start(calls)

    def close(self) -> None:
        """End the thread after its present call."""
        if self._rounds is not None:
            self._rounds.put(None)
            self._rounds = None


def _work(rounds: SimpleQueue[Round | None]) -> None:
    while (calls := rounds.get()) is not None and calls.run():
        del calls  # the results must not live until the next round


MAX_LOG = 65_536
"""How many characters of a log are kept, the last ones."""


@dataclass(slots=True, eq=False, repr=False)
class Fork:
    """One sequence of a program.

    Attributes:
        index: its number; the first is 0.
        parent: the number of the fork that it was forked from, None for the first.
        state: its tokens, prompt included, with their keys and values; None if it was cancelled.
        text: what the program has appended, as text.
        finish_reason: `stop` (the controller has stopped it, or the script has ended), `length` (the context is full), the name of a
            limit in `Budget`, `deadlock`, `error` or `cancelled`.
        error: the error that has ended it.
        trace: the traceback of its controller or script, as Python prints it.
        log: what it has logged, without what its parent had logged before.
        captures: what it has generated under a name; those of its parent before the fork included.
    """

    index: int
    parent: int | None
    state: SequenceState | None
    text: str
    finish_reason: str
    error: Exception | None
    trace: str
    log: str
    captures: dict[str, str]

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={shortened(repr(self.error), 80)}"
        return f"Fork({self.index}, {self.finish_reason!r}, {shortened(self.text)!r}{error})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The result of a program.

    Attributes:
        forks: all of them, by their number.
        shared: the shared variables at the end.
        events: what has happened, in order.
        usage: the work of its rows alone, such as `usage.sampled_tokens` and `usage.forced_tokens`. Forwards are shared with all rows of
            the model, so `usage.forwards` is 0; `model.meter()` counts those.
    """

    forks: list[Fork]
    shared: dict[str, Any]
    events: list[Event]
    usage: Meter

    @property
    def texts(self) -> list[str]:
        """The text of every fork, without the prompt."""
        return [fork.text for fork in self.forks]

    @property
    def text(self) -> str:
        """The text of the first fork."""
        return self.forks[0].text

    @property
    def captures(self) -> dict[str, str]:
        """The captures of all forks; of equal names those of the fork with the smallest number."""
        return NearKeys((name, text) for fork in reversed(self.forks) for name, text in fork.captures.items())

    @property
    def log(self) -> str:
        """The logs of all forks, one after the other."""
        return "".join(fork.log for fork in self.forks)

    @property
    def state(self) -> SequenceState:
        """All forks as the samples of one state, prompt included; without those that were cancelled."""
        states = [fork.state for fork in self.forks if fork.state is not None]
        if not states:
            raise ScriptError("expected a fork that has ended, got only cancelled ones, which have no state")
        return SequenceState(states[0].model, (tuple(state.rows[0][0] for state in states),), states[0].seed)

    @property
    def errors(self) -> list[Exception | None]:
        """The error of every fork."""
        return [fork.error for fork in self.forks]

    def check(self) -> Result:
        """Return the same, or raise the error of the first fork that has failed; its attribute `result` is this result."""
        for error in filter(None, self.errors):
            raise with_result(error, self)
        return self

    def __repr__(self) -> str:
        count = f"{len(self.forks)} fork{'s' if len(self.forks) != 1 else ''}"
        failed = [f"{fork.index}: {shortened(repr(fork.error), 80)}" for fork in self.forks if fork.error is not None]
        errors = f"errors: [{', '.join(failed)}], " if failed else ""
        return f"Result({count}, {errors}{len(self.events)} events)"


class ProgramJob(Job):
    """The forks of one program.

    Attributes:
        num_events: how many of `events` cannot be undone any more.
        usage: the work of its rows, up to the last step.
        used: the counters of its budget.
        shared: the variables of its forks.
    """

    rows: list[Row]
    _values = (*Job._values, "_num_forks", "_has_waited")

    def __init__(self, row: Row, model: LanguageModel, budget: Budget, shared: Shared, seed: Any) -> None:
        super().__init__([row], row.counts)
        self.events: list[Event] = []
        self.num_events = 0
        self.usage = Meter()
        self._model = model
        self.used = Usage(budget)
        self.shared = shared
        self._seed = seed
        self._caller = Caller()
        self._ended: dict[int, Fork] = {}
        self._num_forks = 1
        # Calls that are being made, and their rows, which no frame of a call may refer to.
        self._round: tuple[Round, list[Row]] | None = None
        # The round that was begun in this step: its calls are made even if the step is undone.
        self._begun: tuple[Round, list[Row]] | None = None
        self._num_reserved = 0  # forks that were requested in this round
        self._num_writes = 0  # to shared variables before this round
        self._has_waited = False
        self.is_controlled = True
        self.reads_ahead = program_of(row).driver.speculates
        shared.join(self)

    @property
    def forks(self) -> list[Fork]:
        """All forks that have ended, by their number."""
        return [fork for _, fork in sorted(self._ended.items())]

    @property
    def is_calling(self) -> bool:  # type: ignore[override]
        """Whether a round is being made."""
        return self._round is not None

    @property
    def is_stuck(self) -> bool:
        """Whether all forks wait, no call is being made, and no write could wake them."""
        if self._round is not None:
            return False
        if self._has_waited:
            return self._num_writes == self.shared.num_writes
        return all(one.waits_for and not self.shared.has(one.waits_for) for one in map(program_of, self.rows))

    def start_calls(self, notify: Callable[[], None]) -> bool:
        """Begin a round: call the drivers of all forks that need a plan, in a thread."""
        if self._round is not None and not self._round[0].is_started:
            self._caller.start(self._round[0])  # a step was interrupted before that
        if self._round is not None or self.is_over:
            return False
        self._check_limits()
        self._wake()
        if self.shared.is_open and self.is_stuck:
            return False  # until code outside of the programs writes
        called = [row for row in self.rows if program_of(row).needs_call(row)]
        if called:
            self._num_reserved, self._num_writes = 0, self.shared.num_writes
            calls = [Callback(partial(program_of(row).driver.call, self._view(row))) for row in called]
            self._begun = self._round = Round(calls, notify), called
            self._caller.start(self._round[0])
        return bool(called)

    def finish_calls(self, patience: float) -> list[tuple[Row, list[Row]]] | None:
        """Execute the plans of a round, if it is over within `patience` seconds; a call that takes too long is abandoned."""
        if self._round is None:
            return None
        calls, rows = self._round
        if not calls.wait(patience):
            self._check_time(calls)
            if self._round is None:
                return []
            if not calls.wait(0.0):
                return None
        self._round = None
        return self._apply(rows, calls.calls)

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the program to its present state; plans that are returned in between are not lost."""
        undo_rows = super().checkpoint()
        now, num_writes, num_events = self._round, self._num_writes, len(self.events)
        num_ended, num_tokens = len(self._ended), self.used.num_tokens
        self._begun = None

        def undo() -> None:
            undo_rows()
            self._round = self._begun or now
            self._num_writes = num_writes if self._begun is None else self._num_writes
            del self.events[num_events:]
            self._ended = dict(islice(self._ended.items(), num_ended))
            self.used.num_tokens = num_tokens
            self.shared.join(self)

        return undo

    def refuse_deadlock(self) -> None:
        """Do nothing: `start_calls` reports deadlocks, with the names of the variables."""

    def note_end(self, row: Row, state_row: StateRow) -> None:
        """Collect the result of a fork."""
        error = state_row.error
        if error is not None:
            # The frames refer to the row, and so to keys and values; the text of the traceback is in `trace`.
            traceback.clear_frames(error.__traceback__)
            state_row = replace(state_row, kv=None, logits=None)
        self._end_fork(row, state_row.finish_reason, error, SequenceState(self._model, ((state_row,),), self._seed))
        self._close([row])
        super().note_end(row, state_row)  # last, as others read `is_over` without the lock, then the forks
        if self.is_over:
            self.leave()

    def account(self) -> None:
        """Add the work of a step to `usage`; its events are not undone any more."""
        self.usage.add(self.counts)
        self.num_events = len(self.events)

    def leave(self) -> None:
        """Stop the thread, and end the forks that still run as cancelled."""
        self._drop_round()
        self._close(self.rows)
        self._caller.close()
        self.shared.part(self)
        for row in self.rows:
            error = ProgramCancelled(
                f"expected fork {program_of(row).fork_index} to end by itself, but the program was cancelled, by `cancel()` or by leaving "
                "the loop over its events. Its text is what was written before."
            )
            self._end_fork(row, "cancelled", error)
        self.num_events = len(self.events)

    def _view(self, row: Row) -> ForkView:
        one = program_of(row)
        tokens = (row.token_ids, row.cached, one.backtracked, one.appended_ids(row))
        return ForkView(*tokens, self._reserve, self.used.step, one.outcome, one.driver_error)

    def _reserve(self, count: int) -> None:
        """Count forks that a driver requests."""
        if count > 0:
            num_running = sum(not row.has_ended for row in self.rows)
            self.used.check(ForkBudgetError, num_running + self._num_reserved + count)
            self._num_reserved += count

    def _apply(self, rows: list[Row], calls: Sequence[Callback]) -> list[tuple[Row, list[Row]]]:
        """Execute the plans that calls have returned; return the rows that have forked, each with its forks."""
        forked: list[tuple[Row, list[Row]]] = []
        for row, call in zip(rows, calls, strict=True):
            if row.has_ended:
                continue
            assert call.outcome is not None
            plans, error = call.outcome
            error = error or self.used.exceeded(CallbackTimeout, call.seconds)
            if error is not None:
                program_of(row).trace = "".join(traceback.format_exception(error))
                row.fail(error)
            elif not plans:
                row.end("stop")
            else:
                group = self._apply_plans(row, plans)
                if len(group) > 1:
                    forked.append((row, group))
        self._has_waited = not forked and all(program_of(row).is_idle and not row.has_ended for row in self.rows)
        return forked

    def _apply_plans(self, row: Row, plans: list[ForkPlan]) -> list[Row]:
        group = row.split(len(plans))
        for fork, plan in zip(group, plans, strict=True):
            one = program_of(fork)
            if fork is not row:
                one.become(self._num_forks, program_of(group[plan.parent]))
                self.events.append(Forked(one.parent or 0, one.fork_index))
                self._num_forks += 1
            one.log = (one.log + plan.log)[-MAX_LOG:]
            one.captures = one.captures | dict(plan.captures)
            self.events += [Capture(one.fork_index, name, text) for name, text in plan.captures]
        for fork, plan in zip(group, plans, strict=True):
            program_of(fork).act(fork, plan)
        return [*group]

    def _end_fork(self, row: Row, reason: str, error: Exception | None, state: SequenceState | None = None) -> None:
        one = program_of(row)
        text = self._model.tokenizer.text_bytes(row.token_ids[one.start :]).decode(errors="replace")
        if isinstance(error, BudgetError | DeadlockError):
            reason = error.limit if isinstance(error, BudgetError) else "deadlock"
        fork = Fork(one.fork_index, one.parent, state, text, reason, error, one.trace, one.log, one.captures)
        self._ended[fork.index] = fork
        self.events.append(Finish(fork.index, reason, error))

    def _drop_round(self) -> None:
        """Make no more calls of the present round, and ignore those that were made."""
        for call in () if self._round is None else self._round[0].calls:
            call.drop()
        self._round = None

    def _close(self, rows: list[Row]) -> None:
        """Close the drivers that have not ended, in the thread of the program, and what plans their spans."""
        for row in rows:
            program_of(row).close_span(row)
        calls = [Callback(program_of(row).driver.close) for row in rows if program_of(row).driver.is_open]
        if calls:
            self._caller.start(Round(calls, lambda: None))

    def _wake(self) -> None:
        """Wake forks whose variables were written; if no program is left that could write them, with a `DeadlockError`."""
        for row in self.rows:
            one = program_of(row)
            if one.waits_for and self.shared.has(one.waits_for):
                one.waits_for, row.status = (), RowStatus.CALLING
        if self.is_stuck and self.shared.is_deadlocked:
            for row in self.rows:
                self._fail_deadlocked(row)

    def _fail_deadlocked(self, row: Row) -> None:
        one = program_of(row)
        missing = tuple(name for name in one.waits_for if not self.shared.has([name]))
        names = f" for {', '.join(map(repr, missing))}" if missing else ""
        error = DeadlockError(f"every fork waits{names}; none is left that could wake another", missing)
        if one.waits_for:
            one.waits_for, one.driver_error, row.status = (), error, RowStatus.CALLING
        else:
            row.fail(error)

    def _check_limits(self) -> None:
        error = self.used.exceeded(ProgramTimeout, self.used.seconds)
        if error is not None:
            self._drop_round()
            for row in self.rows:
                program_of(row).waits_for = ()
                row.fail(copy(error))
        if self.used.budget.kv_bytes is not None:
            self._check_kv(self.used.budget.kv_bytes)

    def _check_kv(self, limit: int) -> None:
        """Fail the youngest forks until the keys and values of the others fit."""
        rows = sorted((row for row in self.rows if not row.has_ended), key=lambda row: program_of(row).fork_index)
        while rows and (held := _distinct_tokens(rows) * self._model.kv_store.token_bytes) > limit:
            error = self.used.exceeded(KVShareError, held)
            assert error is not None
            rows.pop().fail(error)

    def _check_time(self, calls: Round) -> None:
        """Abandon the present call if it, or the program, takes too long."""
        call = calls.present
        error = self.used.exceeded(CallbackTimeout, call.seconds) if call is not None else None
        if call is not None and error is not None:
            self._caller.abandon(calls, call, error)
        if self.used.exceeded(ProgramTimeout, self.used.seconds) is not None:
            self._caller.close()
            self._check_limits()


def program_of(row: Row) -> ForkProgram:
    """Return the program of a row."""
    assert isinstance(row.program, ForkProgram)
    return row.program


def _distinct_tokens(rows: list[Row]) -> int:
    """Return how many tokens of some rows are cached, common prefixes counted once."""
    held = sorted(tuple(row.key_ids[: row.cached]) for row in rows)
    return sum(map(len, held)) - sum(sum(takewhile(bool, map(eq, *pair))) for pair in pairwise(held))
