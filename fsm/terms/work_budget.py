"""Work budgets: how many terms a thread has built, counted, so that the same bounds hold on every machine.

One unit is about one term that is joined to others: 3 to 10 us. A term that is known already costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAVY = "loops inside loops that can begin and end in many places, or lookarounds and negations that must be followed together"
"""What takes much work, for people."""


class _Meter(threading.local):
    done = 0
    most: float = float("inf")
    exceeded: Callable[[], Exception] = RuntimeError


_meter = _Meter()


def add(amount: int) -> None:
    """Count work of this thread."""
    _meter.done += amount


def done() -> int:
    """The work of this thread so far."""
    return _meter.done


class Bound:
    """A context in which `check` refuses what this thread does once it took more than `most`; an outer bound that is nearer stays.

    Args:
        most: work.
        exceeded: makes the error that `check` raises; see `work_bound.py`.
    """

    __slots__ = ("_before", "_new")

    def __init__(self, most: int, exceeded: Callable[[], Exception]) -> None:
        self._new = most, exceeded

    def __enter__(self) -> None:
        self._before = _meter.most, _meter.exceeded
        most, exceeded = self._new
        if _meter.done + most < _meter.most:
            _meter.most, _meter.exceeded = _meter.done + most, exceeded

    def __exit__(self, *error: object) -> None:
        _meter.most, _meter.exceeded = self._before


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing of what this thread does inside, and bound nothing: it has bounds of its own, or is needed whatever it costs."""
    before, most = _meter.done, _meter.most
    _meter.most = float("inf")
    try:
        yield
    finally:
        _meter.done, _meter.most = before, most


def check() -> None:
    """Raise the error of the nearest bound (`BudgetExceeded`), unless the work is within it."""
    if _meter.done > _meter.most:
        raise _meter.exceeded()
