"""`StepCosts`: how wide the forward of a step should be, for all its rows together, as rows are padded to the widest: the width with the
most expected tokens per second; no drafts if that gains less than 3 percent, and until two forwards were measured. With an acceptance rate
`a`, a row with `k` draft tokens yields `1 + a + ... + a ** k` tokens; one with fewer pending tokens than others has room for more. `pays`:
whether one more draft token of some rows pays. The choice changes the number of forwards, and no output.

`AcceptRate`: an acceptance rate as an exponentially weighted mean with a prior of 3 tokens and a half-life of 23, for each kind of draft
tokens; `Graded` splits a kind by how sure the drafter is. `Probing`: when drafts are tried where none pays. `DrafterRecord`: both, and
the costs, of one drafter; `DraftLengths`: what was measured for one model.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from outlines_cont.engine.drafting.costs import DraftingCosts, ForwardCosts, RunningMedian

LONGEST = 16
"""The most tokens of a draft that are not forced."""

# A draft has to save this factor more than it costs, as measurements are inexact.
_MARGIN = 1.03
# The resolution of the clock, in seconds.
_SHORTEST = 1e-9
# The search ends after this many wider forwards that are no better.
_NO_BETTER = 4
# This many forwards without a draft are measured first.
_NUM_PLAIN = 2
# Where no draft pays, one is made after so many forwards, twice as many after each that is rejected, to measure the rate again: up to
# the first longest number, up to the second where these drafts would take more than this share of the time.
_FIRST_PATIENCE, _LONGEST_PATIENCES = 4, (16, 64)
_PROBE_SHARE = 0.02
# Such a draft has at most this many tokens, of which the last is accepted with at least this probability.
_LONGEST_PROBE, _LIKELY = 6, 0.5


_PRIOR_WEIGHT, _DECAY = 3.0, 0.97  # of acceptance rates


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


class Probing:
    """When a draft is made where none pays: with exponential back-off, and at once after one that was accepted against expectation."""

    __slots__ = ("_is_measuring", "_num_accepted", "_num_tried", "_patience", "_skipped")

    def __init__(self) -> None:
        self._skipped, self._patience, self._is_measuring = 0, _FIRST_PATIENCE, False
        self._num_tried = self._num_accepted = 0

    def reset(self) -> None:
        """Note that drafts pay."""
        self._skipped, self._patience, self._is_measuring = 0, max(self._patience // 2, _FIRST_PATIENCE), False

    def note(self, is_accepted: bool) -> None:
        """Record the result of one draft token."""
        self._num_tried += 1
        self._num_accepted += is_accepted

    def length(self, share: float, cost: float = 0.0) -> int:
        """Return the length of the draft to try in this step, where tokens are accepted at a rate of `share`; mostly 0.

        `cost` is that of one draft token, in forwards without drafts.
        """
        is_surprising = self._is_measuring and share < _LIKELY and self._num_accepted > _LIKELY * self._num_tried
        self._skipped += 1
        self._is_measuring = is_surprising or self._skipped >= self._patience
        if not self._is_measuring:
            return 0
        if not is_surprising:
            shortest, longest = _LONGEST_PATIENCES
            self._patience = min(2 * self._patience, max(shortest, min(int(cost / _PROBE_SHARE), longest)))
        self._skipped = self._num_tried = self._num_accepted = 0
        return longest_likely(share, _LIKELY, _LONGEST_PROBE)


def longest_likely(share: float, least: float, most: int) -> int:
    """Return how many tokens are all accepted with probability `least`, at a rate of `share`: at least 1, and at most `most`."""
    if share >= 1.0:
        return most
    return max(min(int(math.log(least) / math.log(share)) if share > 0.0 else 1, most), 1)


class DrafterRecord:
    """What was measured of one drafter, over all rows of a model.

    Attributes:
        costs: of its drafts.
        rates: the acceptance rates by the kind of draft tokens.
        probing: when it is tried although no draft pays.
    """

    __slots__ = ("costs", "probing", "rates")

    def __init__(self) -> None:
        self.costs = DraftingCosts()
        self.rates: dict[Hashable, AcceptRate] = {}
        self.probing = Probing()


class DraftLengths:
    """Measured costs and acceptance rates of one model, by which the lengths of drafts are chosen."""

    def __init__(self, device_type: str) -> None:
        self.forwards = ForwardCosts(device_type)  # of a forward and the draw after it
        self.draws = RunningMedian()  # seconds of a draw that needs no forward
        self._records: WeakKeyDictionary[object, DrafterRecord] = WeakKeyDictionary()

    def record(self, drafter: object) -> DrafterRecord:
        """Return the record of a drafter."""
        return self._records.setdefault(drafter, DrafterRecord())


class StepCosts:
    """The costs of drafts in one step.

    Args:
        measured: what was measured before.
        num_rows: how many rows are fed.
        num_pending: the most pending tokens of one of them, at least 1.
        num_negative: how many negative prompts are fed with them.
    """

    def __init__(self, measured: DraftLengths, num_rows: int, num_pending: int, num_negative: int = 0) -> None:
        self.num_pending = num_pending
        self._measured, self._num_rows = measured, num_rows
        self._num_sequences = num_rows + num_negative
        self.is_probe = False  # whether a draft is made although none pays
        self._best, self._rate = 0, 0.0  # the width that was returned last, and its tokens per second of all rows

    def width(self, drafting: DraftingCosts, rows: Sequence[tuple[float, int]]) -> int:
        """Return the width of the forward with the most tokens per second; 0 for one without drafts.

        `rows` are those with something to draft: the acceptance rate and the pending tokens of each.
        """
        if self._measured.forwards.num_below(self._num_sequences * self.num_pending) < _NUM_PLAIN:
            return 0
        draw, best = self._measured.draws.median, 0
        best_rate = self._num_rows / max(self._forward(self.num_pending), _SHORTEST)
        self._best, self._rate = 0, best_rate
        most = self._num_rows + sum(_expected(share, LONGEST) for share, _ in rows)
        if most <= best_rate * _MARGIN * (self._forward(self.num_pending + 1) + drafting.seconds(1)):
            return 0  # not even if wider forwards and further tokens cost nothing more
        for width in range(self.num_pending, self.num_pending + LONGEST + 1):
            lengths = [min(width - num_pending, LONGEST) for _, num_pending in rows]
            gains = [_expected(share, length) for (share, _), length in zip(rows, lengths, strict=True)]
            seconds = self._forward(width) + max(gains) * draw + drafting.seconds(max(lengths))
            rate = (self._num_rows + sum(gains)) / max(seconds, _SHORTEST)
            if rate > best_rate * (1.0 if best else _MARGIN):
                best, best_rate = width, rate
            elif width > (best or self.num_pending) + _NO_BETTER:
                break
        self._best, self._rate = best, best_rate
        return best

    def probe_cost(self, drafting: DraftingCosts) -> float:
        """Return what one draft token costs, in forwards without drafts."""
        plain = max(self._forward(self.num_pending), _SHORTEST)
        return (drafting.seconds(1) + self._forward(self.num_pending + 1)) / plain - 1

    def pays(self, drafting: DraftingCosts, width: int, chances: Iterable[float]) -> bool:
        """Return whether one more token of some rows pays in a forward of `width`; `chances` are those that each is accepted.

        Its cost is the mean of those up to the best width, as differences of neighbouring measurements are mostly noise.
        """
        return sum(chances) >= self._rate * self._further(drafting, width)

    def least_chance(self, drafting: DraftingCosts, num_drafting: int) -> float:
        """Return the probability from which on a further token pays in each of so many rows, on the way to the best width."""
        return self._rate * self._further(drafting, self.num_pending) / num_drafting

    def _further(self, drafting: DraftingCosts, width: int) -> float:
        """Return the seconds of a forward that is wider by one than `width`, and of the token in it."""
        low = max(width, self.num_pending)
        high = max(width + 1, self._best)
        return max(self._forward(high) - self._forward(low), 0.0) / (high - width) + drafting.further

    def _forward(self, width: int) -> float:
        return self._measured.forwards.seconds(self._num_sequences * width)


def _expected(share: float, length: int) -> float:
    """Return how many of so many draft tokens are accepted on the average, up to the first that is not."""
    return share * (1 - share**length) / (1 - share) if share < 1.0 else float(length)
