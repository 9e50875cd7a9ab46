"""`DraftLengths`: how many tokens are drafted behind a row: as many as are all accepted with a probability of at least `least`. Where no
row has a token that probable, one is drafted in every 16th step, to measure the rate again, and in the next step after one that was
accepted. So lengths follow from what was accepted, and from no clock; they change the number of forwards, and no output.

`AcceptRate`: an acceptance rate as an exponentially weighted mean with a prior of 3 tokens and a half-life of 23, for each kind of draft
tokens; `Graded` splits a kind by how sure the drafter is. `DrafterRecord`: the rates of one drafter over all rows of a model.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

LONGEST = 16
"""The most tokens of a draft that are not forced."""
LEAST, OTHER_LEAST = {"cpu": 0.35}, 0.05
"""The least probability that all tokens of a draft are accepted, by type of device: a wider forward costs an accelerator little."""
_EVERY = 16
_PRIOR_WEIGHT, _DECAY = 3.0, 0.97  # of acceptance rates


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


class DrafterRecord:
    """What was measured of one drafter, over all rows of a model.

    Attributes:
        rates: the acceptance rates by the kind of draft tokens.
    """

    __slots__ = ("_num_skipped", "rates")

    def __init__(self) -> None:
        self.rates: dict[Hashable, AcceptRate] = {}
        self._num_skipped = 0

    def note(self, is_accepted: bool) -> None:
        """Record the result of one draft token: after one that was accepted the next try is at once."""
        if is_accepted:
            self._num_skipped = _EVERY - 1

    def is_tried(self) -> bool:
        """Whether a token is drafted in this step, although none is probable enough."""
        self._num_skipped = (self._num_skipped + 1) % _EVERY
        return self._num_skipped == 0


class DraftLengths:
    """The records of the drafters of one model, and the probability by which lengths are chosen.

    Attributes:
        least: the probability that all tokens of a draft are accepted is at least this.
    """

    def __init__(self, device_type: str) -> None:
        self.least = LEAST.get(device_type, OTHER_LEAST)
        self._records: WeakKeyDictionary[object, DrafterRecord] = WeakKeyDictionary()

    def record(self, drafter: object) -> DrafterRecord:
        """Return the record of a drafter."""
        return self._records.setdefault(drafter, DrafterRecord())


def longest_likely(share: float, least: float) -> int:
    """Return how many tokens are all accepted with probability `least`, at a rate of `share`, and at most `LONGEST`."""
    if share >= 1.0:
        return LONGEST
    return min(int(math.log(least) / math.log(share)), LONGEST) if share > 0.0 else 0
