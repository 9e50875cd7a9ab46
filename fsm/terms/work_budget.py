"""Work budgets: how many terms a thread has built, counted, so that the same bounds hold on every machine.

One unit is about one term that is joined to others: 3 to 10 us. A term that is known already costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fsm.errors import BudgetExceeded

HEAVY = "loops inside loops that can begin and end in many places, or lookarounds and negations that must be followed together"
"""What takes much work, for people."""


class _Meter(threading.local):
    done = 0
    most: float = float("inf")
    bound: tuple[str, int, str, str, str] = "", 0, "", "", ""


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
        name: of the bound.
        most: work.
        doing: what is bounded, for people.
        heavy: what takes much work there.
        advice: what to do; without it: simplify the expression, or raise the bound.
    """

    __slots__ = ("_before", "_new")

    def __init__(self, name: str, most: int, doing: str, heavy: str = HEAVY, advice: str = "") -> None:
        self._new = most, (name, most, doing, heavy, advice or f"Simplify the expression, or raise `{name}`")

    def __enter__(self) -> None:
        self._before = _meter.most, _meter.bound
        most, bound = self._new
        if _meter.done + most < _meter.most:
            _meter.most, _meter.bound = _meter.done + most, bound

    def __exit__(self, *error: object) -> None:
        _meter.most, _meter.bound = self._before


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
    """Raise unless the work is within the bound.

    Raises:
        BudgetExceeded: it is not.
    """
    if _meter.done > _meter.most:
        name, most, doing, heavy, advice = _meter.bound
        raise BudgetExceeded(
            f"{doing} takes more than {most:,} steps of work: {heavy}. {advice}.",
            name,
            most,
        )
