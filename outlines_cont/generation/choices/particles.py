"""`Particles`: which of the texts that a call draws after a row are kept: the best one (`samplers.best_of`), or some by their importance
weights (`samplers.conditional`), with a warning if the effective sample size is small.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

from fsm.errors import stacklevel_of_user
from outlines_cont.errors import SampleSizeWarning
from outlines_cont.samplers import BestOf, Conditional
from outlines_cont.state.log_z import effective_size
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import best_row, resampled

_LEAST = 10  # effective samples, below which the distribution is far from that of the model


class Particles:
    """How the texts of a call are kept."""

    def __init__(self, sampler: BestOf, is_whole: Callable[[StateRow], bool], *, resumes: bool) -> None:
        """Keep the texts of a sampler; `is_whole`: whether that of a row is whole; `resumes`: whether they were kept before."""
        self._sampler, self._is_whole = sampler, is_whole
        self._is_conditional = isinstance(sampler, Conditional)
        self._has_kept = resumes and self._is_conditional
        self._sizes = list[float]()

    def kept(self, rows: Sequence[StateRow], begun: Sequence[float]) -> tuple[StateRow, ...]:
        """Return the rows of a batch entry that are kept, of each `samples` side by side `num_kept`; `begun` is their importance before."""
        if self._has_kept:
            return tuple(rows)
        size, found = self._sampler.samples, list[StateRow]()
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            found += self._drawn(rows[part], begun[part]) if self._is_conditional else [self._best(rows[part])]
        return tuple(found)

    def _best(self, rows: Sequence[StateRow]) -> StateRow:  # a cut one only if all are cut
        return best_row([row for row in rows if row.error is None and self._is_whole(row)] or rows)

    def _drawn(self, rows: Sequence[StateRow], begun: Sequence[float]) -> Sequence[StateRow]:
        logs = [
            row.importance - before if row.error is None and self._is_whole(row) else -math.inf
            for row, before in zip(rows, begun, strict=True)
        ]
        if max(logs) == -math.inf:  # none is whole: their errors, or cuts
            return rows[: self._sampler.num_kept]
        self._sizes.append(effective_size(logs))
        return resampled(rows, logs, self._sampler.num_kept)

    def warn(self) -> None:
        """Warn if there were few effective samples in some batch entry."""
        least = min(max(self._sampler.num_kept, _LEAST), self._sampler.samples)
        if self._sizes and min(self._sizes) < least - 1e-6:
            warnings.warn(
                f"expected {least} effective samples or more for the distribution of the model, got {min(self._sizes):.1f} of "
                f"{self._sampler.samples} particles: a few have most of the weight. Pass more `particles`, or a `temperature` above 1.",
                SampleSizeWarning,
                stacklevel=stacklevel_of_user(),
            )
