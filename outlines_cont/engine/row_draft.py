"""`RowDraft`: what guesses the next tokens of one row, what it remembers of the row, and how often it was right.

How a guess is made is the business of a `Drafter`, of which `outlines_cont.drafts` has three. A drafter serves any number of rows, and
keeps a `Memory` for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from outlines_cont.engine.accept_rate import AcceptRate
from outlines_cont.engine.drawing import Drawing
from outlines_cont.engine.lookahead import Lookahead
from outlines_cont.sampling import TokenCounts

if TYPE_CHECKING:
    from outlines_cont.engine.row import Row


class Memory(Protocol):
    """What a drafter remembers of one row, such as an index of its tokens."""

    def cut(self, length: int) -> None:
        """Note that of the tokens of the row only the first `length` are surely those of before. Cost: no more than constant."""

    def fork(self) -> Memory:
        """Return the same for a fork of the row."""


class Drafter(Protocol):
    """What guesses tokens, for any number of rows of one model."""

    def memory(self) -> Memory:
        """Return what is remembered of a row of which nothing is known yet."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push guessed tokens to the walks of some rows; fewer than asked for, or none, where nothing comes to mind."""

    def keep(self, memories: Sequence[Memory]) -> None:
        """Let go of what is held for other rows than these: they have ended."""


class RowDraft:
    """The draft of one row.

    Attributes:
        drafter: what guesses.
        memory: what it remembers of the row.
        skipped: how often nothing was guessed since the last guess, as that was not worth it.
        patience: how often that is so before a guess is made to see whether it is worth it now.
    """

    FIRST_PATIENCE, LONGEST_PATIENCE = 8, 128

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.memory = drafter.memory()
        self.skipped, self.patience = 0, self.FIRST_PATIENCE
        self._rates: dict[Hashable, AcceptRate] = {}
        self._rate = AcceptRate(0.5)

    def rate(self, kind: Hashable, expected: float) -> float:
        """Return which share of the guesses of a kind is right; the next ones are of that kind.

        Args:
            kind: guesses that are made alike, and right about as often.
            expected: the share as long as nothing is known.
        """
        self._rate = self._rates.get(kind) or self._rates.setdefault(kind, AcceptRate(expected))
        return self._rate.share

    def note(self, is_right: bool) -> None:
        """Take note of whether a guessed token was drawn."""
        self._rate.note(is_right)

    def cut(self, length: int) -> None:
        """Note that the row has only its first `length` tokens left."""
        self.memory.cut(length)

    def fork(self) -> RowDraft:
        """Return the same for a fork of the row."""
        other = RowDraft.__new__(RowDraft)
        other.drafter, other.memory = self.drafter, self.memory.fork()
        other.skipped, other.patience = self.skipped, self.patience
        other._rates = {kind: rate.fork() for kind, rate in self._rates.items()}
        other._rate = AcceptRate(0.5)
        return other


@dataclass(frozen=True, slots=True)
class Wish:
    """A guess that is wanted of one row.

    Attributes:
        row: the row; not to be changed.
        draft: its draft.
        walk: where guessed tokens are pushed to.
        longest: from the share of guesses that are right to the number of tokens that are worth guessing; see `GuessLength`.
    """

    row: Row
    draft: RowDraft
    walk: Lookahead
    longest: Callable[[RowDraft, float], int]

    def length(self, kind: Hashable, expected: float) -> int:
        """Return how many tokens are worth guessing in some way; see `RowDraft.rate`."""
        return self.longest(self.draft, self.draft.rate(kind, expected))

    @property
    def drawing(self) -> Drawing:
        """How the next guessed token would be drawn."""
        drawing: Drawing = self.row.job.drawing(self.walk.temperature)
        return drawing

    def uniform(self, offset: int) -> float:
        """Return the random number that the row will draw with, `offset` draws from now; none is taken."""
        return self.row.stream.ahead(offset)

    def token_counts(self) -> TokenCounts:
        """Return how often each token stands in the row, those that are guessed included."""
        counts = self.row.counts_for(mirostat=False).fork()
        for token_id in self.walk.token_ids:
            counts.add(token_id, True)
        return counts
