"""`Job`: the rows of one call, which are submitted to the engine together, with the finished rows. Each row draws its own
tokens; subclasses choose among all rows (`choose`, beam search), or call controllers outside the engine (`start_calls`). If all rows wait,
they fail with `DeadlockError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.errors import DeadlockError
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow


class Job:
    """The rows of one call. In this base class each row draws its own tokens.

    Attributes:
        rows: those that still run, in the order of the call; forks follow their row.
        done: the finished rows by index; forks have the indices after those of the call.
        counts: the work of its rows since the last step.
        is_cancelled: whether the call was cancelled, so that its rows are to be removed.
        is_joint: whether `choose` chooses among all rows, so that they must run in one batch.
        can_fork: whether a row may fork.
        is_controlled: whether controllers outside the engine are called, so that any row may change.
        is_calling: whether calls of controllers have not ended; until then no row of the job takes a token.
        reads_ahead: whether rows feed their tokens while controllers are called.
    """

    is_joint = False
    can_fork = True
    is_controlled = False
    is_calling = False
    reads_ahead = False

    def __init__(self, rows: Sequence[Row | None], counts: Meter) -> None:
        """Take rows, each with its index; None for an index without a row."""
        self.rows: list[Any] = [row for row in rows if row is not None]
        self.done: dict[int, StateRow] = {}
        self.counts = counts
        self.is_cancelled = False
        self._num_rows = len(rows)
        for index, row in enumerate(rows):
            if row is not None:
                row.job, row.index = self, index

    @property
    def is_over(self) -> bool:
        """Whether all rows have ended."""
        return not self.rows

    def note_end(self, row: Row, state_row: StateRow) -> None:
        """Record the result of a row that has ended."""
        self.done[row.index] = state_row
        self.rows = [other for other in self.rows if other is not row]

    def forked(self, row: Row, rows: Sequence[Row]) -> None:
        """Record the rows that a row forks into, itself first."""
        for fork in rows[1:]:
            fork.index = self._num_rows
            self._num_rows += 1
        at = self.rows.index(row)
        self.rows = [*self.rows[:at], *rows, *self.rows[at + 1 :]]

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the job without its rows, any number of times; see `Checkpoint`."""
        rows, num_done, num_rows = self.rows, len(self.done), self._num_rows

        def undo() -> None:
            self.rows, self._num_rows = rows, num_rows
            self.done = dict(islice(self.done.items(), num_done))

        return undo

    def refuse_deadlock(self) -> None:
        """Fail all rows if every one of them waits, as none is left that could wake another."""
        if all(row.status is RowStatus.WAITING and row.error is None for row in self.rows):
            for row in self.rows:
                row.fail(DeadlockError("every row of the call waits; no row is left that could wake another"))

    def start_calls(self, notify: Callable[[], None]) -> bool:
        """Start to call the controllers of the rows, before the forward, in a thread; return whether there are any.

        `notify` is called, by any thread, when all calls have ended.
        """
        return False

    def finish_calls(self, patience: float) -> list[tuple[Row, list[Row]]] | None:
        """Execute what the controllers return within `patience` seconds; return each row that forks, with the rows that it forks into,
        itself first; None if they have not returned.
        """
        return None

    def account(self) -> None:
        """Read `counts`, which are cleared after every step."""

    def leave(self) -> None:
        """Release the resources of a cancelled job; called before its rows are removed."""

    def choose(self, rows: Sequence[Row], logits: torch.Tensor, masked: torch.Tensor) -> list[tuple[Row, Row]]:
        """Return (old row, new row) for each next row of a joint job; several may continue one old row.

        `rows` are those that are ready to sample; the others do not change. `logits` are their (R, V) logits, `masked` the same
        under their masks.
        """
        raise NotImplementedError
