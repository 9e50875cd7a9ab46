"""`ForwardCosts`: a measured cost model of forwards: seconds by number of tokens, as the median of the last 9 measurements of about that
size, linearly interpolated, and extrapolated by constants per device type. Forwards of more than 2048 tokens are not recorded.
`RunningMedian`: the median of the last few measurements. `chunk_width`: how many pending tokens of each row a forward takes (chunked
prefill): as many as give the most tokens for their cost, padding included, by those constants.
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
