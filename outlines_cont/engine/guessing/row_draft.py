"""`RowDraft`: what guesses the next tokens of one row, what it remembers of the row, and how often it was right.

How a guess is made is the business of a `Drafter`, of which `outlines_cont.drafts` has three. A drafter serves any number of rows, and
keeps a `Memory` for each of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from fsm.caller import stacklevel_of_user
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.engine.guessing.accept_rate import AcceptRate, Graded
from outlines_cont.engine.guessing.lookahead import HINT, Lookahead
from outlines_cont.errors import DraftWarning
from outlines_cont.meter import Meter
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.random_stream import OpenStream
from outlines_cont.user_code import place_of

# Which share of guesses is right, as long as nothing is known.
_EXPECTED = 0.7
# Hints are taken where so many of them are right, and else every so often, to see whether they are.
_WORTH, _EVERY = 0.3, 16
# So many new tokens are little to read before a guess.
_USUAL = 24


class DraftedRow(Protocol):
    """What a drafter may read of a row; `engine.row.Row` is the one."""

    stream: OpenStream
    job: Any

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included. Not to be changed."""

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the token that comes next."""

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a guess with no more than hints in it."""

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return how often each token stands in the row."""


class Memory(Protocol):
    """What a drafter remembers of one row, such as an index of its tokens."""

    def cut(self, length: int) -> None:
        """Note that of the tokens of the row only the first `length` are surely those of before. Cost: no more than constant."""

    def fork(self) -> Memory:
        """Return the same for a fork of the row."""


class Drafter(Protocol):
    """What guesses tokens, for any number of rows of one model.

    Attributes:
        has_warned: whether it was told that the drafter has failed.
    """

    has_warned: bool

    def memory(self) -> Memory:
        """Return what is remembered of a row of which nothing is known yet."""

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push guessed tokens to the walks of some rows; fewer than asked for, or none, where nothing comes to mind."""

    def keep(self, memories: Sequence[Memory]) -> None:
        """Let go of what is held for other rows than these: they have ended."""


class Prices(Protocol):
    """What guesses cost in one step, and what they bring; see `engine.guess_length`."""

    def length(self, draft: RowDraft, share: float) -> int:
        """Return how many tokens are worth guessing, where such a share of guesses is right."""

    def pays(self, draft: RowDraft, length: int, chance: float) -> bool:
        """Return whether a token is worth guessing behind `length` others, where all are right with such a probability."""


