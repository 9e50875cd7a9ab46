"""`ExactChoice`: one of some texts, chosen as a whole by the model's own law, conditioned on the texts.

A mask is myopic: token by token it renormalises over what some text allows, whatever follows, so texts whose first tokens are common are
drawn too often. Here all texts are scored before one is chosen. Of a text o, p(o) is the product of the probabilities of the tokens by
which the tokenizer continues the row with it, and e(o) the probability of the end that the texts allow: with `end="eos"` that the model
ends its text after o, with `end="free"` that it does not go on to a longer one of the texts (1 where none begins with o). Then

    P(o) = p(o) e(o) / sum of p(x) e(x) over all texts x

is the distribution of what the model writes, given that it writes one of them. At a temperature t it is that of (p e) ** (1 / t).

`OptionLaw`: these probabilities after one row.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from outlines_cont.errors import DeadEnd, OptionError
from outlines_cont.generation.options import Options
from outlines_cont.generation.spelling_tree import Path, SpellingTree
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.constraint import EndMode
from outlines_cont.samplers import Greedy, Multinomial
from outlines_cont.sampling.params import NO_PENALTIES
from outlines_cont.sampling.truncation import Temperature
from outlines_cont.state.row import StateRow

MAX_OPTIONS = 128
"""The most texts that are chosen from in this way by default."""
MAX_CHARACTERS = 4_096
"""The most characters that they may have together by default."""


@dataclass(frozen=True, slots=True)
class ExactChoice:
    """Texts to choose from.

    Attributes:
        options: the texts, each once.
        end: how they end; see the top of this module.
        is_exact: whether one is chosen by the law of this module; None for where that is possible, and the texts are not too many.
    """

    options: tuple[str, ...]
    end: EndMode
    is_exact: bool | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the law of this module is to be used where nothing prevents it."""
        if self.is_exact is not None:
            return self.is_exact
        is_small = len(self.options) <= MAX_OPTIONS and sum(map(len, self.options)) <= MAX_CHARACTERS
        return is_small and "" not in self.options

    @property
    def has_nested(self) -> bool:
        """Whether one of the texts begins another. Cost: a sort."""
        ordered = sorted(self.options)
        return any(after.startswith(before) for before, after in pairwise(ordered))

    def is_used(self, sampler: object, options: Options, *, has_policies: bool) -> bool:
        """Return whether a call chooses by the law of this module: where nothing acts on single tokens.

        Args:
            sampler: how it draws.
            options: those of the call.
            has_policies: whether the generator has some of its own.

        Raises:
            OptionError: something does, and `is_exact` is True.
        """
        if len(self.options) == 1:  # one text is written without a choice
            return False
        is_required = self.is_exact or options.against is not None
        if not self.is_wanted and not (is_required and self.is_exact is None):
            if options.against is not None:
                raise _refused("exact=False", "against=...", "It draws token by token.")
            return False
        name = "policies" if has_policies else next((name for name in _TOKENWISE if getattr(options, name)), None)
        if name is None and temperature_of(sampler) is None:
            name = "sampler"
        if name is not None and is_required:
            raise _refused(name, "exact=True" if self.is_exact else "against=...", _INSTEAD.get(name, _CHANGES))
        return name is None

    def tree(self, model: LanguageModel, row: StateRow, *, ends: bool = False) -> SpellingTree | None:
        """Return the spellings of the texts after a row; None where the tokenizer cannot spell one of them there.

        With `ends`, the ends of text after them are in the tree, too, also if they are no part of an option.
        """
        table = model.tokenizer.token_bytes
        spellings: list[Path] = []
        for option in self.options:
            data = option.encode()
            ids = tuple(encode_bytes_inside(model.tokenizer, data, row.token_ids))
            if not ids or b"".join(table[token_id] or b"" for token_id in ids) != data:
                return None
            spellings.append(ids)
        return SpellingTree(row, spellings, sorted(model.eos_token_ids) if ends or self.end == "eos" else ())


# The options of a call that change single tokens.
_TOKENWISE = ("policies", "stop_at", "min_tokens", "stop_token_ids", "heal", "is_guided")
_INSTEAD = {
    "sampler": "Use `samplers.greedy()`, or `samplers.multinomial(n, temperature=...)`: other options of samplers change single tokens.",
}
_CHANGES = "It changes single tokens, or decides about them."


def _refused(name: str, beside: str, advice: str) -> OptionError:
    shown = {"is_guided": "guidance"}.get(name, name)
    return OptionError(
        f"expected no such `{shown}` for a choice with `{beside}`, which is made of whole texts. {advice} Or leave out "
        f"`{beside.split('=')[0]}`: then the texts are drawn token by token.",
        shown.split("=")[0],
    )


def temperature_of(sampler: object) -> float | None:
    """Return the temperature of a sampler, 0 for greedy, if that is all that it changes; else None."""
    if type(sampler) is Greedy:
        return 0.0 if sampler.penalties == NO_PENALTIES else None
    if type(sampler) is not Multinomial or sampler.penalties != NO_PENALTIES:
        return None
    if not sampler.warpers:
        return 1.0
    first = sampler.warpers[0]
    return float(first.t) if len(sampler.warpers) == 1 and type(first) is Temperature else None


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
        self.conditional = _normalised(weights, 1.0)
        own = self.conditional if prior is None else [a - b for a, b in zip(self.conditional, prior, strict=True)]
        self.log_probabilities = _normalised(own, temperature)
        self._sums = [*accumulate(map(math.exp, self.log_probabilities))]

    def draw(self, uniform: float) -> int:
        """Return the text for a random number in [0, 1)."""
        # The last sum may differ a little from 1; a text of probability zero is never drawn.
        return bisect_right(self._sums, uniform * self._sums[-1], hi=len(self._sums) - 1)

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
        logs, spellings = self.log_probabilities, self._tree.spellings
        inside, before, found = [*range(len(logs))], 0.0, list[ChosenToken]()
        for i, (token_id, logprob) in enumerate(zip(spellings[text], self._paths[text], strict=True)):
            left = [j for j in inside if spellings[j][i : i + 1] == (token_id,)]
            after = before if len(left) == len(inside) else log_sum([logs[j] for j in left])
            found.append(ChosenToken(token_id, logprob, min(after - before, 0.0), len(left) == len(inside)))
            inside, before = left, after
        return found


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


def _normalised(weights: Sequence[float], temperature: float) -> list[float]:
    """Return the logarithms of probabilities that are proportional to exp(weight / temperature)."""
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
