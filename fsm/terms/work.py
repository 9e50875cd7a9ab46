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


_work = _Work()


def add(amount: int) -> None:
    """Count work of this thread."""
    _work.done += amount


def done() -> int:
    """The work of this thread so far."""
    return _work.done


Bound = tuple[int, float, Callable[[], Exception]]
"""The work that was done when a bound was set, and the bound that it replaces."""


def bound(most: int, exceeded: Callable[[], Exception]) -> Bound:
    """Let `check` raise what `exceeded` makes once this thread does more than `most` from now on; a nearer bound stays. See `unbound`."""
    before = _work.done, _work.most, _work.exceeded
    if _work.done + most < _work.most:
        _work.most, _work.exceeded = _work.done + most, exceeded
    return before


def unbound(before: Bound) -> int:
    """Restore the bound that `bound` has replaced; return the work since then."""
    done, _work.most, _work.exceeded = before
    return _work.done - done


class WorkLimit:
    """A context in which `check` raises what `exceeded` makes once this thread did more than `most` in it; a nearer outer bound stays."""

    # A class, as a generator with `contextmanager` would take a tenth of the time of a mask.
    __slots__ = ("_before", "_new")

    def __init__(self, most: int, exceeded: Callable[[], Exception]) -> None:
        self._new = most, exceeded

    def __enter__(self) -> None:
        self._before = bound(*self._new)

    def __exit__(self, *error: object) -> None:
        unbound(self._before)


def drop(exceeded: Callable[[], Exception]) -> None:
    """Remove the bound of this thread if its error is that one: an interrupt may have left its context before it was closed."""
    if _work.exceeded is exceeded:
        _work.most, _work.exceeded = float("inf"), RuntimeError


@contextmanager
def uncounted() -> Iterator[None]:
    """A context in which work of this thread is neither counted nor bounded: it has other bounds, or is needed at any cost."""
    before, most, is_cancelled = _work.done, _work.most, _work.is_cancelled
    _work.most, _work.is_cancelled = float("inf"), None
    try:
        yield
    finally:
        _work.done, _work.most, _work.is_cancelled = before, most, is_cancelled


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """A context in which `check` raises `Cancelled` as soon as a function, which is called often, returns True."""
    before = _work.is_cancelled
    _work.is_cancelled = is_cancelled
    try:
        yield
    finally:
        _work.is_cancelled = before


def check() -> None:
    """Raise the error of the nearest bound, `BudgetExceeded`, if it is exceeded, or `Cancelled`."""
    if _work.done > _work.most:
        raise _work.exceeded()
    if _work.is_cancelled is not None and _work.is_cancelled():
        raise Cancelled
