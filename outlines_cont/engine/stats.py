"""`EngineStats`: counters of an engine since it was made: steps, rows, tokens by kind, and seconds in total and by phase (forward, masks,
sampling).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from outlines_cont.meter import Meter


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was made.

    Attributes:
        steps: steps taken.
        rows: rows that ran, summed over steps.
        work: tokens by kind, and forwards; see `Meter`.
        seconds: in steps, all in all.
        forward_seconds: in which tokens were fed.
        mask_seconds: in which policies decided what may come; of masks made beside the forward only what it was waited for.
        sampling_seconds: in which tokens were drawn.
    """

    steps: int = 0
    rows: int = 0
    work: Meter = field(default_factory=Meter)
    seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0

    @property
    def mask_seconds(self) -> float:
        """Seconds in which policies decided."""
        return self.work.mask_seconds

    @property
    def rows_per_step(self) -> float:
        """Rows per step, the mean; 0 before the first step."""
        return self.rows / self.steps if self.steps else 0.0

    @property
    def python_seconds(self) -> float:
        """Seconds of steps that are none of the others."""
        return max(self.seconds - self.forward_seconds - self.mask_seconds - self.sampling_seconds, 0.0)

    def copy(self) -> EngineStats:
        """Return a copy, which does not change any more."""
        return replace(self, work=replace(self.work))

    def __sub__(self, before: EngineStats) -> EngineStats:
        """Return what was done since an earlier copy: `engine.stats - before`."""
        if not isinstance(before, EngineStats):
            return NotImplemented
        return EngineStats(
            **{part.name: getattr(self, part.name) - getattr(before, part.name) for part in fields(self)}
        )

    def __str__(self) -> str:
        work = self.work
        guessed = f"{work.accepted_tokens:,} of {work.proposed_tokens:,} guessed, " if work.proposed_tokens else ""
        return (
            f"{self.steps:,} steps of {self.rows_per_step:.1f} rows; {work.forwards:,} forwards, {work.fed_tokens:,} tokens fed, "
            f"{work.sampled_tokens:,} sampled, {work.forced_tokens:,} forced, {guessed}{work.recomputed_tokens:,} recomputed; "
            f"{self.seconds:.2f} s: forward {self.forward_seconds:.2f}, masks {self.mask_seconds:.2f}, "
            f"sampling {self.sampling_seconds:.2f}, Python {self.python_seconds:.2f}"
        )
