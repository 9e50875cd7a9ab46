"""`Budget`: the limits of one program (tokens, forks, steps, seconds of a call and in all, KV bytes), and `ProgramUsage`, the counters that
are compared with them. Each limit has its own error, which ends the fork that exceeds it; that of `forks` is raised at `await fork(...)`,
where a script may catch it; that of `seconds` ends all forks, that of `kv_bytes` the youngest ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from outlines_cont.checks import check_limits
from outlines_cont.errors import (
    BudgetError,
    CallbackTimeout,
    ForkBudgetError,
    KVShareError,
    ProgramTimeout,
    StepBudgetError,
    TokenBudgetError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one program; None is no limit.

    Attributes:
        tokens: that all forks together append, including those that are rewound later (`TokenBudgetError`).
        forks: that run at the same time (`ForkBudgetError`).
        steps: awaits of its scripts, or calls of its controller, all forks together (`StepBudgetError`). It also bounds a program that
            generates nothing, such as a loop of empty spans.
        callback_seconds: of one call of the controller, or of a script from one `await` to the next (`CallbackTimeout`).
        seconds: of the whole program, from its submission on (`ProgramTimeout`, for all forks that still run).
        kv_bytes: of keys and values of all forks, shared ones counted once (`KVShareError`, for the youngest).
    """

    tokens: int | None = 16_384
    forks: int | None = 64
    steps: int | None = 100_000
    callback_seconds: float | None = 30.0
    seconds: float | None = 600.0
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limits(self)


class ProgramUsage:
    """Counters of one program. Methods that count raise the error of a limit that is exceeded.

    Attributes:
        num_tokens: how many tokens its forks have appended.
        num_reserved: how many forks were requested in this round of calls.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.num_tokens = 0
        self.num_reserved = 0
        self._num_steps = 0
        self._started = perf_counter()

    def spend_token(self) -> None:
        """Count a token that is about to be appended."""
        self._check(TokenBudgetError, self.num_tokens + 1)
        self.num_tokens += 1

    def spend_step(self) -> None:
        """Count a step; called by the thread that makes the calls, as `reserve` is."""
        self._check(StepBudgetError, self._num_steps + 1)
        self._num_steps += 1

    def reserve(self, count: int, num_running: int) -> None:
        """Count `count` more forks."""
        if count > 0:
            self._check(ForkBudgetError, num_running + self.num_reserved + count)
            self.num_reserved += count

    def timeout(self) -> BudgetError | None:
        """Return the error of a program that takes too long, None while there is time left."""
        return self.exceeded(ProgramTimeout, perf_counter() - self._started)

    def exceeded(self, kind: type[BudgetError], reached: float) -> BudgetError | None:
        """Return an error of class `kind` if `reached` is above its limit, else None."""
        allowed = getattr(self.budget, kind.limit)
        if allowed is None or reached <= allowed:
            return None
        told, advice = _TOLD[kind]
        message = f"expected {told.format(allowed, reached)}. Raise `Budget({kind.limit}=)`{advice}."
        return kind(message, allowed, reached)

    def _check(self, kind: type[BudgetError], reached: int) -> None:
        error = self.exceeded(kind, reached)
        if error is not None:
            raise error


_TOLD = {
    TokenBudgetError: (
        "a program of at most {} tokens, all forks together, and it continues",
        ", or give `max_tokens` to what it generates",
    ),
    StepBudgetError: (
        "a program of at most {} steps, all forks together, and it continues",
        ", or let its loops end: a piece may be empty",
    ),
    ForkBudgetError: ("a program of at most {} forks at the same time, and it requests {}", ""),
    ProgramTimeout: ("a program of at most {} seconds, and it continues", ""),
    CallbackTimeout: ("a call of the controller to take at most {} seconds, and it took {:.3g}", ", or do less in it"),
    KVShareError: ("a program of at most {} bytes of keys and values, and it has {}", ", or let forks end earlier"),
}
"""For each limit what was expected, and what to do."""