class RowDraft:
    """The draft of one row.

    Attributes:
        drafter: what guesses.
        memory: what it remembers of the row.
        counts: what it has guessed for the row, and what of that was right.
        is_off: whether it has failed on the row, and is asked no more.
        skipped: how often nothing was guessed since the last guess, as that was not worth it.
        patience: how often that is so before a guess is made to see whether it is worth it now.
    """

    FIRST_PATIENCE, LONGEST_PATIENCE = 8, 128

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.memory = drafter.memory()
        self.counts = Meter()
        self.is_off = False
        self.skipped, self.patience = 0, self.FIRST_PATIENCE
        self._rates: dict[Hashable, AcceptRate] = {}
        self._others: dict[Hashable, AcceptRate] = {}
        self._num_hints = 0
        self._length = -_USUAL - 1  # of the row when it was guessed last

    def join(self, others: dict[Hashable, AcceptRate]) -> None:
        """Learn from other rows, and let them learn from this one: `others` is what all of them have found."""
        self._others = others

    def share(self, kind: Hashable, expected: float) -> float:
        """Return which share of the guesses of a kind is right.

        Args:
            kind: guesses that are made alike, and right about as often.
            expected: the share as long as nothing is known.
        """
        rate = self._rates.get(kind)
        if rate is None:
            known = self._others.get(kind)
            rate = self._rates[kind] = AcceptRate(expected if known is None else known.share)
        return rate.share

    def note(self, kind: Hashable, is_right: bool) -> None:
        """Take note of whether a guessed token was drawn."""
        for one in (kind, kind.kind) if isinstance(kind, Graded) else (kind,):
            share = self.share(one, _EXPECTED)
            for rates in (self._rates, self._others):
                rates.setdefault(one, AcceptRate(share)).note(is_right)

    def chance(self, kinds: Sequence[Hashable]) -> float:
        """Return the probability that guesses of these kinds are all right; one that leaves no choice, None, is."""
        return math.prod(self.share(kind, _EXPECTED) for kind in kinds if kind is not None)

    @property
    def takes_hints(self) -> bool:
        """Whether tokens that the policies hint at are guessed now: where most of them are right, and once in a while."""
        self._num_hints += 1
        return self.share(HINT, _EXPECTED) > _WORTH or not self._num_hints % _EVERY

    def cut(self, length: int) -> None:
        """Note that the row has only its first `length` tokens left."""
        self.memory.cut(length)

    def goes_on(self, length: int) -> bool:
        """Note that a guess was made behind so many tokens; return whether one was made a little before, so that little was to be read."""
        before, self._length = self._length, length
        return 0 <= length - before <= _USUAL

    def forget(self) -> None:
        """Forget what is remembered of the row, which may be in pieces after an interrupt."""
        self.memory = self.drafter.memory()

    def fail(self, error: Exception) -> None:
        """Guess no more for the row, whose text is written without it; the first time, a warning says why."""
        self.is_off = True
        if not self.drafter.has_warned:
            self.drafter.has_warned = True
            # Where warnings are errors, the step still belongs to others.
            with suppress(DraftWarning):
                warnings.warn(
                    f"the draft {self.drafter!r} has failed, so the text is written without a draft: {type(error).__name__}: {error}"
                    f"{place_of(error)}",
                    DraftWarning,
                    stacklevel=stacklevel_of_user(),
                )

    def fork(self) -> RowDraft:
        """Return the same for a fork of the row."""
        other = RowDraft.__new__(RowDraft)
        other.drafter, other.memory = self.drafter, self.memory.fork()
        other.is_off, other.counts = self.is_off, Meter()
        other.skipped, other.patience = self.skipped, self.patience
        other._rates = {kind: rate.fork() for kind, rate in self._rates.items()}
        other._others, other._num_hints = self._others, self._num_hints
        other._length = -_USUAL - 1
        return other


@dataclass(slots=True)
class Wish:
    """A guess that is wanted of one row.

    Attributes:
        row: the row; not to be changed.
        draft: its draft.
        prices: what guesses cost, and what they bring.
        takes_hints: whether the policies are asked for hints.
        made: the guess, where there is something in it.
    """

    row: DraftedRow
    draft: RowDraft
    prices: Prices
    takes_hints: bool = False
    made: Lookahead | None = None

    def __post_init__(self) -> None:
        """Guess what the policies hint at."""
        self.takes_hints = self.draft.takes_hints
        if self.takes_hints and self.row.has_hint:
            self.made = self.row.lookahead(takes_hints=True)

    @property
    def walk(self) -> Lookahead:
        """Where guessed tokens are pushed to; made when it is first asked for."""
        if self.made is None:
            self.made = self.row.lookahead(takes_hints=self.takes_hints)
        return self.made

    @property
    def context(self) -> Sequence[int]:
        """All ids: those of the row, and those that are guessed. Not to be changed."""
        return self.row.token_ids if self.made is None else self.made.context

    def length(self, kind: Hashable, expected: float) -> int:
        """Return how many tokens are worth guessing in some way; see `RowDraft.share`."""
        return self.prices.length(self.draft, self.draft.share(kind, expected))

    def pays(self, share: float) -> bool:
        """Return whether one more token is worth guessing, where such a share of guesses is right."""
        chance = self.draft.chance(self.walk.kinds)
        return self.prices.pays(self.draft, len(self.walk.token_ids), chance * share)

    @property
    def drawing(self) -> Drawing:
        """How the next guessed token would be drawn."""
        drawing: Drawing = self.row.job.drawing(self.walk.temperature)
        return drawing

    def uniform(self) -> float:
        """Return the random number that the row will draw with where the guess has come to; none is taken."""
        return self.row.stream.ahead(self.walk.num_drawn)

    def token_counts(self) -> TokenCounts:
        """Return how often each token stands in the row, those that are guessed included."""
        counts = self.row.counts_for(mirostat=False).fork()
        for token_id in self.walk.token_ids:
            counts.add(token_id, True)
        return counts
