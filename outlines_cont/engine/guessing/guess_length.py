"""`GuessLength`: how many tokens to draft (up to 16): the length with the most expected tokens per second, by acceptance rates and
measured costs of forwards, draws and drafting; none until two forwards were measured. `StepPrices`: the same for the batch of one step.

With an acceptance rate `a`, a forward with `k` guessed tokens yields `1 + a + ... + a ** k` tokens, and takes as long as a forward of
that width plus the drafting. The choice changes how many forwards there are, and no output.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

from outlines_cont.engine.guessing.accept_rate import AcceptRate
from outlines_cont.engine.guessing.forward_costs import ForwardCosts, Lately

LONGEST = 16
"""How many tokens a drafter guesses at most."""

# A guess must bring so much more than it costs, as measurements are never exact.
_MARGIN = 1.03
# What a clock cannot tell from nothing, in seconds.
_SHORTEST = 1e-9
# Where a longer guess is no better so many times, or brings less than that, none is.
_NO_BETTER, _FEW = 3, 0.02
# So many forwards without a guess are measured first.
_NUM_PLAIN = 2


class GuessLength:
    """Measured costs and acceptance rates of one model, by which the length of drafts is chosen."""

    def __init__(self, device_type: str) -> None:
        # What a step takes, by the tokens of its forward: the forward, and the draw after it.
        self.forwards = ForwardCosts(device_type)
        self.draws = Lately()  # seconds of a draw that needs no forward
        self._guesses: WeakKeyDictionary[object, Lately] = WeakKeyDictionary()  # by drafter
        self._shares: WeakKeyDictionary[object, dict[Hashable, AcceptRate]] = WeakKeyDictionary()

    def shares(self, drafter: object) -> dict[Hashable, AcceptRate]:
        """Return which share of guesses by a drafter is right in all rows, by their kind."""
        return self._shares.setdefault(drafter, {})

    def note_guess(self, drafter: object, seconds: float) -> None:
        """Take note of what guessing took for all rows of a step together, per token of the longest guess."""
        self._guesses.setdefault(drafter, Lately()).note(seconds)

    def prices(self, num_rows: int, num_pending: int) -> StepPrices:
        """Return what guesses cost in a step of R rows with `num_pending` tokens each to feed, at least 1."""
        return StepPrices(self, num_rows, num_pending)

    def guess_seconds(self, drafter: object) -> float:
        """Return what guessing takes for all rows of a step together, per token of the longest guess; 0 where that is not known."""
        measured = self._guesses.get(drafter)
        return 0.0 if measured is None else measured.median


class StepPrices:
    """What guesses cost in one step; see `GuessLength.prices`."""

    def __init__(self, measured: GuessLength, num_rows: int, num_pending: int) -> None:
        self._measured, self._num_rows, self._num_pending = measured, num_rows, num_pending
        self._rate = 0.0  # tokens per second and row that the last length brings

    def length(self, drafter: object, share: float) -> int:
        """Return the number of tokens to guess of most tokens per second, where such a share of guesses by a drafter is right."""
        if self._measured.forwards.num_below(self._num_rows * self._num_pending) < _NUM_PLAIN:
            return 0
        guess, draw = self._measured.guess_seconds(drafter), self._measured.draws.median
        best, best_rate, tokens, weight = 0, 0.0, 0.0, 1.0
        for length in range(LONGEST + 1):
            tokens += weight
            weight *= share
            seconds = self._forward(length) + (tokens - 1) * draw + length * guess
            rate = tokens / max(seconds, _SHORTEST)
            if rate > best_rate * (_MARGIN if not best else 1.0):
                best, best_rate = length, rate
            elif weight < _FEW or length > best + _NO_BETTER:
                break
        self._rate = best_rate
        return best

    def pays(self, drafter: object, length: int, chance: float) -> bool:
        """Return whether a token is worth guessing behind `length` others, where all are right with such a probability."""
        wider = self._forward(length + 1) - self._forward(length)
        return chance >= self._rate * (max(wider, 0.0) + self._measured.guess_seconds(drafter))

    def _forward(self, length: int) -> float:
        return self._measured.forwards.seconds(self._num_rows * (self._num_pending + length))
