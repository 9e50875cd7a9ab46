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
        """How often this policy may refuse tokens of a piece (`Branch.exclude`, `avoid`); None for no limit."""
        return None

    @property
    def max_retries_per_place(self) -> int | None:
        """How many tokens may be excluded at one position before the row rewinds further; None for no limit."""
        return None

    def for_model(self, model: LanguageModel) -> Policy[Any]:
        """Return the policy for rows of a model; itself, unless it depends on the model, such as on its tokens."""
        return self

    @abstractmethod
    def initial(self, row: RowView) -> S:
        """Return the state before the first token of a piece."""

    @abstractmethod
    def branches(self, state: S, row: RowView) -> list[Branch]:
        """Return the next branch; several to fork, none to stop. The list is not changed by the caller."""

    @abstractmethod
    def advance(self, state: S, token_id: int) -> S:
        """Return the state after one more token, never an end-of-sequence token."""

    def rewound(self, before: S, after: S, row: RowView) -> S:
        """Return the state after a branch of this policy has rewound the row.

        Args:
            before: the state whose branch it was.
            after: the state at the position rewound to.
            row: the row before the rewind.
        """
        return after

    def stop(self, state: S) -> str | int | None:
        """Return the stop text that has ended the piece, where this policy did; see `SequenceState.stops`."""
        return None

    def at_end(self, state: S, row: RowView) -> Branch | None:
        """Return a branch that rewinds where the text must not end here, None if it may end. Called when an end of text was drawn."""
        return None

    def give_up(self, state: S, row: RowView, reason: str) -> S:
        """Raise the error of the row where no other text can be generated in place of what this policy refuses, or accept that text.

        Args:
            state: the present state.
            row: the row.
            reason: why, for the error, such as `50 retries are spent`.

        Returns:
            The state to continue with, which no longer refuses the text so far.

        Raises:
            RetriesSpent: in policies that do not override this method.
        """
        raise RetriesSpent(f"expected a text that {self!r} accepts, but {reason}. Last: {self.wish(state, row)}")

    def wish(self, state: S, row: RowView) -> str:
        """Return what must follow, for errors; empty where nothing in particular must."""
        return ""

    def hint(self, state: S, row: RowView) -> int | None:
        """Return a token that is likely to follow, for drafts, or None. Called only where a token is sampled."""
        return None

    def held_bytes(self, state: S) -> int:
        """Return how many trailing bytes of the piece may yet be rewound; a stream does not show them."""
        return 0
