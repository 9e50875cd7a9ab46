"""`work_bound`: a context manager that bounds the work of a thread: beyond it, `check` raises `BudgetExceeded` with a name and a message.
The work is counted and compared in `work_budget.py`; this module has the error message.
"""

from __future__ import annotations

from fsm.errors import BudgetExceeded
from fsm.terms.work_budget import HEAVY, WorkLimit


def work_bound(name: str, most: int, doing: str, heavy: str = HEAVY, advice: str = "") -> WorkLimit:
    """Return a context in which `work_budget.check` raises `BudgetExceeded` once this thread did more than `most`.

    Args:
        name: of the bound.
        most: units of work.
        doing: the task that is bounded, for the message.
        heavy: what takes much work there.
        advice: how to correct it; by default to simplify the expression, or raise the bound.
    """

    def exceeded() -> BudgetExceeded:
        correction = advice or f"Simplify the expression, or raise `{name}`"
        return BudgetExceeded(f"{doing} takes more than {most:,} steps of work: {heavy}. {correction}.", name, most)

    return WorkLimit(most, exceeded)
