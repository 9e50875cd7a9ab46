"""`Policy`: abstract base of rules that steer the generation of one row, step by step, by branches (`Branch`). Its methods are functions
of an immutable state, of which the row keeps one per token; so to rewind is to take an older state.

A policy itself is frozen and shared by rows: what it must remember of a row is in the state, a small value of any type `S`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outlines_cont.errors import RetriesSpent
from outlines_cont.policies.branch import Branch
from outlines_cont.policies.row_view import RowView

if TYPE_CHECKING:
    from outlines_cont.interfaces import LanguageModel

S = TypeVar("S")


class Policy(ABC, Generic[S]):
    """A rule for one generated span (piece) of one row. Several policies on a row are merged by `policies.compose`."""

    @property
    def finish_reason(self) -> str:
        """The reason that a row reports when this policy stops it: `stop` or `constraint`."""
        return "stop"

    @property
    def horizon(self) -> int:
        """At how many of the last positions the row keeps logits, so that a rewind to these costs no forward."""
        return 0

    @property
    def max_retries(self) -> int | None:
        """How often this policy may refuse what a piece has written (`Branch.exclude`, `avoid`); None for no limit."""
        return None

    @property
    def max_retries_per_place(self) -> int | None:
        """How many tokens may be excluded at one position before the row rewinds further; None for no limit."""
        return None

    def for_model(self, model: LanguageModel) -> Policy[Any]:
        """Return the policy as it steers rows of a model; itself, unless it needs something of the model, such as its tokens."""
        return self

    @abstractmethod
    def initial(self, row: RowView) -> S:
        """Return the state before the first token of a piece."""

    @abstractmethod
    def branches(self, state: S, row: RowView) -> list[Branch]:
        """Return what may happen next: one branch, or none to stop. The list is not changed by anyone."""

    @abstractmethod
    def advance(self, state: S, token_id: int) -> S:
        """Return the state after one more token, never an end-of-sequence token."""

    def rewound(self, before: S, after: S, row: RowView) -> S:
        """Return the state to continue with when this policy's own branch has rewound.

        Args:
            before: the state that requested it.
            after: the state as it was at the position rewound to.
            row: the row as it was before.
        """
        return after

    def stop(self, state: S) -> str | int | None:
        """Return which stop text has ended the piece, where this policy did; see `SequenceState.stops`."""
        return None

    def at_end(self, state: S, row: RowView) -> Branch | None:
        """Return a branch that rewinds where the text must not end here; None to let it end. Called when its end was drawn."""
        return None

    def give_up(self, state: S, row: RowView, reason: str) -> S:
        """Called where what this policy refuses cannot be written otherwise: raise the row's error, or let it pass.

        Args:
            state: the present state.
            row: the row.
            reason: what has come to its end, for the error, such as `50 retries are spent`.

        Returns:
            The state to continue with, which no longer refuses what is written so far.

        Raises:
            RetriesSpent: unless a policy does otherwise.
        """
        raise RetriesSpent(f"expected a text that {self!r} lets pass, but {reason}. Last: {self.wish(state, row)}")

    def wish(self, state: S, row: RowView) -> str:
        """Return what must follow, for errors; empty where nothing in particular does."""
        return ""

    def hint(self, state: S, row: RowView) -> int | None:
        """Return a token that will probably come next, for drafts; None where none does. Called only where a token is drawn."""
        return None

    def held_bytes(self, state: S) -> int:
        """Return how many trailing bytes of the piece may yet be rewound; a stream does not show them."""
        return 0
