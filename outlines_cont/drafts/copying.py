"""`CopyTrail`: follows a row while it copies from its prompt; `CopyHabits`: counts, for all rows of a model, which tokens end copies in
place of which ones (an LRU table of 4096 keys with decaying counts), so that lookup drafts can continue beyond the end of a copy.

A JSON record copies values out of a message. Where a copy ends, the message continues with a comma, say, and the record with the
quotation mark that closes the value; and the next value often begins right behind the comma.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_KEYS, _MOST_CLOSING = 4096, 4
# A replacement is predicted if it was seen so often, and in such a share of the cases.
_TIMES, _SHARE_OF_PAIR, _SHARE_OF_TOKEN = 2, 0.5, 0.7
# Counts are halved when they reach this sum, so that recent ones count more.
_FORGET = 64


class CopyHabits:
    """Counts of the tokens that end copies, by the tokens that would have continued them; for all rows of a model."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[int, ...], Counter[int]] = OrderedDict()  # generated tokens by those to be copied
        self._closing: Counter[int] = Counter()

    def note(self, before: int, token_id: int, generated: int) -> None:
        """Record that `generated` followed `before` in a copy of `before`, `token_id`; the copy continues if both are equal."""
        for key in ((before, token_id), (token_id,)):
            counts = self._ends.setdefault(key, Counter())
            self._ends.move_to_end(key)
            counts[generated] += 1
            _halve(counts)
        if generated != token_id:
            self._closing[generated] += 1
            _halve(self._closing)
        while len(self._ends) > _MOST_KEYS:
            self._ends.popitem(last=False)

    def instead(self, before: int, token_id: int) -> int | None:
        """Return the token that probably replaces `token_id` in a copy after `before`; None if the copy probably continues."""
        for key, least in (((before, token_id), _SHARE_OF_PAIR), ((token_id,), _SHARE_OF_TOKEN)):
            counts = self._ends.get(key)
            if counts and counts.total() >= _TIMES:
                generated, times = counts.most_common(1)[0]
                if times > least * counts.total():
                    return generated if generated != token_id else None
        return None

    def closing(self) -> list[int]:
        """Return the tokens that end copies, the most frequent first."""
        return [token_id for token_id, _ in self._closing.most_common(_MOST_CLOSING)]


def _halve(counts: Counter[int]) -> None:
    if counts.total() > _FORGET:
        for key in [*counts]:
            counts[key] //= 2
            if not counts[key]:
                del counts[key]


@dataclass(slots=True)
class CopyTrail:
    """The copy from its prompt that a row is in, and the end of its last one.

    Attributes:
        at: the length of the row up to which the copy was followed; None outside of a copy.
        source: the index of the token that continues it.
        stopped: the index of the token at which the last copy ended; None before the first.
    """

    at: int | None = None
    source: int = 0
    stopped: int | None = None

    def begin(self, at: int, source: int) -> None:
        """Note that a row of `at` tokens may continue with a copy from index `source`."""
        self.at, self.source = at, source

    def cut(self, length: int) -> None:
        """Note that the row was rewound to its first `length` tokens."""
        if self.at is not None and self.at > length:
            self.at = None

    def follow(self, token_ids: Sequence[int], habits: CopyHabits) -> None:
        """Follow the new tokens of the row, and record each in `habits`."""
        while self.at is not None and self.at < len(token_ids):
            expected, generated = token_ids[self.source], token_ids[self.at]
            habits.note(token_ids[self.source - 1], expected, generated)
            if expected != generated:
                self.at, self.stopped = None, self.source
            else:
                self.begin(self.at + 1, self.source + 1)
