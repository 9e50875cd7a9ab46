"""Samplers: how one token is chosen for each row from its masked logits. Frozen values; `sampling` does the work.

Random numbers come from outside, one float64 per row and token, and so do the counts of tokens that penalties need. So a
sampler holds no state and a row's draw does not depend on its neighbours. The order of the steps is `sampling.STEPS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outlines_cont.sampling import Law, Penalties, SamplerBatch, TokenCounts
from outlines_cont.sampling.check import check, is_int, is_number
from outlines_cont.sampling.cut import Cut
from outlines_cont.sampling.penalties import NO_PENALTIES


class Sampler(Protocol):
    """Draws one token per row."""

    @property
    def num_samples(self) -> int | None:
        """S, the samples per prompt; None follows the state, and is 1 for a prompt."""

    @property
    def law(self) -> Law:
        """What each token is chosen by; so rows with different samplers are drawn together."""

    @property
    def needs_random(self) -> bool:
        """Whether a draw takes a random number."""

    @property
    def needs_counts(self) -> bool:
        """Whether a draw depends on how often each token stands in the row."""

    def sample(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor | None,
        counts: Sequence[TokenCounts | None] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token per row.

        Args:
            logits: (R, V) float32 or float64, minus infinity where a token is not allowed; not changed.
            uniforms: (R,) float64 in [0, 1) on the CPU, None for a sampler that needs none.
            counts: what each row holds, None for a sampler that needs none.

        Returns:
            (R,) int64 token ids, and (R,) log-probabilities of these as they were drawn. What they are for a row without
            any finite logit is not defined, but its log-probability is not finite.
        """


