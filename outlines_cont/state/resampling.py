"""`systematic`: systematic resampling (Carpenter, Clifford and Fearnhead 1999): n draws of indices by weights with one random number.

An index with the share w of all weight is drawn floor(n w) or ceil(n w) times, n w on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from outlines_cont.errors import OptionError


def systematic(log_weights: Sequence[float], count: int, uniform: float) -> list[int]:
    """Return `count` indices, ascending, for a random number in [0, 1); one whose weight is minus infinity is never drawn.

    At least one weight is finite, and none is NaN or plus infinity.
    """
    high = max(log_weights)
    weights = [math.exp(log - high) for log in log_weights]
    last = max(index for index, weight in enumerate(weights) if weight)
    step, found, index, reached = math.fsum(weights) / count, list[int](), 0, weights[0]
    for number in range(count):
        while reached <= (number + uniform) * step and index < last:
            index += 1
            reached += weights[index]
        found.append(index)
    return found


def checked_weights(given: Any, shape: tuple[int, int]) -> list[list[float]]:
    """Return weights as `[batch][sample]` lists; of a single batch entry they may be a flat list. Raise `OptionError` for others."""
    rows = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(rows, Sequence) and shape[0] == 1 and not any(isinstance(row, Sequence) for row in rows):
        rows = [rows]
    try:
        found = [[float(weight) for weight in row] for row in rows]
    except (TypeError, ValueError):
        found = []
    if [*map(len, found)] != [shape[1]] * shape[0] or not shape[1]:
        raise OptionError(
            f"expected a weight for each of the {shape[0]} x {shape[1]} rows as `log_weights`, such as a (B, S) tensor, got {given!r}",
            "log_weights",
        )
    if any(math.isnan(weight) or weight == math.inf for row in found for weight in row):
        raise OptionError(f"expected logarithms of weights, finite or minus infinity, got {given!r}", "log_weights")
    return found
