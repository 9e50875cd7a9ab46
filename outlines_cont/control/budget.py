"""`Budget`: the limits of one program: tokens, forks, steps, seconds, bytes of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from outlines_cont.checks import check_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one program. Each has its own error, which ends the fork that exceeds it; None is no limit.

    Attributes:
        tokens: that all forks together append, those that are taken back later included (`TokenBudgetError`).
        forks: that run at once (`ForkBudgetError`).
        steps: what its forks await, or calls of its controller, all forks together (`StepBudgetError`). It also bounds a program that
            writes nothing, such as a loop over pieces that are empty.
        callback_seconds: of one call of the controller, or of a script from one `await` to the next (`CallbackTimeout`).
        seconds: of the whole program, from its submission on (`ProgramTimeout`, for all forks that still run).
        kv_bytes: of keys and values of all forks, what they have in common counted once (`KVShareError`, for the youngest).
    """

    tokens: int | None = 16_384
    forks: int | None = 64
    steps: int | None = 100_000
    callback_seconds: float | None = 30.0
    seconds: float | None = 600.0
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limits(self)
