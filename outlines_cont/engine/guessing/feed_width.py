"""`chunk_width`: the width of a forward: how many pending tokens of each row it takes (chunked prefill), chosen for the most tokens per
cost, padding included, by a linear cost model with fixed constants per device type.

A forward is a rectangle: as many columns as the longest chunk, for every row. Rows with fewer pending tokens pay for padding; so a long
chunk is fed in parts where many rows have a single token to feed, and at once where that costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

FREE_TOKENS = {"cpu": 24}
"""How many tokens cost as much as a forward costs without any, by type of device; measured with a model of 512 x 8 on one core."""
OTHER_FREE_TOKENS = 512
"""The same for accelerators, which are bound by reading the weights up to some hundred tokens."""


def chunk_width(pending: Sequence[int], max_tokens: int, device_type: str) -> int:
    """Return the width at which a forward feeds the most tokens for its cost.

    Args:
        pending: how many tokens each row has to feed; at least one has some.
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
