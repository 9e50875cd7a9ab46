"""`AcceptRate`: the acceptance rate of one kind of draft tokens, as an exponentially weighted mean with a prior of 3 guesses and a
half-life of 14. `Graded`: a kind split by how sure the drafter is.
"""

from __future__ import annotations

from dataclasses import dataclass

_PRIOR_WEIGHT = 3.0
_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class Graded:
    """A kind of draft tokens, of which the drafter is about equally sure."""

    kind: str  # all guesses that are made alike
    grade: int  # how sure it is


class AcceptRate:
    """A mean that forgets: what is 14 guesses old counts half. `share` is the estimate, between 0 and 1."""

    __slots__ = ("_num_right", "_num_tried", "share")

    def __init__(self, expected: float) -> None:
        """Begin with a share that is expected, which counts as 3 guesses."""
        self.share = expected
        self._num_tried, self._num_right = _PRIOR_WEIGHT, _PRIOR_WEIGHT * expected

    def note(self, is_right: bool) -> None:
        """Take note of one guess."""
        self._num_tried = self._num_tried * _MEMORY + 1
        self._num_right = self._num_right * _MEMORY + is_right
        self.share = self._num_right / self._num_tried
