"""`Budget`: the limits of one program: a template, a controller or a script. `Usage`: the counters that are compared with them. Each limit
has its own error, a `BudgetError`; who counts decides what it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from outlines_cont.checks import check_limits
from outlines_cont.errors import (
    BudgetError,
    CallbackTimeout,
    CharacterBudgetError,
    ForkBudgetError,
    KVShareError,
    ProgramTimeout,
    StepBudgetError,
    TokenBudgetError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one program; None is no limit. Of the rows of a template each is a program.

    Attributes:
        tokens: that all forks together append, including those that are rewound later (`TokenBudgetError`). Of a template: of its text
            and of generated text together.
        forks: that run at the same time; in a template the texts that a search generates (`best_of`, `beam_search`) (`ForkBudgetError`).
        steps: awaits of a script, or calls of a controller, all forks together; of a template the iterations of loops, calls, filters and
            generators (`StepBudgetError`). It also bounds a program that generates nothing, such as a loop of empty spans.
        characters: that expressions of a template read and return, and that it writes, together; an item of a collection counts as 16
            (`CharacterBudgetError`). Controllers and scripts are Python, and are not charged.
        callback_seconds: of one call of a controller, or of a script from one `await` to the next (`CallbackTimeout`). A template calls
            nothing that can be abandoned: `seconds` limits it.
        seconds: of the whole program, from its submission on, forwards of the model included (`ProgramTimeout`, for all forks that run).
        kv_bytes: of keys and values of all forks, shared ones counted once (`KVShareError`, for the youngest). Not for a template.
    """

    tokens: int | None = 16_384
    forks: int | None = 64
    steps: int | None = 100_000
    characters: int | None = 10_000_000
    callback_seconds: float | None = 30.0
    seconds: float | None = 600.0
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limits(self)


class Usage:
    """Counters of one program that begins now. Methods raise the error of a limit that is exceeded.

    Attributes:
        num_tokens: how many tokens were appended.
        num_steps: how many steps were taken.
    """

    what, advised = "a program", "Budget"
    """What is limited, and the name of its budget, for errors."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = perf_counter) -> None:
        self.budget = budget
        self.num_tokens = 0
        self.num_steps = 0
        self._clock = clock
        self._started = clock()

    def step(self) -> None:
        """Count a step."""
        self.num_steps += 1
        self.check(StepBudgetError, self.num_steps)

    def token(self) -> None:
        """Count a token that is about to be appended."""
        self.check(TokenBudgetError, self.num_tokens + 1)
        self.num_tokens += 1

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return self._clock() - self._started

    def check(self, kind: type[BudgetError], reached: float) -> None:
        """Raise an error of class `kind` if `reached` is above its limit."""
        allowed = getattr(self.budget, kind.limit)
        if allowed is not None and reached > allowed:
            expected, advice = _TOLD[kind]
            told = f"{self.what} of at most {allowed:,} {expected.format(reached)}"
            raise kind(f"expected {told}. Raise `{self.advised}({kind.limit}=)`{advice}.", allowed, reached)

    def exceeded(self, kind: type[BudgetError], reached: float) -> BudgetError | None:
        """Return an error of class `kind` if `reached` is above its limit, else None."""
        try:
            self.check(kind, reached)
        except BudgetError as error:
            return error.with_traceback(None)
        return None


_TOLD = {
    TokenBudgetError: ("tokens, all forks together, and it continues", ", or give `max_tokens` to what it generates"),
    StepBudgetError: (
        "steps, all forks together, and it continues",
        ", or let its loops end: a generated text may be empty",
    ),
    ForkBudgetError: ("forks at the same time, and it requests {}", ""),
    CharacterBudgetError: (
        "characters, and it continues",
        ", or write less, and make no long texts of short ones",
    ),
    CallbackTimeout: ("seconds for a call, and one took {:.3g}", ", or do less in it"),
    ProgramTimeout: ("seconds, and it continues", ""),
    KVShareError: ("bytes of keys and values, and it has {:,}", ", or let forks end earlier"),
}
"""For each limit what was expected, and what to do."""
