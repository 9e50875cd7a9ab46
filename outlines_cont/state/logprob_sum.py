"""`LogprobSum`: which log-probabilities of a row count in its weight, or in the score that ranks it: those of its tokens outside of some
spans, of ends of text that were drawn, and, in the score alone, of tokens that were drawn and are no longer among the ids. All of them have
positions, so the sum follows a row that is cut, joined or respelled. A beam search divides the score by a power of the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

# The kinds that count as tokens in a length penalty: generated and forced.
_WRITTEN = b"gf"


@dataclass(frozen=True, slots=True)
class LogprobSum:
    """The terms of a sum over a row; a position is the number of tokens before it.

    Attributes:
        skipped: spans (first position, last position) of tokens that do not count, such as those before a reset, ascending.
        ends: (position, log-probability) of each end of text that was drawn.
        cuts: (position, log-probability, number of tokens) of what was drawn and then cut, by a stop text or by healing.
        length_penalty: the score is divided by the number of written tokens to this power.
    """

    skipped: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, float], ...] = ()
    cuts: tuple[tuple[int, float, int], ...] = ()
    length_penalty: float = 0.0

    def weight(self, logprobs: Sequence[float]) -> float:
        """Return the sum over the tokens and ends of a row with these log-probabilities."""
        return sum(sum(logprobs[part]) for part in self._counted()) + sum(logprob for _, logprob in self.ends)

    def total(self, logprobs: Sequence[float]) -> float:
        """Return the sum over tokens, ends and cuts."""
        return self.weight(logprobs) + sum(logprob for _, logprob, _ in self.cuts)

    def num_written(self, kinds: bytes | bytearray) -> int:
        """Return how many of the tokens that count were written by generators, cut ones included."""
        return sum(kinds[part].count(kind) for part in self._counted() for kind in _WRITTEN) + sum(
            count for _, _, count in self.cuts
        )

    def ranked(self, total: float, num_written: int) -> float:
        """Return the score: the total, divided by a power of the number of tokens that generators wrote."""
        return total / float(max(num_written, 1) ** self.length_penalty) if self.length_penalty else total

    def mapped(self, moved: Callable[[int], int]) -> LogprobSum:
        """Return the sum with other positions, by a function that never decreases."""
        spans = ((moved(start), moved(stop)) for start, stop in self.skipped)
        return replace(
            self,
            skipped=tuple((start, stop) for start, stop in spans if start < stop),
            ends=tuple((moved(position), logprob) for position, logprob in self.ends),
            cuts=tuple((moved(position), logprob, count) for position, logprob, count in self.cuts),
        )

    def reopened(self, count: int) -> LogprobSum:
        """Return the sum for a row whose tokens after the first `count` are written anew; its other terms are kept."""
        return self.mapped(lambda position: min(position, count))

    def cut(self, count: int) -> LogprobSum:
        """Return the sum over the first `count` tokens, with what was drawn up to there."""
        ends = tuple(end for end in self.ends if end[0] <= count)
        return replace(self.reopened(count), ends=ends, cuts=tuple(one for one in self.cuts if one[0] <= count))

    def joined(self, other: LogprobSum) -> LogprobSum:
        """Return the terms of both, with the length penalty of this one; the spans of `other` are behind those of this one."""
        return self.adding(other.ends, other.cuts, other.skipped)

    def adding(
        self,
        ends: tuple[tuple[int, float], ...] = (),
        cuts: tuple[tuple[int, float, int], ...] = (),
        skipped: tuple[tuple[int, int], ...] = (),
    ) -> LogprobSum:
        """Return the sum with further terms."""
        return replace(self, skipped=self.skipped + skipped, ends=self.ends + ends, cuts=self.cuts + cuts)

    def _counted(self) -> Iterator[slice]:
        """Yield the spans that count, between those that are skipped."""
        stops = (*(start for start, _ in self.skipped), None)
        for start, stop in zip((0, *(stop for _, stop in self.skipped)), stops, strict=True):
            yield slice(start, stop)


NOTHING_SKIPPED = LogprobSum()
