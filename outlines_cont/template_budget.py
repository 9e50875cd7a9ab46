"""`TemplateBudget`: the limits of one run of a template (tokens, forks, steps, characters, seconds), and `TemplateUsage`, the counters that
raise `TemplateBudgetError` beyond a limit. `usage` returns the counters of the run that is active (a context variable).
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence, Set, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

from jinja2.utils import Namespace

from outlines_cont.checks import check_limits
from outlines_cont.errors import TemplateBudgetError, TemplateError

ITEM = 16
"""What an item of a collection costs, in characters; it takes so much more time and memory."""
MAX_DEPTH = 100
"""Of nested collections: Python compares and hashes them recursively."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateBudget:
    """The limits of one run of a template, each row by itself. None is no limit.

    Attributes:
        tokens: of its text and of generated text together.
        forks: texts that a search (`best_of`, `beam_search`) generates at the same time.
        steps: iterations of loops, calls, filters and generators.
        characters: that expressions read and return, and that are written, together; an item of a collection counts as 16.
        seconds: from its first step on, including forwards of the model.
    """

    tokens: int | None = 16_384
    forks: int | None = 64
    steps: int | None = 100_000
    characters: int | None = 10_000_000
    seconds: float | None = 600.0

    def __post_init__(self) -> None:
        check_limits(self)


class TemplateUsage:
    """Counters of one run. Every method raises `TemplateBudgetError` if its count exceeds the budget.

    Attributes:
        num_characters: how many were charged.
    """

    def __init__(self, budget: TemplateBudget, clock: Callable[[], float] = perf_counter) -> None:
        self.budget = budget
        self._clock = clock
        self._num_steps = 0
        self.num_characters = 0
        self._started: float | None = None

    def step(self) -> None:
        """Count one step."""
        self._num_steps += 1
        self._check("steps", self._num_steps, "Let loops end earlier")
        self.check_time()

    def check_steps(self, count: int) -> None:
        """Check whether the budget allows this number of steps, without counting them."""
        self._check("steps", count, "Take a smaller range")

    def forks(self, count: int) -> None:
        """Check the number of texts that a generator generates at the same time."""
        self._check("forks", count, "Take fewer samples or beams")

    def characters(self, count: int) -> None:
        """Count characters of a result, known or estimated."""
        self.num_characters += count
        self._check("characters", self.num_characters, "Write less, and make no long texts of short ones")
        self.check_time()

    def value(self, value: object) -> int:
        """Count the characters and items of a value, including nested ones; return its depth."""
        level, depth = [value], 0
        while level:
            if depth > MAX_DEPTH:
                raise TemplateError(f"expected collections that are nested at most {MAX_DEPTH} deep, got deeper ones")
            below: list[object] = []
            for found in level:
                below += self._items(found)
            level, depth = below, depth + 1
        return depth

    def _items(self, value: object) -> Iterable[object]:
        """Count one value, and return its items. They are counted before anything takes their number of bytes."""
        if isinstance(value, Namespace):
            value = value._Namespace__attrs
        if isinstance(value, int):
            self.characters(1 + value.bit_length() // 3)
        elif isinstance(value, str | bytes):
            self.characters(1 + len(value))
        elif isinstance(value, range):
            self.characters(1)
        elif isinstance(value, Sequence | Mapping | Set | ValuesView):
            self.characters(1 + ITEM * len(value))
            if isinstance(value, dict):
                return (*value.keys(), *value.values())
            if isinstance(value, list | tuple | set | frozenset | ItemsView | ValuesView):
                return value
        return ()

    def tokens(self, used: int) -> None:
        """Check the number of tokens."""
        self._check("tokens", used, "Let loops end earlier, or give generators a smaller `max_tokens`")

    def check_time(self) -> None:
        """Check the time since the first call."""
        now = self._clock()
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