class _ByLaw(ABC):
    """What samplers have in common that choose token by token."""

    __slots__ = ()

    @property
    @abstractmethod
    def law(self) -> Law:
        """What each token is chosen by."""

    @property
    def needs_random(self) -> bool:
        """Whether a draw takes a random number."""
        return not self.law.is_greedy

    @property
    def needs_counts(self) -> bool:
        """Whether a penalty depends on how often each token stands in the row."""
        return self.law.penalties.needs_counts

    def sample(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor | None,
        counts: Sequence[TokenCounts | None] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose one token per row, all rows by this sampler; see `SamplerBatch.sample`."""
        return SamplerBatch([self.law] * len(logits)).sample(logits, uniforms, counts)

    def __str__(self) -> str:
        """The steps in their order, such as `mask > temperature 0.7 > top_k 50 > draw`."""
        return self.law.steps()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Greedy(_ByLaw):
    """Takes the most probable token; of equal ones that with the smallest id.

    Attributes:
        penalties: what changes single logits before.
    """

    penalties: Penalties = NO_PENALTIES

    @property
    def num_samples(self) -> int | None:
        """None: as many as the state has."""
        return None

    @property
    def law(self) -> Law:
        """What each token is chosen by."""
        return Law(is_greedy=True, penalties=self.penalties)

    def __repr__(self) -> str:
        return _call("greedy", None, self.law)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Multinomial(_ByLaw):
    """Draws from the distribution that is left after penalties, temperature, `top_k`, `top_p` and `min_p`, in this order.

    Attributes:
        samples: S, the samples per prompt.
        top_k: keep the k most probable tokens.
        top_p: then keep the fewest most probable tokens that together have at least this share of what is left.
        min_p: then keep tokens with at least this share of the most probable one's probability.
        temperature: what the logits are divided by, before anything is left out.
        penalties: what changes single logits before.

    The mask comes before all of them. Where tokens with equal probability stand on both sides of a border, all of them are
    kept, so the result does not depend on the order of the vocabulary.
    """

    samples: int = 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    temperature: float = 1.0
    penalties: Penalties = NO_PENALTIES

    def __post_init__(self) -> None:
        check("n", self.samples, is_int(self.samples) and self.samples >= 1, "an int, 1 or more")
        k, p, m, t = self.top_k, self.top_p, self.min_p, self.temperature
        check("top_k", k, k is None or (is_int(k) and k >= 1), "an int, 1 or more, or None")
        check("top_p", p, p is None or (is_number(p) and 0 < p <= 1), "a number above 0 and at most 1, or None")
        check("min_p", m, m is None or (is_number(m) and 0 <= m <= 1), "a number from 0 to 1, or None")
        check("temperature", t, is_number(t) and 1e-30 < t < 1e30, "a number above 0 (for 0 use `greedy()`)")

    @property
    def num_samples(self) -> int | None:
        """S."""
        return self.samples

    @property
    def law(self) -> Law:
        """What each token is chosen by."""
        return Law(
            is_greedy=False,
            penalties=self.penalties,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )

    def filtered(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (R, V) logits of the distribution that is left of (R, V) ones; the penalties are left out.

        They are minus infinity where a token is not kept, and may be shifted, by one number for each row.

        Cost: some passes over whole rows; `sample` does without most of them.
        """
        return Cut.of([self.law] * len(logits)).kept(logits)

    def __repr__(self) -> str:
        return _call("multinomial", self.samples, self.law)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BestOf(Multinomial):
    """Draws `samples` times and keeps the sample with the largest score."""

    def __repr__(self) -> str:
        return _call("best_of", self.samples, self.law)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Keeps the most probable hypotheses; see `beam_search`.

    Attributes:
        beams: how many are kept.
        length_penalty: the power of the number of written tokens that a score is divided by.
    """

    beams: int
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        check("beams", self.beams, is_int(self.beams) and self.beams >= 1, "an int, 1 or more")
        penalty = self.length_penalty
        check("length_penalty", penalty, is_number(penalty) and abs(penalty) <= 10, "a number from -10 to 10")

    @property
    def num_samples(self) -> int | None:
        """None: the samples of a state are the hypotheses to go on from, a prompt is one."""
        return None


def at_temperature(sampler: Sampler, temperature: float | None) -> Sampler:
    """Return a sampler that is like another but for its temperature: 0 takes the most probable token, None leaves it."""
    if temperature is None:
        return sampler
    law = sampler.law
    if temperature == 0:
        return Greedy(penalties=law.penalties)
    return Multinomial(
        top_k=law.top_k, top_p=law.top_p, min_p=law.min_p, temperature=temperature, penalties=law.penalties
    )


def greedy(
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Greedy:
    """Take the most probable token at every step. Follows the number of samples of the state that it is given.

    The options are those of `multinomial`.

    Raises:
        OptionError: an option is out of its range.
    """
    return Greedy(penalties=Penalties.of(logit_bias, repetition_penalty, frequency_penalty, presence_penalty))


def multinomial(
    n: int = 1,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    temperature: float = 1.0,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Multinomial:
    """Draw tokens at random, `n` samples per prompt.

    The options apply in the order of `sampling.STEPS`, whatever the order of the arguments; `str(sampler)` shows it.

    Args:
        n: S, the samples per prompt.
        top_k: keep the k most probable tokens.
        top_p: then keep the fewest most probable tokens that together have at least this share of what is left.
        min_p: then keep tokens with at least this share of the most probable one's probability.
        temperature: what the logits are divided by, before anything is left out.
        logit_bias: what is added to the logits of tokens, by their ids.
        repetition_penalty: what positive logits of tokens that stand in the row, prompt included, are divided by, and negative
            ones multiplied with; above 1 repeats less.
        frequency_penalty: what is subtracted as many times as a token was generated.
        presence_penalty: what is subtracted once from tokens that were generated.

    Raises:
        OptionError: an option is out of its range.
    """
    penalties = Penalties.of(logit_bias, repetition_penalty, frequency_penalty, presence_penalty)
    return Multinomial(samples=n, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, penalties=penalties)


def best_of(
    n: int,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    temperature: float = 1.0,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> BestOf:
    """Draw `n` texts after every row and keep the one with the largest score (the log-probability of the whole chain).

    A constrained text that was cut, and a row that failed, are kept only where there is nothing better.
    The prompt is fed once, and a state keeps its number of samples. The options are those of `multinomial`.

    Raises:
        OptionError: an option is out of its range.
    """
    penalties = Penalties.of(logit_bias, repetition_penalty, frequency_penalty, presence_penalty)
    return BestOf(samples=n, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, penalties=penalties)


def beam_search(beams: int, *, length_penalty: float = 0.0) -> BeamSearch:
    """Search for the most probable texts, `beams` hypotheses at a time, across all pieces of a chain.

    A hypothesis is ranked by its score (`state.scores`): the sum of the model's log-probabilities of all that generators have written
    in the row since the search began, forced text and sampled ends included. The score begins with the weight that the row has then.
    Text that is added between two pieces, by `+` or `append`, leaves it as it is. At every step the best `beams` of all ended
    hypotheses and all continuations are kept. The samples of a state are the hypotheses that the next piece goes on from, so a beam
    that began in one generator goes on in the next as one sequence. The result has as many samples as hypotheses were kept, the best
    first; `best` and `sort` rank by the score, too.

    Hypotheses are compared at the same step, whatever their lengths: forced text counts as soon as it is appended. Hypotheses with
    one text are one: of its spellings by different tokens the most probable is kept, with its own probability. So there may be
    fewer hypotheses than beams. A constrained text that was cut ranks behind those that conform; a hypothesis that fails is dropped,
    unless its batch entry has no other. No random numbers are drawn.

    Args:
        beams: how many hypotheses are kept.
        length_penalty: divide scores by the number of tokens that generators have written to this power before they are compared;
            0 compares plain sums, 1 means per token, more prefers longer texts.

    Raises:
        OptionError: an option is out of its range.
    """
    return BeamSearch(beams=beams, length_penalty=length_penalty)


def _call(name: str, num: int | None, law: Law) -> str:
    """Return a sampler as the call that makes it, its options in the order of their steps."""
    first = [] if num is None or (num == 1 and name == "multinomial") else [repr(num)]
    return f"{name}({', '.join(first + [f'{option}={value!r}' for option, value in law.options()])})"
