"""`Policy`: a frozen value that tells the loop, for one row at a time, what happens next.

A policy holds no mutable data of a row. What it must remember is a small immutable state per row, of any type `S`, which the
row keeps for every token of its piece; so when the loop rewinds, the policy's state is again what it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from outlines_cont.engine.branch import Branch

S = TypeVar("S")


class RowView(Protocol):
    """What a policy may read of a row."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids of the row so far, prompt included. Not to be changed, nor kept."""

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece that is being generated."""


class Policy(ABC, Generic[S]):
    """A rule for one piece of one row. Several policies on a row apply together; see `engine.compose`."""

    @property
    def finish_reason(self) -> str:
        """The reason that a row reports when this policy stops it: `stop` or `constraint`."""
        return "stop"

    @property
    def horizon(self) -> int:
        """An upper bound for the number of tokens that this policy may take back at once."""
        return 0

    @abstractmethod
    def initial(self, row: RowView) -> S:
        """Return the state before the first token of a piece."""

    @abstractmethod
    def branches(self, state: S, row: RowView) -> list[Branch]:
        """Return what may happen next: one branch, or none to stop. The list is not changed by anyone."""

    @abstractmethod
    def advance(self, state: S, token_id: int) -> S:
        """Return the state after one more token, never an end-of-sequence token."""

    def rewound(self, before: S, after: S) -> S:
        """Return the state to go on with when this policy's own branch gave tokens back.

        Args:
            before: the state that asked for it.
            after: the state as it was at the place that the row has gone back to.
        """
        return after

    def retries(self, state: S) -> int:
        """Return how often a piece has gone back because a value failed a check."""
        return 0

    def wish(self, state: S, row: RowView) -> str:
        """Return what must follow, for errors; empty where nothing in particular does."""
        return ""

    def held_bytes(self, state: S) -> int:
        """Return how many bytes at the end of the piece may yet be taken back; a stream does not show them."""
        return 0
