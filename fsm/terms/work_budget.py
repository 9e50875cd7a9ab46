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


class _Work(threading.local):
    done = 0
    most: float = float("inf")
    bound: tuple[str, int, str, str, str] = "", 0, "", "", ""


_work = _Work()


def add(amount: int) -> None:
    """Count work of this thread."""
    _work.done += amount


def done() -> int:
    """The work of this thread so far."""
    return _work.done


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
        self._before = _work.most, _work.bound
        most, bound = self._new
        if _work.done + most < _work.most:
            _work.most, _work.bound = _work.done + most, bound

    def __exit__(self, *error: object) -> None:
        _work.most, _work.bound = self._before


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing of what this thread does inside, and bound nothing: it has bounds of its own, or is needed whatever it costs."""
    before, most = _work.done, _work.most
    _work.most = float("inf")
    try:
        yield
    finally:
        _work.done, _work.most = before, most


def check() -> None:
    """Raise unless the work is within the bound.

    Raises:
        BudgetExceeded: it is not.
    """
    if _work.done > _work.most:
        name, most, doing, heavy, advice = _work.bound
        raise BudgetExceeded(
            f"{doing} takes more than {most:,} steps of work: {heavy}. {advice}.",
            name,
            most,
        )
