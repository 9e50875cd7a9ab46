"""`Job`: the rows of one call, submitted to the engine together, with the sampler that draws their tokens and the finished rows. Base of
other kinds of jobs, through hooks: joint choice over all rows (`choose`, beam search), and a controller outside the engine (`ask`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from outlines_cont.engine.drawing.draw_plan import drawing_of, tempered
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.engine.row import Row
from outlines_cont.engine.steered_row import Want
from outlines_cont.errors import DeadlockError
from outlines_cont.meter import Meter
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.row import StateRow


class Job:
    """The rows of one call. In this base class each draws its own tokens; a search chooses for all of them at once.

    Attributes:
        rows: those that still run, in the order in which they were given; forks stand behind the row that they left.
        done: what became of the others, by their index at the beginning; forks come after those.
        counts: the work of its rows since the last step.
        is_cancelled: whether the call was cancelled, so that its rows are to be removed.
        is_joint: whether rows are chosen among each other, so that they must run in one batch.
        can_fork: whether a row may fork.
        is_steered: whether a controller outside the engine may be asked what comes next, so that `ask` may change any row.
        is_asked: whether an answer to `ask` is outstanding; until then no row of the job takes a token.
        reads_ahead: whether rows feed their tokens while a controller is asked what comes after them.
    """

    is_joint = False
    can_fork = True
    is_steered = False
    is_asked = False
    reads_ahead = False

    def __init__(self, rows: Sequence[Row], sampler: Sampler, counts: Meter) -> None:
        self.rows: list[Any] = list(rows)
        self.done: dict[int, StateRow] = {}
        self.counts = counts
        self.is_cancelled = False
        self._drawings: dict[float | None, Drawing] = {None: drawing_of(sampler)}
        self._num_rows = len(self.rows)
        for index, row in enumerate(rows):
            row.job, row.index = self, index

    @property
    def is_over(self) -> bool:
        """Whether no row runs any longer."""
        return not self.rows

    def drawing(self, temperature: float | None) -> Drawing:
        """Return how a token is drawn; None for the job's own temperature."""
        drawing = self._drawings.get(temperature)
        if drawing is None:
            assert temperature is not None  # that one is there from the beginning
            drawing = self._drawings[temperature] = tempered(self._drawings[None], temperature)
        return drawing

    def note_end(self, row: Row, state_row: StateRow) -> None:
        """Take in what has become of a row."""
        self.done[row.index] = state_row
        self.rows = [other for other in self.rows if other is not row]

    def forked(self, row: Row, rows: Sequence[Row]) -> None:
        """Take in the rows that a row forks into, itself first."""
        for fork in rows[1:]:
            fork.index = self._num_rows
            self._num_rows += 1
        at = next(i for i, other in enumerate(self.rows) if other is row)
        self.rows = [*self.rows[:at], *rows, *self.rows[at + 1 :]]

    def checkpoint(self) -> Callable[[], None]:
        """Return what brings the job back to what it is now, its rows aside; see `Checkpoint`. It may be called several times."""
        rows, num_done, num_rows = self.rows, len(self.done), self._num_rows

        def undo() -> None:
            self.rows, self._num_rows = rows, num_rows
            self.done = dict(islice(self.done.items(), num_done))

        return undo

    def refuse_deadlock(self) -> None:
        """Fail all rows where every one of them waits: no row is left that could wake another."""
        if all(row.want is Want.WAIT and row.error is None for row in self.rows):
            for row in self.rows:
                row.fail(DeadlockError("every row of the call waits; no row is left that could wake another"))

    def ask(self, notify: Callable[[], None]) -> bool:
        """Ask the controller of the rows, where there is one, what comes next; return whether it was asked.

        Called before the forward; returns at once. Any thread calls `notify` when there is an answer.
        """
        return False

    def answered(self, patience: float) -> list[tuple[Row, list[Row]]] | None:
        """Do what was answered within `patience` seconds; return each row that forks with its forks, itself first; None without answer."""
        return None

    def account(self) -> None:
        """Take note of `counts`, which are set back after every step."""

    def leave(self) -> None:
        """Release what the job holds besides its rows; called when it was cancelled, while it still has the rows that ran."""

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Choose how the rows of a joint job continue.

        Args:
            rows: those that want a token; the others of the job stay as they are.
            logits: (R, V), those of `rows`.
            masked: the same under the masks of the rows.

        Returns:
            The rows of the job from now on, each as a pair with the one that it continues, first; that one may come several times.
        """
        raise NotImplementedError
