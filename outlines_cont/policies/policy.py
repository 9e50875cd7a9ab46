"""`Policy`: abstract base of rules that steer the generation of one row, step by step, by branches (`Branch`). Its methods are functions
of an immutable state, of which the row keeps one per token; so to rewind is to take an older state.

`RowView`: the protocol of a row as policies read it: its tokens, their origin and probability, kept logits, what is excluded, retries,
and random numbers. Read only; imports no module of the package.

A policy itself is frozen and shared by rows: what it must remember of a row is in the state, a small value of any type `S`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from fsm.errors import shorten
from outlines_cont.errors import RetriesSpent
from outlines_cont.policies.branch import Branch

if TYPE_CHECKING:
    import torch

    from outlines_cont.interfaces import LanguageModel


class RowView(Protocol):
    """What a policy may read of a row."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids of the row so far, prompt included. Do not change it, nor keep it after the call."""

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece that is being generated."""

    @property
    def healed(self) -> bytes:
        """The bytes at the beginning of the piece that were removed from the prompt and are respelled; not a part of its text."""

    @property
    def first_open(self) -> int:
        """Index of the first token that may be rewound: that of the piece, or the first whose text was not streamed yet."""

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` was sampled; forced and given tokens were not."""

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was appended by a policy as given text, or re-encoded."""

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn, under mask and temperature; 0 if it was not drawn."""

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that a second draw may give another token."""

    @property
    def retries(self) -> int:
        """How often the piece was rewound so far because a policy refused it."""

    @property
    def rejections(self) -> int:
        """How often of these no token was excluded: what was refused was drawn again."""

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that are not drawn as token `index`, because what followed them was refused."""

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, as the model returned them; None if they are not kept. Do not change them."""

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) that depends on `key` and the random stream of the row only, and does not advance the stream.

        Let `key` contain the position that is decided on and a digest of the text before it: then each position has one decision.
        """


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

    @property
    def judges_whole_texts(self) -> bool:
        """Whether `at_end` is asked only where a text ends by itself, and not where a stop text cuts it."""
        return False

    def for_model(self, model: LanguageModel) -> Policy[Any]:
        """Return the policy for rows of a model; itself, unless it depends on the model, such as on its tokens."""
        return self

    @abstractmethod
    def initial(self, row: RowView) -> S:
        """Return the state before the first token of a piece."""

    @abstractmethod
    def branches(self, state: S, row: RowView) -> list[Branch]:
        """Return the next branch, in a list, or none to stop. The list is not changed by the caller."""

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
        """Raise the error of the row if no other text can be generated in place of what this policy refuses, or accept that text.

        Args:
            state: the present state.
            row: the row.
            reason: why, for the error, such as `50 retries are spent`.

        Returns:
            The state to continue with, which no longer refuses the text so far.

        Raises:
            RetriesSpent: in policies that do not override this method.
        """
        wish = self.wish(state, row)
        told = f" What it requires next: {wish}." if wish else ""
        raise RetriesSpent(f"expected a text that {shorten(self)} accepts, but {reason}.{told}")

    def wish(self, state: S, row: RowView) -> str:
        """Return what must follow, for errors; empty if nothing in particular must."""
        return ""

    def hint(self, state: S, row: RowView) -> int | None:
        """Return a token that is likely to follow, for drafts, or None. Called only where a token is sampled."""
        return None

    def held_bytes(self, state: S) -> int:
        """Return how many trailing bytes of the piece may yet be rewound; a stream does not show them."""
        return 0
