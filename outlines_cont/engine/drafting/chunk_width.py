"""`chunk_width`: how many pending tokens of each row a forward takes (chunked prefill): as many as give the most tokens for their cost,
padding included, by constants for each type of device.
"""

from __future__ import annotations

from collections.abc import Sequence

FREE_TOKENS = {"cpu": 24}
"""The fixed cost of a forward in tokens, by type of device; measured with a model of 512 x 8 on one core."""
OTHER_FREE_TOKENS = 512
"""The same for accelerators, whose time is that of reading the weights up to some hundred tokens."""


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
