"""`TemplateBudget`: the limits of one run of a template (tokens, steps, characters, seconds), and `TemplateUsage`, the counters that raise
`TemplateBudgetError` beyond a limit; sizes of results are charged as known or estimated. `usage` returns the counters of the run that is
active (a context variable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

from outlines_cont.checks import check_limits
from outlines_cont.errors import TemplateBudgetError


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateBudget:
    """The limits of one run of a template, each row by itself. None is no limit.

    Attributes:
        tokens: of its text and of generated text together.
        steps: iterations of loops, calls, filters and generators.
        characters: that expressions read and return, and that are written, together; an item of a list counts as one.
        seconds: from its first step on, including forwards of the model.
    """

    tokens: int | None = 16_384
    steps: int | None = 100_000
    characters: int | None = 10_000_000
    seconds: float | None = 600.0

    def __post_init__(self) -> None:
        check_limits(self)


class TemplateUsage:
    """Counters of one run. Every method raises `TemplateBudgetError` if its count exceeds the budget."""

    def __init__(self, budget: TemplateBudget) -> None:
        self.budget = budget
        self._num_steps = 0
        self._num_characters = 0
        self._started: float | None = None

    def step(self) -> None:
        """Count one step."""
        self._num_steps += 1
        self._check("steps", self._num_steps, "Let loops end earlier")
        self.check_time()

    def check_steps(self, count: int) -> None:
        """Check whether the budget allows this number of steps, without counting them."""
        self._check("steps", count, "Take a smaller range")

    def characters(self, count: int) -> None:
        """Count characters of a result, known or estimated."""
        self._num_characters += count
        self._check("characters", self._num_characters, "Write less, and make no long texts of short ones")

    def value(self, value: object) -> None:
        """Count the characters and items of a value, including nested ones."""
        todo = [value]
        while todo:
            found = todo.pop()
            if isinstance(found, dict):
                self.characters(len(found))
                todo += [*found.keys(), *found.values()]
            elif isinstance(found, list | tuple | set | frozenset):
                self.characters(len(found))
                todo += found
            elif isinstance(found, int):
                self.characters(1 + found.bit_length() // 3)
            elif isinstance(found, Sequence | Mapping | Set):
                self.characters(len(found))

    def tokens(self, used: int) -> None:
        """Check the number of tokens."""
        self._check("tokens", used, "Let loops end earlier, or give generators a smaller `max_tokens`")

    def check_time(self) -> None:
        """Check the time since the first call."""
        now = perf_counter()
        if self._started is None:
            self._started = now
        self._check("seconds", now - self._started, "Let loops end earlier")

    def _check(self, limit: str, reached: float, advice: str) -> None:
        allowed = getattr(self.budget, limit)
        if allowed is not None and reached > allowed:
            raise TemplateBudgetError(
                f"expected a template that runs with {allowed:,} {limit}, got more. {advice}, or raise `TemplateBudget({limit}=)`.",
                limit,
                allowed,
                reached,
            )


running_usage: ContextVar[TemplateUsage | None] = ContextVar("usage", default=None)


def usage() -> TemplateUsage:
    """Return the usage of the template that runs; a new one if none runs, as at compile time."""
    return running_usage.get() or TemplateUsage(TemplateBudget())
