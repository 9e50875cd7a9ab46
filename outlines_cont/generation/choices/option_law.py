"""`OptionLaw`: the probabilities of whole texts after one row, conditioned on the texts; `exact_choice` tells the law.

`chosen_tokens`: the tokens of a text that was chosen, each with the model's log-probability and that by the law.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from outlines_cont.errors import DeadEnd
from outlines_cont.generation.choices.spelling_tree import Path, SpellingTree
from outlines_cont.policies.constraint import EndMode


class OptionLaw:
    """The probabilities of texts after one row, by the law of this module at a temperature.

    Attributes:
        log_shares: of each text log(p), the model's own log-probability of its spelling.
        log_ends: of each text log(e).
        conditional: of each text log(P), at temperature 1 and without a prior.
        share: the sum of p e over the texts: how probable it is that the model writes one of them.
        log_probabilities: of each text the logarithm of the probability with which it is drawn.
    """

    def __init__(
        self, tree: SpellingTree, end: EndMode, temperature: float = 1.0, prior: Sequence[float] | None = None
    ) -> None:
        """Take a tree whose log-probabilities are known; `prior` are the logarithms of what each P is divided by.

        Raises:
            DeadEnd: the probability of each text is zero.
        """
        self._tree = tree
        self._paths = [tree.logprobs(i) for i in range(len(tree.spellings))]
        self.log_shares = [*map(math.fsum, self._paths)]
        if end == "eos":
            self.log_ends = [tree.end_logprob(i) for i in range(len(self._paths))]
        else:
            self.log_ends = _free_ends(tree.spellings, self._paths)
        weights = [log + end for log, end in zip(self.log_shares, self.log_ends, strict=True)]
        self.share = math.exp(log_sum(weights))
        self.conditional = normalized(weights)
        own = self.conditional if prior is None else [a - b for a, b in zip(self.conditional, prior, strict=True)]
        self.log_probabilities = normalized(own, temperature)

    def draw(self, uniform: float) -> int:
        """Return the text for a random number in [0, 1)."""
        return drawn(self.log_probabilities, uniform)

    @property
    def best(self) -> int:
        """The most probable text, the first of equal ones."""
        return max(range(len(self._paths)), key=self.log_probabilities.__getitem__)

    def is_begun(self, text: int) -> bool:
        """Return whether the spelling of a text begins that of another, so that its end is a part of the choice."""
        spelling = self._tree.spellings[text]
        return any(len(other) > len(spelling) and other[: len(spelling)] == spelling for other in self._tree.spellings)

    def tokens(self, text: int) -> list[ChosenToken]:
        """Return the tokens of a text."""
        return chosen_tokens(self._tree.spellings, text, self._paths[text], self.log_probabilities)


class ChosenToken(NamedTuple):
    """A token of a text that was chosen.

    Attributes:
        token_id: its id.
        logprob: the model's log-probability of it, given the tokens before it.
        sampling_logprob: that by the law of the choice.
        is_forced: whether no other was possible after the tokens before it.
    """

    token_id: int
    logprob: float
    sampling_logprob: float
    is_forced: bool


def chosen_tokens(
    spellings: Sequence[Path], text: int, logprobs: Sequence[float], log_probabilities: Sequence[float]
) -> list[ChosenToken]:
    """Return the tokens of one of some texts, whose own log-probabilities are `logprobs`; the others are those of the texts by the law."""
    inside, before, found = [*range(len(spellings))], 0.0, list[ChosenToken]()
    for i, (token_id, logprob) in enumerate(zip(spellings[text], logprobs, strict=True)):
        left = [j for j in inside if spellings[j][i : i + 1] == (token_id,)]
        after = before if len(left) == len(inside) else log_sum([log_probabilities[j] for j in left])
        found.append(ChosenToken(token_id, logprob, min(after - before, 0.0), len(left) == len(inside)))
        inside, before = left, after
    return found


def drawn(log_probabilities: Sequence[float], uniform: float) -> int:
    """Return the index for a random number in [0, 1)."""
    sums = [*accumulate(map(math.exp, log_probabilities))]
    # The last sum may differ a little from 1; what has probability zero is never drawn.
    return bisect_right(sums, uniform * sums[-1], hi=len(sums) - 1)


def normalized(weights: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Return the logarithms of probabilities that are proportional to exp(weight / temperature).

    Raises:
        DeadEnd: all weights are minus infinity.
    """
    high = max(weights)
    if high == -math.inf:
        raise DeadEnd(
            "expected texts of which the model may write one, got probability zero for each. The model itself masks tokens that "
            "they need: use others, or another model."
        )
    logs = [(log - high) / temperature for log in weights]
    total = log_sum(logs)
    return [log - total for log in logs]


def log_sum(logs: Sequence[float]) -> float:
    """Return log(sum of exp(log)); the number itself for one alone."""
    high = max(logs)
    return (
        high
        if len(logs) == 1 or high == -math.inf
        else high + math.log(math.fsum(math.exp(log - high) for log in logs))
    )


def _free_ends(spellings: Sequence[Path], paths: Sequence[Sequence[float]]) -> list[float]:
    """Return for each text the log-probability that the model does not go on to a longer one of the texts."""
    by_path = {spelling: text for text, spelling in enumerate(spellings)}
    longer: dict[Path, list[float]] = {}
    for spelling, logs in zip(spellings, paths, strict=True):
        # What goes on from the longest text that this one begins with.
        start = next((i for i in range(len(spelling) - 1, 0, -1) if spelling[:i] in by_path), 0)
        if start:
            longer.setdefault(spelling[:start], []).append(math.fsum(logs[start:]))
    sums = [math.fsum(map(math.exp, longer.get(spelling, ()))) for spelling in spellings]
    return [math.log1p(-total) if total < 1 else -math.inf for total in sums]
