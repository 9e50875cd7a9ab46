"""`SearchScore`: the score that ranks hypotheses in a beam search, at every step, and rows after it: the weight when the first search began
and the log-probabilities since, divided by a power of the number of generated tokens, forced ones included (length penalty; 0: none). Kept
as terms (a start index, and log-probabilities with positions), which are not reset where text is added, and follow a row that is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SearchScore:
    """The terms of the score of a row that a search has written: its tokens from `start` on, and some other log-probabilities.

    Attributes:
        start: index of the first token that counts.
        others: (number of tokens before it, log-probability) of each term that is not a token: ends of text that were sampled,
            the weight when the search began, the total of a row that this one was joined to.
        length_penalty: of the last search; the score is divided by the number of written tokens to this power.
    """

    start: int
    others: tuple[tuple[int, float], ...] = ()
    length_penalty: float = 0.0

    def total(self, logprobs: Sequence[float]) -> float:
        """Return the sum of all terms, for a row whose tokens have these log-probabilities."""
        return sum(logprobs[self.start :]) + sum(logprob for _, logprob in self.others)

    def ranked(self, total: float, num_written: int) -> float:
        """Return the score: the sum of all terms, divided by a power of the number of tokens that generators wrote."""
        return total / float(max(num_written, 1) ** self.length_penalty) if self.length_penalty else total

    def cut(self, count: int) -> SearchScore:
        """Return the score of the first `count` tokens of the row alone."""
        others = tuple(other for other in self.others if other[0] <= count)
        return replace(self, start=min(self.start, count), others=others)

    def reopened(self, count: int) -> SearchScore:
        """Return the score of a row whose tokens after the first `count` are written anew; the other terms count as before."""
        others = tuple((min(position, count), logprob) for position, logprob in self.others)
        return replace(self, start=min(self.start, count), others=others)

    def moved(self, count: int) -> SearchScore:
        """Return the same for a row with `count` more, or fewer, tokens in front."""
        others = tuple((max(position + count, 0), logprob) for position, logprob in self.others)
        return replace(self, start=max(self.start + count, 0), others=others)

    def counting(self, position: int, logprob: float) -> SearchScore:
        """Return the score with another term, after the first `position` tokens."""
        return replace(self, others=(*self.others, (position, logprob))) if logprob else self
