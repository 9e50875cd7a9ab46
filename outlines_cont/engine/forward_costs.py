"""`ForwardCosts`: how long a forward of so many tokens takes, as it was measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from statistics import median

from outlines_cont.engine.width import FREE_TOKENS, OTHER_FREE_TOKENS

_NUM_KEPT = 9
_EXACT = 16
_GROWTH = 1.15
_MAX_TOKENS = 2048


class ForwardCosts:
    """Seconds by number of tokens, padding included: the median of the last few measurements of about that size.

    Args:
        device_type: as `torch.device.type`; it says what is expected where nothing was measured.
    """

    def __init__(self, device_type: str) -> None:
        self._free = FREE_TOKENS.get(device_type, OTHER_FREE_TOKENS)
        self._measured: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []

    def note(self, num_tokens: int, seconds: float) -> None:
        """Take note of one forward; long ones, such as those of prompts, are of no interest."""
        if not 0 < num_tokens <= _MAX_TOKENS:
            return
        size = _size(num_tokens)
        if size not in self._measured:
            self._measured[size] = deque(maxlen=_NUM_KEPT)
            self._sizes = sorted(self._measured)
        self._measured[size].append(seconds)
        self._medians[size] = median(self._measured[size])

    def num_measured(self, num_tokens: int) -> int:
        """Return how many measurements there are of about that size."""
        return len(self._measured.get(_size(num_tokens), ()))

    def seconds(self, num_tokens: int) -> float:
        """Return what a forward is expected to take; between sizes that were measured on a straight line, 1.0 where none was."""
        size = _size(num_tokens)
        if size in self._medians:
            return self._medians[size]
        if not self._sizes:
            return self._free + size
        at = bisect_left(self._sizes, size)
        if 0 < at < len(self._sizes):
            low, high = self._sizes[at - 1], self._sizes[at]
            share = (size - low) / (high - low)
            return self._medians[low] * (1 - share) + self._medians[high] * share
        near = self._sizes[min(at, len(self._sizes) - 1)]
        return self._medians[near] * (self._free + size) / (self._free + near)


def _size(num_tokens: int) -> int:
    """Return the size under which a number of tokens is measured: itself up to 16, beyond that steps of 15 percent."""
    if num_tokens <= _EXACT:
        return num_tokens
    return round(_EXACT * _GROWTH ** round(math.log(num_tokens / _EXACT, _GROWTH)))
