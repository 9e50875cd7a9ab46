"""`work_bound`: a bound on the work of a thread, with the name and the message of the error that refuses more."""

from __future__ import annotations

from fsm.errors import BudgetExceeded
from fsm.terms.work_budget import HEAVY, Bound


def work_bound(name: str, most: int, doing: str, heavy: str = HEAVY, advice: str = "") -> Bound:
    """Return a context in which `work_budget.check` raises `BudgetExceeded` once this thread did more than `most`.

    Args:
        name: of the bound.
        most: work.
        doing: what is bounded, for people.
        heavy: what takes much work there.
        advice: what to do; without it: simplify the expression, or raise the bound.
    """

    def exceeded() -> BudgetExceeded:
        told = advice or f"Simplify the expression, or raise `{name}`"
        return BudgetExceeded(f"{doing} takes more than {most:,} steps of work: {heavy}. {told}.", name, most)

    return Bound(most, exceeded)
