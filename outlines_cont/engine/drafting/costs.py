"""`ForwardCosts`: a measured cost model of forwards: seconds by number of tokens, as the median of the last 9 measurements of about that
size, linearly interpolated, and extrapolated by constants per device type. Forwards of more than 2048 tokens are not recorded.
`RunningMedian`: the median of the last few measurements. `chunk_width`: how many pending tokens of each row a forward takes (chunked
prefill): as many as give the most tokens for their cost, padding included, by those constants.

`StepCosts`: how many tokens to draft (up to 16) in one step: the length with the most expected tokens per second, by the acceptance rate
and the costs of forwards, draws and drafting that `DraftLengths` has measured for a model; none if that gains less than 3 percent, and
until two forwards were measured. `pays`: whether one more draft token pays. `AcceptRate`: an acceptance rate as an exponentially weighted
mean with a prior of 3 tokens and a half-life of 14, for each kind of draft tokens; `Graded` splits a kind by how sure the drafter is.

With an acceptance rate `a`, a forward with `k` draft tokens yields `1 + a + ... + a ** k` tokens, and takes as long as a forward of
that width plus the drafting. The choice changes the number of forwards, and no output.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from weakref import WeakKeyDictionary

FREE_TOKENS = {"cpu": 24}
"""The fixed cost of a forward in tokens, by type of device; measured with a model of 512 x 8 on one core."""
OTHER_FREE_TOKENS = 512
"""The same for accelerators, whose time is that of reading the weights up to some hundred tokens."""

_NUM_KEPT = 9
_EXACT = 16
_GROWTH = 1.15
_MAX_TOKENS = 2048


class RunningMedian:
    """The `median` of the last 9 numbers; 0 if there are none."""

    __slots__ = ("last", "median")

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=_NUM_KEPT)
        self.median = 0.0

    def note(self, number: float) -> None:
        """Add a number."""
        self.last.append(number)
        self.median = median(self.last)


class ForwardCosts:
    """Seconds of a forward by its number of tokens, padding included.

    Args:
        device_type: as `torch.device.type`; it determines the estimates for sizes that were not measured.
    """

    def __init__(self, device_type: str) -> None:
        self._free = FREE_TOKENS.get(device_type, OTHER_FREE_TOKENS)
        self._measured: dict[int, RunningMedian] = {}
        self._sizes: list[int] = []

    def note(self, num_tokens: int, seconds: float) -> None:
        """Record one forward, unless it is a long one, such as that of a prompt."""
        if not 0 < num_tokens <= _MAX_TOKENS:
            return
        size = _size(num_tokens)
        if size not in self._measured:
            self._measured[size] = RunningMedian()
            self._sizes = sorted(self._measured)
        self._measured[size].note(seconds)

    def num_below(self, num_tokens: int) -> int:
        """Return the number of recorded forwards of at most `num_tokens` tokens."""
        size = _size(num_tokens)
        return sum(len(self._measured[other].last) for other in self._sizes if other <= size)

    def seconds(self, num_tokens: int) -> float:
        """Return the estimated seconds of a forward, in arbitrary units as long as none was recorded."""
        size = _size(num_tokens)
        if size in self._measured:
            return self._measured[size].median
        if not self._sizes:
            return self._free + size
        at = bisect_left(self._sizes, size)
        if 0 < at < len(self._sizes):
            low, high = self._sizes[at - 1], self._sizes[at]
            share = (size - low) / (high - low)
            return self._measured[low].median * (1 - share) + self._measured[high].median * share
        near = self._sizes[min(at, len(self._sizes) - 1)]
        return self._measured[near].median * (self._free + size) / (self._free + near)


def _size(num_tokens: int) -> int:
    """Return the size under which a number of tokens is recorded: itself up to 16, then in steps of 15 percent."""
    if num_tokens <= _EXACT:
        return num_tokens
    return round(_EXACT * _GROWTH ** round(math.log(num_tokens / _EXACT, _GROWTH)))


def chunk_width(pending: Sequence[int], max_tokens: int, device_type: str) -> int:
    """Return the width at which a forward feeds the most tokens for its cost, where rows with fewer pending tokens are padded.

    `pending` are the numbers of tokens to feed, not all 0; `max_tokens` are the most tokens of a forward, padding included.
    """
    longest = max(max_tokens // len(pending), 1)
    free = FREE_TOKENS.get(device_type, OTHER_FREE_TOKENS)
    lengths = sorted(min(count, longest) for count in pending)
    if lengths[0] == lengths[-1]:
        return lengths[-1]
    best, best_rate, shorter = 1, 0.0, 0
    for index, width in enumerate(lengths):
        if width:
            fed = shorter + width * (len(lengths) - index)
            rate = fed / (free + width * len(lengths))
            if rate >= best_rate:
                best, best_rate = width, rate
        shorter += width
    return best


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
