"""`ForwardCosts`: a measured cost model of forwards: seconds by number of tokens, as the median of the last 9 measurements of about that
size, linearly interpolated, and extrapolated by constants per device type. Forwards of more than 2048 tokens are not recorded.
`RunningMedian`: the median of the last few measurements. `chunk_width`: how many pending tokens of each row a forward takes (chunked
prefill): as many as give the most tokens for their cost, padding included, by those constants.

`DraftingCosts`: the same of a drafter: the seconds of the first draft token and of each further one, by a line through the medians of the
drafts of each length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import median

FREE_TOKENS = {"cpu": 24}
"""The fixed cost of a forward in tokens, by type of device; measured with a model of 512 x 8 on one core."""
OTHER_FREE_TOKENS = 512
"""The same for accelerators, whose time is that of reading the weights up to some hundred tokens."""

_NUM_KEPT = 9
_EXACT = 16
_GROWTH = 1.15
_MAX_TOKENS = 2048
_FEW_MEASURED = 3  # fewer measurements may all be outliers
_FORGOTTEN = 0.97  # the weight of a median of drafts of some length after each draft of another length


class RunningMedian:
    """The last 9 numbers, and their median, computed when it is read; without drafts nothing reads it."""

    __slots__ = ("_last", "_median")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_NUM_KEPT)
        self._median: float | None = 0.0  # None where numbers were noted since it was computed

    def __len__(self) -> int:
        return len(self._last)

    def note(self, number: float) -> None:
        """Append a number."""
        self._last.append(number)
        self._median = None

    @property
    def median(self) -> float:
        """The median; 0 if there are no numbers."""
        if self._median is None:
            self._median = median(self._last)
        return self._median


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
        return sum(len(self._measured[other]) for other in self._sizes if other <= size)

    def seconds(self, num_tokens: int) -> float:
        """Return the estimated seconds of a forward, in arbitrary units as long as none was recorded.

        Where a size was seen once or twice, or a larger one takes less, the lower of both estimates counts: what is chosen as it looks
        cheap is measured again, and what looks dear never would be.
        """
        if not self._sizes:
            return self._free + num_tokens
        size = _size(num_tokens)
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes) or self._sizes[at] != size:
            return self._between(self._sizes, size)
        measured = self._measured[size]
        if len(measured) < _FEW_MEASURED and len(self._sizes) > 1:
            others = [*self._sizes[:at], *self._sizes[at + 1 :]]
            return min(measured.median, self._between(others, size))
        return min(self._measured[other].median for other in self._sizes[at : at + 3])

    def _between(self, sizes: Sequence[int], size: int) -> float:
        """Return an estimate from the measured `sizes`, to which `size` does not belong."""
        at = bisect_left(sizes, size)
        if 0 < at < len(sizes):
            low, high = sizes[at - 1], sizes[at]
            share = (size - low) / (high - low)
            return self._measured[low].median * (1 - share) + self._measured[high].median * share
        near = sizes[min(at, len(sizes) - 1)]
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
    shortest = min(pending)
    if shortest >= longest or shortest == max(pending):
        return min(shortest, longest)
    free = FREE_TOKENS.get(device_type, OTHER_FREE_TOKENS)
    lengths = sorted(min(count, longest) for count in pending)
    best, best_rate, shorter = 1, 0.0, 0
    for index, width in enumerate(lengths):
        if width:
            fed = shorter + width * (len(lengths) - index)
            rate = fed / (free + width * len(lengths))
            if rate >= best_rate:
                best, best_rate = width, rate
        shorter += width
    return best


class DraftingCosts:
    """Seconds of a draft by its number of tokens, for all rows of a step: `first + further * (number - 1)`."""

    __slots__ = ("_measured", "_num_noted", "first", "further")

    def __init__(self) -> None:
        self.first = self.further = 0.0
        self._measured: dict[int, tuple[RunningMedian, int]] = {}  # by number of tokens, with `_num_noted` of then
        self._num_noted = 0

    def note(self, num_tokens: int, seconds: float) -> None:
        """Record a draft of 1 token or more."""
        self._num_noted += 1
        median_of, _ = self._measured.get(num_tokens, (RunningMedian(), 0))
        median_of.note(seconds)
        self._measured[num_tokens] = median_of, self._num_noted
        self._fit()

    def seconds(self, num_tokens: int) -> float:
        """Return the estimate; 0 as long as nothing was recorded, and for no token."""
        return self.first + self.further * (num_tokens - 1) if num_tokens else 0.0

    def _fit(self) -> None:
        """Fit a line to the medians by least squares, with a slope near that of a first token which costs two further ones."""
        points = [
            (count, one.median, len(one) * _FORGOTTEN ** (self._num_noted - noted))
            for count, (one, noted) in self._measured.items()
        ]
        total = sum(weight for _, _, weight in points)
        count = sum(at * weight for at, _, weight in points) / total
        seconds = sum(each * weight for _, each, weight in points) / total
        spread = sum((at - count) ** 2 * weight for at, _, weight in points) + 1.0
        slope = sum((at - count) * (each - seconds) * weight for at, each, weight in points) + seconds / (count + 1)
        self.further = min(max(slope / spread, 0.0), seconds / count)
        self.first = seconds - self.further * (count - 1)
