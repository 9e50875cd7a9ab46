"""Work of policies that takes long, such as the first masks of a pattern with many lookaheads. So that no row delays the others, each may
do little of it inside of a step (`bounded`), counted as `fsm` counts its work. What takes more is done by a thread outside of steps
(`SlowWork`), and its row skips steps until it is done: it keeps its place in the batch, and what it writes is the same.

Eight threads do it for all engines of the process; of what waits, that of the job which has used the least of their time is next. A
job that has used `JobBound.most` of work fails.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch

from fsm import BudgetExceeded
from fsm.process_fork import lock
from fsm.terms import work
from fsm.terms.work import WorkLimit

MAX_STEP_WORK = 4_000
"""The most work of all rows in one step, in steps of 3 to 10 us; the mask of most states takes 30."""
LEAST_ROW_WORK = 100
"""What each row may do in any case."""
NO_BOUND = 2**63
_MAX_THREADS = 8
_IDLE_SECONDS = 5.0


class TooLong(Exception):
    """This work takes too long for a step. No error of a budget: nothing may take another way because of it."""


class _Step(threading.local):
    left = MAX_STEP_WORK


_step = _Step()


def begin_step() -> None:
    """Begin a step in this thread, which has all of its work before it."""
    end_step()
    _step.left = MAX_STEP_WORK


def end_step() -> None:
    """Remove the bound of a row that an interrupt has left behind, so that no compilation of this thread meets it."""
    work.drop(TooLong)


class bounded:  # noqa: N801  # used as a function, for each row in each step: what a `WorkLimit` does, in two calls in place of four
    """A context in which the work of one row raises `TooLong` if it takes too long for a step."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        now = work.this_thread
        self._before = now.done, now.most, now.exceeded
        most = now.done + max(_step.left, LEAST_ROW_WORK)
        if most < now.most:
            now.most, now.exceeded = most, TooLong

    def __exit__(self, *error: object) -> None:
        now = work.this_thread
        done, now.most, now.exceeded = self._before
        _step.left -= now.done - done


class _NoFullCollections:
    """A context, of any number of threads, without full collections of garbage: with the millions of terms of one mask each of them would
    stop all threads for a second. Terms are freed without the collector; young objects are collected as ever.
    """

    def __init__(self) -> None:
        self._lock = lock()
        self._num_inside, self._before = 0, gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside == 1:
                self._before = gc.get_threshold()
                gc.set_threshold(*self._before[:2], 2**31 - 1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                gc.set_threshold(*self._before)


no_full_collections = _NoFullCollections()


class JobBound:
    """The most work that threads may do for all rows of one job; `most` is set for the whole process, by a server."""

    most = NO_BOUND

    @classmethod
    def left(cls, account: Account) -> WorkLimit:
        """Return a context in which more work than is left of a job raises `BudgetExceeded`."""

        def exceeded() -> BudgetExceeded:
            told = (
                f"the token masks of one request take more than {cls.most:,} steps of work: {work.HEAVY}. "
                "Simplify the expression, or raise `max_slow_work`."
            )
            return BudgetExceeded(told, "max_slow_work", cls.most)

        return WorkLimit(cls.most - account.slow_work, exceeded)


class Account(Protocol):
    """Whose work it is.

    Attributes:
        slow_seconds: the time that threads have worked for it.
        slow_work: their work, as `fsm` counts it.
        is_cancelled: whether nobody waits for it any more.
    """

    slow_seconds: float
    slow_work: int
    is_cancelled: bool


class SlowWork:
    """What a thread does for a row, which waits for it. It has begun, or waits for a thread, when it is made."""

    def __init__(self, act: Callable[[], Any], account: Account) -> None:
        self.account = account
        self._act = act
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        _THREADS.submit(self)

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most some time."""
        self._ended.wait(seconds)

    def take(self) -> Any:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result

    def run(self) -> None:
        """Do it, unless nobody waits for it; called by a thread."""
        account, started, before = self.account, perf_counter(), work.done()
        try:
            if not account.is_cancelled:
                cancellable = work.cancellable(lambda: account.is_cancelled)
                with no_full_collections, torch.inference_mode(), cancellable, JobBound.left(account):
                    self._result = self._act()
        except BaseException as error:
            self._error = error
        finally:
            account.slow_seconds += perf_counter() - started
            account.slow_work += work.done() - before
            self._ended.set()


def next_first(one: SlowWork) -> float:
    """Return what the smallest of decides which of several is done next."""
    return one.account.slow_seconds


class _Threads:
    """Threads that end when there is nothing to do for some seconds."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[SlowWork] = []
        self._num_threads = self._num_idle = 0

    def submit(self, one: SlowWork) -> None:
        """Have something done."""
        with self._changed:
            self._waiting.append(one)
            if self._num_idle >= len(self._waiting) or self._num_threads >= _MAX_THREADS:
                self._changed.notify()
                return
            self._num_threads += 1
        threading.Thread(target=self._run, name="outlines-cont-masks", daemon=True).start()

    def _run(self) -> None:
        while (one := self._next()) is not None:
            one.run()

    def _next(self) -> SlowWork | None:
        with self._changed:
            self._num_idle += 1
            found = self._changed.wait_for(lambda: bool(self._waiting), _IDLE_SECONDS)
            self._num_idle -= 1
            if not found:
                self._num_threads -= 1
                return None
            one = min(self._waiting, key=next_first)
            self._waiting.remove(one)
            return one


_THREADS = _Threads()


def _forget_threads() -> None:
    global _THREADS
    _THREADS = _Threads()


os.register_at_fork(after_in_child=_forget_threads)
