"""`StepCosts`: how many tokens to draft (up to 16) in one step: the length with the most expected tokens per second, by the acceptance rate
and the costs of forwards, draws and drafting that `DraftLengths` has measured for a model; none if that gains less than 3 percent, and
until two forwards were measured. `pays`: whether one more draft token pays. `AcceptRate`: an acceptance rate as an exponentially weighted
mean with a prior of 3 tokens and a half-life of 14, for each kind of draft tokens; `Graded` splits a kind by how sure the drafter is.

With an acceptance rate `a`, a forward with `k` draft tokens yields `1 + a + ... + a ** k` tokens, and takes as long as a forward of
that width plus the drafting. The choice changes the number of forwards, and no output.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from outlines_cont.engine.drafting.forward_costs import ForwardCosts, RunningMedian

LONGEST = 16
"""The most tokens of a draft that are not forced."""

# A draft has to save this factor more than it costs, as measurements are inexact.
_MARGIN = 1.03
# The resolution of the clock, in seconds.
_SHORTEST = 1e-9
# The search ends after this many longer drafts that are no better, or where the next token is accepted more rarely than this.
_NO_BETTER, _FEW = 3, 0.02
# This many forwards without a draft are measured first.
_NUM_PLAIN = 2


_PRIOR_WEIGHT, _DECAY = 3.0, 0.95  # of acceptance rates


@dataclass(frozen=True, slots=True)
class Graded:
    """A kind of draft tokens to which the drafter gives about the same probability."""

    kind: str  # how the tokens were drafted
    grade: int  # the number of the interval of probabilities


class AcceptRate:
    """An exponentially weighted mean; `share` is the estimate, between 0 and 1."""

    __slots__ = ("_num_accepted", "_num_tried", "share")

    def __init__(self, expected: float) -> None:
        self.share = expected
        self._num_tried, self._num_accepted = _PRIOR_WEIGHT, _PRIOR_WEIGHT * expected

    def note(self, is_accepted: bool) -> None:
        """Record the result of one draft token."""
        self._num_tried = self._num_tried * _DECAY + 1
        self._num_accepted = self._num_accepted * _DECAY + is_accepted
        self.share = self._num_accepted / self._num_tried


class DraftLengths:
    """Measured costs and acceptance rates of one model, by which the lengths of drafts are chosen."""

    def __init__(self, device_type: str) -> None:
        self.forwards = ForwardCosts(device_type)  # of a forward and the draw after it
        self.draws = RunningMedian()  # seconds of a draw that needs no forward
        self._drafting: WeakKeyDictionary[object, RunningMedian] = WeakKeyDictionary()  # by drafter
        self._rates: WeakKeyDictionary[object, dict[Hashable, AcceptRate]] = WeakKeyDictionary()

    def rates(self, drafter: object) -> dict[Hashable, AcceptRate]:
        """Return the acceptance rates of a drafter over all rows, by the kind of draft tokens."""
        return self._rates.setdefault(drafter, {})

    def note_drafting(self, drafter: object, seconds: float) -> None:
        """Record the seconds of drafting for all rows of a step, per token of the longest draft."""
        self._drafting.setdefault(drafter, RunningMedian()).note(seconds)

    def drafting_seconds(self, drafter: object) -> float:
        """Return the median of what `note_drafting` has recorded; 0 before the first."""
        measured = self._drafting.get(drafter)
        return 0.0 if measured is None else measured.median


class StepCosts:
    """The costs of drafts in one step of R rows, each with `num_pending` tokens to feed, at least 1."""

    def __init__(self, measured: DraftLengths, num_rows: int, num_pending: int) -> None:
        self._measured, self._num_rows, self._num_pending = measured, num_rows, num_pending
        self._rate = 0.0  # tokens per second and row with the length that was returned last

    def length(self, drafter: object, share: float) -> int:
        """Return the length of drafts with the most tokens per second, at an acceptance rate of `share`."""
        if self._measured.forwards.num_below(self._num_rows * self._num_pending) < _NUM_PLAIN:
            return 0
        drafting, draw = self._measured.drafting_seconds(drafter), self._measured.draws.median
        best, best_rate, tokens, weight = 0, 0.0, 0.0, 1.0
        for length in range(LONGEST + 1):
            tokens += weight
            weight *= share
            seconds = self._forward(length) + (tokens - 1) * draw + length * drafting
            rate = tokens / max(seconds, _SHORTEST)
            if rate > best_rate * (_MARGIN if not best else 1.0):
                best, best_rate = length, rate
            elif weight < _FEW or length > best + _NO_BETTER:
                break
        self._rate = best_rate
        return best

    def pays(self, drafter: object, length: int, chance: float) -> bool:
        """Return whether one more token pays behind `length` others, if all are accepted with probability `chance`."""
        wider = self._forward(length + 1) - self._forward(length)
        return chance >= self._rate * (max(wider, 0.0) + self._measured.drafting_seconds(drafter))

    def _forward(self, length: int) -> float:
        return self._measured.forwards.seconds(self._num_rows * (self._num_pending + length))
