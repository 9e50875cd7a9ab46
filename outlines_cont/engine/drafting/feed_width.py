"""`chunk_width`: the width of a forward: how many pending tokens of each row it takes (chunked prefill), chosen for the most tokens per
cost, padding included, by a linear cost model with fixed constants per device type.

A forward has as many columns as the longest chunk, for every row; rows with fewer pending tokens are padded. So a long chunk is fed in
parts if many rows have a single token to feed, and as a whole if that costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

FREE_TOKENS = {"cpu": 24}
"""The fixed cost of a forward in tokens, by type of device; measured with a model of 512 x 8 on one core."""
OTHER_FREE_TOKENS = 512
"""The same for accelerators, whose time is that of reading the weights up to some hundred tokens."""


def chunk_width(pending: Sequence[int], max_tokens: int, device_type: str) -> int:
    """Return the width at which a forward feeds the most tokens for its cost.

    Args:
        pending: the number of tokens to feed of each row; not all are 0.
        max_tokens: the most tokens of a forward, padding included.
        device_type: as `torch.device.type`.
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
