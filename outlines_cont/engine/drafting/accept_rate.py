"""`AcceptRate`: the acceptance rate of one kind of draft tokens, as an exponentially weighted mean with a prior of 3 tokens and a
half-life of 14. `Graded`: a kind split by how sure the drafter is.
"""

from __future__ import annotations

from dataclasses import dataclass

_PRIOR_WEIGHT = 3.0
_DECAY = 0.95


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
