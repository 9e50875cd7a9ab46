"""`answer_curve`: how many of the answered values are right, by how many are answered, if the least certain ones are withheld (the
risk-coverage curve of selective prediction; El-Yaniv and Wiener 2010).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class CurvePoint(NamedTuple):
    """What follows if all values with at least a confidence are answered.

    Attributes:
        confidence: the least confidence of an answered value.
        answered: how many values are answered.
        right: how many of these are right.
    """

    confidence: float
    answered: int
    right: int


def answer_curve(values: Iterable[tuple[float, bool, int]]) -> list[CurvePoint]:
    """Return a point for each confidence, the largest first, from the confidence of values, whether they are right, and their number."""
    counts: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for confidence, is_right, count in values:
        counts[confidence][0] += count
        counts[confidence][1] += is_right * count
    found, answered, right = list[CurvePoint](), 0, 0
    for confidence in sorted(counts, reverse=True):
        answered, right = answered + counts[confidence][0], right + counts[confidence][1]
        found.append(CurvePoint(confidence, answered, right))
    return found
