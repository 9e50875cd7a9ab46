"""`RowDraft`: the speculative decoding of one row: its drafter and that one's memory, acceptance rates, the last draft, and draws made
ahead for it. Where drafts do not pay they are retried with exponential back-off. `Drafter`: the protocol of drafters, which serve many
rows; `Wish`: the request for the draft of one row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from fsm.caller import stacklevel_of_user
from outlines_cont.engine.drawing.drawing import Draw, Drawing, DrawPlace
from outlines_cont.engine.guessing.accept_rate import AcceptRate, Graded
from outlines_cont.engine.guessing.expected import Expected
from outlines_cont.engine.guessing.guess_length import StepPrices
from outlines_cont.engine.guessing.lookahead import HINT, Asked, Lookahead
from outlines_cont.errors import DraftWarning
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.random_stream import OpenStream
from outlines_cont.shallow import shallow_copy
from outlines_cont.user_code import place_of

# Which share of guesses is right, as long as nothing is known.
_EXPECTED = 0.7
# Hints are taken where so many of them are right, and else every so often, to see whether they are.
_WORTH, _EVERY = 0.3, 16
# Where no guess is worth it, a short one is made after so many forwards, to see whether it has become worth it.
_FIRST_PATIENCE, _LONGEST_PATIENCE, _NUM_PROBED = 8, 128, 2
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


class Drafter(Protocol):
    """Protocol of drafters: what guesses tokens, for any number of rows of one model."""

    has_warned: bool  # whether a warning has said that the drafter has failed

    def memory(self) -> Any:
        """Return what is remembered of a row of which nothing is known yet, such as an index of its tokens.

        Its method `cut(length)` notes that of the tokens of the row only the first `length` are surely those of before, at no more
        than constant cost; `fork()` returns the same for a fork of the row.
        """

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Push guessed tokens to the walks of some rows; fewer than requested, or none, where nothing is likely."""

    def keep(self, memories: Sequence[Any]) -> None:
        """Let go of what is held for other rows than these: they have ended."""


class RowDraft:
    """The speculative decoding of one row.

    Attributes:
        drafter: what guesses.
        memory: what it remembers of the row.
        counts: what it has guessed for the row, and what of that was right.
        is_off: whether it has failed on the row, and is asked no more.
        masks: the lazy masks behind guessed tokens that are likely to be needed.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.memory = drafter.memory()
        self.counts = Meter()
        self.is_off = False
        self._skipped, self._patience = 0, _FIRST_PATIENCE
        self._rates: dict[Hashable, AcceptRate] = {}
        self._others: dict[Hashable, AcceptRate] = {}
        self._num_hints = 0
        self._length = -_USUAL - 1  # of the row when it was guessed last
        self._forget_guess()

    def _forget_guess(self) -> None:
        self.masks: list[TokenSet] = []
        self._asked: tuple[Asked, ...] = ()  # what the policies want behind guessed tokens
        self._draws: dict[int, tuple[DrawPlace, Draw]] = {}  # made ahead, by the number of tokens before them

    def join(self, others: dict[Hashable, AcceptRate]) -> None:
        """Learn from other rows, and let them learn from this one: `others` is what all of them have found."""
        self._others = others

    def share(self, kind: Hashable, expected: float) -> float:
        """Return the acceptance rate of a kind of guesses, which are made alike; `expected` as long as nothing is known."""
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

    def length(self, prices: StepPrices, share: float) -> int:
        """Return how many tokens are guessed in a step, where such a share of guesses is right."""
        best = prices.length(self.drafter, share)
        if best:
            self._skipped, self._patience = 0, _FIRST_PATIENCE
            return best
        self._skipped += 1
        if self._skipped < self._patience:
            return 0
        self._skipped, self._patience = 0, min(self._patience * 2, _LONGEST_PATIENCE)
        return _NUM_PROBED

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
        """Forget what is remembered of the row, and its guess, which may be in pieces after an interrupt."""
        self.memory = self.drafter.memory()
        self._forget_guess()

    def fail(self, error: Exception) -> None:
        """Guess no more for the row, whose text is written without it; the first time, a warning gives the reason."""
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
        other = shallow_copy(self)
        other.memory, other.counts = self.memory.fork(), Meter()
        other._rates = {kind: copy(rate) for kind, rate in self._rates.items()}
        other._draws, other._length = {}, -_USUAL - 1
        return other

    # -- the last guess ------------------------------------------------------------------------------------------------

    def begin(self, found: Lookahead) -> Expected:
        """Take in a guess, and return what is to be fed."""
        self.masks = found.lazy_masks(self.chance)
        self._asked = tuple(found.asked)
        return Expected(tuple(found.token_ids), kinds=tuple(found.kinds))

    def make_masks(self) -> None:
        """Have the masks made: they are by now on a CPU; elsewhere the device computes meanwhile."""
        for mask in self.masks:
            with suppress(Exception):
                _ = mask.words

    def places(
        self, length: int, expected: Expected, drawing_of: Callable[[float | None], Drawing], stream: OpenStream
    ) -> list[DrawPlace]:
        """Return where tokens are drawn next in a row of `length` tokens if what was guessed comes true, as far as logits are known."""
        found: list[DrawPlace] = []
        for asked in self._asked if expected.is_guess else ():
            logits = expected.logits.get(length + asked.offset)
            drawing = drawing_of(asked.temperature)
            if logits is None or not asked.mask.is_made or drawing.kind != "standard" or drawing.needs_counts:
                break
            uniform = stream.ahead(asked.num_drawn) if drawing.needs_random else None
            found.append(DrawPlace(length + asked.offset, logits, asked.mask, drawing, uniform))
        return found

    def foresee(self, place: DrawPlace, draw: Draw) -> None:
        """Keep a draw that was made ahead."""
        self._draws[place.length] = place, draw

    def foreseen(self, place: DrawPlace) -> Draw | None:
        """Return the draw that was made ahead at a position, if all that decides it is the same now."""
        found = self._draws.get(place.length)
        return None if found is None or not found[0].asks_like(place) else found[1]

    def forget_draws(self) -> None:
        """Forget what was drawn ahead: another token has come."""
        if self._draws:
            self._draws = {}


@dataclass(slots=True)
class Wish:
    """The request for a draft of one row, and that draft as it is made."""

    row: DraftedRow  # the row; not to be changed
    draft: RowDraft  # its draft
    prices: StepPrices  # what guesses cost, and what they bring
    takes_hints: bool = False  # whether the policies are asked for hints
    made: Lookahead | None = None  # the guess, where there is something in it

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
        return self.draft.length(self.prices, self.draft.share(kind, expected))

    def pays(self, share: float) -> bool:
        """Return whether one more token is worth guessing, where such a share of guesses is right."""
        chance = self.draft.chance(self.walk.kinds)
        return self.prices.pays(self.draft.drafter, len(self.walk.token_ids), chance * share)

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
