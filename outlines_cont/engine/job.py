"""`Job`: the rows of one call, and how their tokens are chosen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.engine.row import Row
from outlines_cont.models.meter import Meter
from outlines_cont.samplers import Sampler
from outlines_cont.state_row import StateRow


class Job:
    """Rows that were given together. Here each draws its own tokens; a search chooses for all of them at once.

    Attributes:
        rows: those that still run, in the order in which they were given.
        done: what became of the others, by their index at the beginning.
        sampler: how tokens are drawn.
        needs_random: whether a draw takes a random number.
        needs_counts: whether a draw depends on the tokens of the row.
        counts: the work of its rows since the last step.
        is_cancelled: whether nobody wants the rows any more.
    """

    is_joint = False
    """Whether rows are chosen among each other, so that they must run in one lane."""

    def __init__(self, rows: Sequence[Row], sampler: Sampler, counts: Meter) -> None:
        self.rows = list(rows)
        self.done: dict[int, StateRow] = {}
        self.sampler = sampler
        self.needs_random, self.needs_counts = sampler.needs_random, sampler.needs_counts
        self.counts = counts
        self.is_cancelled = False
        self._index = {id(row): index for index, row in enumerate(rows)}
        for row in rows:
            row.job = self

    @property
    def is_over(self) -> bool:
        """Whether no row runs any longer."""
        return not self.rows

    def settle(self, row: Row, state_row: StateRow) -> None:
        """Take in what has become of a row."""
        self.done[self._index[id(row)]] = state_row
        self.rows = [other for other in self.rows if other is not row]

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Choose what the rows of a joint job go on with.

        Args:
            rows: those that want a token; the others of the job stay as they are.
            logits: (R, V), those of `rows`.
            masked: the same under the masks of the rows.

        Returns:
            The rows of the job from now on, each behind the one that it goes on from; such a one may come several times.
        """
        raise NotImplementedError
