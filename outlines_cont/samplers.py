"""Samplers: how one token is drawn for each row from its masked logits. Frozen values, vectorised over rows.

Random numbers come from outside, one float64 per row and token, so a sampler holds no state and a row's draw does not
depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from outlines_cont.errors import OptionError

# The first guess at how many of the largest probabilities `top_p` needs; eight times as many at each further try.
_TOP_P_CANDIDATES = 128


class Sampler(Protocol):
    """Draws one token per row."""

    @property
    def num_samples(self) -> int | None:
        """S, the samples per prompt; None follows the state, and is 1 for a prompt."""

    @property
    def needs_random(self) -> bool:
        """Whether a draw takes a random number."""

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token per row.

        Args:
            logits: (R, V) float32 or float64, minus infinity where a token is not allowed.
            uniforms: (R,) float64 in [0, 1) on the CPU, None for a sampler that needs none.

        Returns:
            (R,) int64 token ids, and (R,) log-probabilities of these as they were drawn. What they are for a row without
            any finite logit is not defined, but its log-probability is not finite.
        """


@dataclass(frozen=True, slots=True)
class Greedy:
    """Takes the most probable token; of equal ones that with the smallest id."""

    @property
    def num_samples(self) -> int | None:
        """None: as many as the state has."""
        return None

    @property
    def needs_random(self) -> bool:
        """False."""
        return False

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest logits' ids, and their log-probabilities under the mask at temperature 1."""
        token_ids = logits.max(dim=-1).indices
        # Not `logsumexp`, which is several times slower where most entries are minus infinity.
        return token_ids, logits.log_softmax(dim=-1).gather(-1, token_ids[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multinomial:
    """Draws from the distribution that is left after temperature, `top_k`, `top_p` and `min_p`, in this order.

    Attributes:
        samples: S, the samples per prompt.
        top_k: keep the k most probable tokens.
        top_p: then keep the fewest most probable tokens that together have at least this share of what is left.
        min_p: then keep tokens with at least this share of the most probable one's probability.
        temperature: what the logits are divided by, before everything else.

    The mask comes before all of them. Where tokens with equal probability stand on both sides of a border, all of them are
    kept, so the result does not depend on the order of the vocabulary.
    """

    samples: int = 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check("n", self.samples, _is_int(self.samples) and self.samples >= 1, "an int, 1 or more")
        k, p, m, t = self.top_k, self.top_p, self.min_p, self.temperature
        _check("top_k", k, k is None or (_is_int(k) and k >= 1), "an int, 1 or more, or None")
        _check("top_p", p, p is None or (_is_number(p) and 0 < p <= 1), "a number above 0 and at most 1, or None")
        _check("min_p", m, m is None or (_is_number(m) and 0 <= m <= 1), "a number from 0 to 1, or None")
        _check("temperature", t, _is_number(t) and 0 < t < float("inf"), "a number above 0 (for 0 use `greedy()`)")

    @property
    def num_samples(self) -> int | None:
        """S."""
        return self.samples

    @property
    def needs_random(self) -> bool:
        """True."""
        return True

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw by the inverse of the cumulative distribution, in float64 and in the order of the ids.

        Cost: a few passes over (R, V); nothing is sorted but the `top_k` or the likeliest tokens that `top_p` needs.
        """
        if uniforms is None:
            raise TypeError("expected (R,) random numbers as `uniforms`, got None")
        logprobs = self.filtered(logits).log_softmax(dim=-1)
        cumulative = _exact(logprobs).exp().cumsum(dim=-1)
        total = cumulative[:, -1:]
        uniforms = uniforms.to(cumulative.device)
        # Rounding could lift the target to the total itself, behind the last token.
        target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        token_ids = torch.searchsorted(cumulative, target, right=True).clamp_max(logits.shape[-1] - 1).to(logits.device)
        return token_ids[:, 0], logprobs.gather(-1, token_ids)[:, 0]

    def filtered(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (R, V) tempered logits with minus infinity where a token is not kept."""
        if self.temperature != 1.0:
            logits = logits / self.temperature
        floors = []
        top_k = None if self.top_k is None or self.top_k >= logits.shape[-1] else self.top_k
        if top_k is not None:
            floors.append(logits.topk(top_k, dim=-1).values[:, -1:])
        if self.top_p is not None and self.top_p < 1:
            floors.append(_top_p_floor(logits, self.top_p, floors[0] if floors else None))
        if self.min_p:
            floors.append(
                logits.amax(dim=-1, keepdim=True) + torch.tensor(self.min_p, dtype=torch.float64).log().item()
            )
        for floor in floors:
            logits = logits.masked_fill(logits < floor, -torch.inf)
        return logits


def _top_p_floor(logits: torch.Tensor, top_p: float, top_k_floor: torch.Tensor | None) -> torch.Tensor:
    """Return (R, 1): the smallest logit that `top_p` keeps, among those not below `top_k_floor`.

    Replaces the plain form: sort the whole row descending, and keep a token while the probabilities before it sum to less
    than `top_p`.
    """
    if top_k_floor is not None:
        logits = logits.masked_fill(logits < top_k_floor, -torch.inf)
    norm = logits.logsumexp(dim=-1, keepdim=True)
    vocab_size = logits.shape[-1]
    candidates = min(_TOP_P_CANDIDATES, vocab_size)
    while True:
        top = logits.topk(candidates, dim=-1).values
        probs = _exact(top - norm).exp()
        before = probs.cumsum(dim=-1) - probs
        # The last token of those listed is known to be needed or not only if something listed lies behind the border.
        if candidates == vocab_size or not bool((before[:, -1] < top_p).any()):
            kept = (before < top_p).sum(dim=-1, keepdim=True).clamp_min(1)
            return top.gather(-1, (kept - 1).to(top.device))
        candidates = min(candidates * 8, vocab_size)


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers, on the same device where that has them."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf(Multinomial):
    """Draws `samples` times and keeps the sample with the largest weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Keeps the most probable hypotheses; see `beam_search`.

    Attributes:
        beams: how many are kept.
        length_penalty: the power of the length that a weight is divided by.
    """

    beams: int
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _check("beams", self.beams, _is_int(self.beams) and self.beams >= 1, "an int, 1 or more")
        penalty = self.length_penalty
        _check("length_penalty", penalty, _is_number(penalty) and abs(penalty) <= 10, "a number from -10 to 10")

    @property
    def num_samples(self) -> int | None:
        """None: the samples of a state are the hypotheses to go on from, a prompt is one."""
        return None

    def score(self, weight: float, num_tokens: int) -> float:
        """Return what hypotheses are ranked by: the weight, divided by a power of the tokens that it counts."""
        return weight / float(max(num_tokens, 1) ** self.length_penalty)


def greedy() -> Greedy:
    """Take the most probable token at every step. Follows the number of samples of the state that it is given."""
    return Greedy()


def multinomial(
    n: int = 1,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    temperature: float = 1.0,
) -> Multinomial:
    """Draw tokens at random, `n` samples per prompt.

    Args:
        n: S, the samples per prompt.
        top_k: keep the k most probable tokens.
        top_p: then keep the fewest most probable tokens that together have at least this share of what is left.
        min_p: then keep tokens with at least this share of the most probable one's probability.
        temperature: what the logits are divided by, before everything else.

    Raises:
        OptionError: an option is out of its range.
    """
    return Multinomial(samples=n, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)


def best_of(
    n: int,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    temperature: float = 1.0,
) -> BestOf:
    """Draw `n` texts after every row and keep the one with the largest weight (the log-probability of the whole chain).

    A constrained text that was cut, and a row that failed, are kept only where there is nothing better.
    The prompt is fed once, and a state keeps its number of samples. The options are those of `multinomial`.

    Raises:
        OptionError: an option is out of its range.
    """
    return BestOf(samples=n, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)


def beam_search(beams: int, *, length_penalty: float = 0.0) -> BeamSearch:
    """Search for the most probable texts, `beams` hypotheses at a time, across all pieces of a chain.

    A hypothesis is ranked by its weight, the sum of the model's log-probabilities since the last reset, that of forced text
    and of a sampled end included. At every step the best `beams` of all ended hypotheses and all continuations are kept. The
    samples of a state are the hypotheses that the next piece goes on from, so a beam that began in one generator goes on in
    the next as one sequence. The result has as many samples as hypotheses were kept, the best first.

    Hypotheses are compared at the same step, whatever their lengths: forced text counts as soon as it is appended. Rows with
    equal tokens are one hypothesis. A constrained text that was cut ranks behind those that conform; a hypothesis that fails
    is dropped, unless its batch entry has no other. No random numbers are drawn.

    Args:
        beams: how many hypotheses are kept.
        length_penalty: divide weights by the number of tokens to this power before they are compared; 0 compares plain sums,
            1 means per token, more prefers longer texts.

    Raises:
        OptionError: an option is out of its range.
    """
    return BeamSearch(beams=beams, length_penalty=length_penalty)


def _check(option: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise OptionError(f"expected {expected} as `{option}`, got {value!r}", option)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
