"""Work budgets: a counter per thread of the steps of building terms, with nested bounds, so that limits do not depend on the machine's
speed. A unit is about one member of a union or one transition of a derivative, 3 to 10 us; a cached derivative costs nothing. `WorkLimit`
sets a bound, `check` raises where the tightest one is exceeded (when called, so some work may pass it), and `uncounted` suspends both.
`cancellable`: `check` also raises `Cancelled` once nobody waits for the result any more.
It imports nothing of ours: `work_bound` of `limits.py` is a bound with an error message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAVY = "loops inside loops that can begin and end in many places, or lookarounds and negations that must be followed together"
"""What takes much work, for error messages."""


class _Work(threading.local):
    done = 0
    most: float = float("inf")
    exceeded: Callable[[], Exception] = RuntimeError
    is_cancelled: Callable[[], bool] | None = None


class Cancelled(Exception):
    """The work was given up, as nobody waits for its result. No error of a language: nothing that handles those handles it."""


this_thread = _Work()
"""The work of this thread, and its nearest bound; `WorkLimit` sets it."""


def add(amount: int) -> None:
    """Count work of this thread."""
    this_thread.done += amount


def done() -> int:
    """The work of this thread so far."""
    return this_thread.done


class WorkLimit:
    """A context in which `check` raises what `exceeded` makes once this thread did more than `most` in it; a nearer outer bound stays."""

    # A class, as a generator with `contextmanager` would take a tenth of the time of a mask.
    __slots__ = ("_before", "_exceeded", "_most")

    def __init__(self, most: int, exceeded: Callable[[], Exception]) -> None:
        self._most, self._exceeded = most, exceeded

    def __enter__(self) -> None:
        work = this_thread
        self._before = work.most, work.exceeded
        if work.done + self._most < work.most:
            work.most, work.exceeded = work.done + self._most, self._exceeded

    def __exit__(self, *error: object) -> None:
        this_thread.most, this_thread.exceeded = self._before


def drop(exceeded: Callable[[], Exception]) -> None:
    """Remove the bound of this thread if its error is that one: an interrupt may have left its context before it was closed."""
    if this_thread.exceeded is exceeded:
        this_thread.most, this_thread.exceeded = float("inf"), RuntimeError


@contextmanager
def uncounted() -> Iterator[None]:
    """A context in which work of this thread is neither counted nor bounded: it has other bounds, or is needed at any cost."""
    before, most, is_cancelled = this_thread.done, this_thread.most, this_thread.is_cancelled
    this_thread.most, this_thread.is_cancelled = float("inf"), None
    try:
        yield
    finally:
        this_thread.done, this_thread.most, this_thread.is_cancelled = before, most, is_cancelled


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """A context in which `check` raises `Cancelled` as soon as a function, which is called often, returns True."""
    before = this_thread.is_cancelled
    this_thread.is_cancelled = is_cancelled
    try:
        yield
    finally:
        this_thread.is_cancelled = before


def check() -> None:
    """Raise the error of the nearest bound, `BudgetExceeded`, if it is exceeded, or `Cancelled`."""
    if this_thread.done > this_thread.most:
        raise this_thread.exceeded()
    if this_thread.is_cancelled is not None and this_thread.is_cancelled():
        raise Cancelled
