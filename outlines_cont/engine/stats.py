"""`EngineStats`: counters of an engine since it was created: steps, rows summed over steps, tokens by kind, and seconds in total and by
phase (forward, with the masks computed meanwhile; policies and other masks; sampling; the rest). `-` returns the counts between two copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from outlines_cont.meter import Meter


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was created.

    Attributes:
        steps: steps taken.
        rows: rows that ran, summed over steps.
        work: tokens by kind, and forwards; see `Meter`.
        seconds: time of all steps.
        forward_seconds: time of the forwards.
        sampling_seconds: time of the draws.
    """

    steps: int = 0
    rows: int = 0
    work: Meter = field(default_factory=Meter)
    seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0

    @property
    def mask_seconds(self) -> float:
        """Time in which policies decided; of masks that are computed during a forward only the wait for them."""
        return self.work.mask_seconds

    @property
    def rows_per_step(self) -> float:
        """Mean number of rows per step; 0 before the first step."""
        return self.rows / self.steps if self.steps else 0.0

    @property
    def python_seconds(self) -> float:
        """Time of steps outside of the three phases."""
        return max(self.seconds - self.forward_seconds - self.mask_seconds - self.sampling_seconds, 0.0)

    def __sub__(self, before: EngineStats) -> EngineStats:
        """Return the counts since an earlier copy: `engine.stats - before`."""
        if not isinstance(before, EngineStats):
            return NotImplemented
        return EngineStats(*(getattr(self, part.name) - getattr(before, part.name) for part in fields(self)))

    def __str__(self) -> str:
        work = self.work
        drafted = f"{work.accepted_tokens:,} of {work.proposed_tokens:,} drafted, " if work.proposed_tokens else ""
        return (
            f"{self.steps:,} steps of {self.rows_per_step:.1f} rows; {work.forwards:,} forwards, {work.fed_tokens:,} tokens fed, "
            f"{work.sampled_tokens:,} sampled, {work.forced_tokens:,} forced, {drafted}{work.recomputed_tokens:,} recomputed; "
            f"{self.seconds:.2f} s: forward {self.forward_seconds:.2f}, masks {self.mask_seconds:.2f}, "
            f"sampling {self.sampling_seconds:.2f}, Python {self.python_seconds:.2f}"
        )
