"""`Sampler`: the protocol of samplers, which draw a token per row of logits: the three properties and the method that a user's own class
needs. The samplers of the package are in `outlines_cont.samplers`.

`SamplingParams`: the sampling parameters of one row as an immutable value: greedy or not, `Penalties`, and warpers in their order.
`STEPS`: the names of all standard steps in the order in which they apply. `penalised` applies logit bias and the repetition, frequency and
presence penalties of all rows of a batch, on the distinct tokens of each row only (gather, change, scatter).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch

from outlines_cont.checks import check, is_int, is_number
from outlines_cont.errors import OptionError
from outlines_cont.sampling.kernels import TokenCounts, counts_of_row
from outlines_cont.sampling.warper import Warper


class Sampler(Protocol):
    """Protocol of samplers, which draw one token per row; a class with these three properties and this method is a sampler.

    If a policy or a script sets the temperature, it also needs the method `with_temperature(temperature)`.
    """

    @property
    def num_samples(self) -> int | None:
        """S, the samples per prompt; None for the number of samples of the state, which is 1 for a prompt."""

    @property
    def needs_random(self) -> bool:
        """Whether a draw takes a random number."""

    @property
    def needs_counts(self) -> bool:
        """Whether a draw depends on the tokens of the row."""

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
            counts: the token counts of each row, None for a sampler that needs none.

        Returns:
            (R,) int64 token ids, and (R,) their log-probabilities in the distribution that they were drawn from. For a row without
            any finite logit they are undefined, but the log-probability is not finite.
        """


def at_temperature(sampler: Sampler, temperature: float) -> Sampler:
    """Return `sampler.with_temperature(temperature)`; raise `OptionError` if a sampler of the user lacks that method."""
    if not hasattr(sampler, "with_temperature"):
        raise no_temperature(sampler, temperature)
    changed: Sampler = sampler.with_temperature(temperature)
    return changed


def no_temperature(sampler: object, temperature: float) -> OptionError:
    """Return the error of a sampler whose temperature cannot be set."""
    return OptionError(
        f"expected a sampler with a method `with_temperature`, since a branch sets the temperature to {temperature!r}, got "
        f"{sampler!r}. Let the method return a sampler with that temperature.",
        "temperature",
    )


STEPS = (
    "mask",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_a",
    "mirostat",
    "xtc",
)
"""Every step in the order in which it applies; `warpers=` replaces those from `dry` on. Then a token is drawn, or the most probable one
taken."""

# Far beyond what changes a text, far below what float32 cannot hold.
_LARGEST_STEP = 10_000
_LARGEST_FACTOR = 1_000


def _is_step(value: object) -> bool:
    return is_number(value) and -_LARGEST_STEP <= value <= _LARGEST_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Logit bias and penalties of one row, applied in the order of the attributes.

    Attributes:
        logit_bias: (token id, number) pairs by ascending id; the number is added to the token's logit.
        repetition: logits of tokens that occur in the row, prompt included, are divided by it if positive, multiplied
            if negative. As in CTRL (Keskar et al. 2019, arXiv:1909.05858) and transformers.
        frequency: is subtracted once for every time that the token was generated. As in OpenAI's API.
        presence: is subtracted once if the token was generated at all. As in OpenAI's API.

    Generated tokens are those that generators wrote in this row, forced ones included; not those of the prompt, nor of text that
    was appended or encoded again.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    def __post_init__(self) -> None:
        factor, most = self.repetition, _LARGEST_FACTOR
        holds = is_number(factor) and 1 / most <= factor <= most
        check("repetition_penalty", factor, holds, f"a number from {1 / most} to {most}; 1 changes nothing")
        step = f"a number from -{_LARGEST_STEP} to {_LARGEST_STEP}"
        for option, value in (("frequency_penalty", self.frequency), ("presence_penalty", self.presence)):
            check(option, value, _is_step(value), step)
        for token_id, bias in self.logit_bias:
            check("logit_bias", token_id, is_int(token_id, 0), "token ids, ints of 0 or more,")
            advice = "" if _is_step(bias) else " (to exclude a token, -100 is as good as minus infinity)"
            check("logit_bias", bias, _is_step(bias), f"{step} for token {token_id}{advice}")

    @classmethod
    def of(
        cls, logit_bias: Mapping[int, float] | None, repetition: float, frequency: float, presence: float
    ) -> Penalties:
        """Return the value of the options that samplers have.

        Raises:
            OptionError: an option is out of its range, or NaN.
        """
        holds = logit_bias is None or isinstance(logit_bias, Mapping)
        check("logit_bias", logit_bias, holds, "a mapping from token ids to numbers, or None")
        pairs = tuple((logit_bias or {}).items())
        cls(logit_bias=pairs)  # checks the ids before they are compared
        return cls(logit_bias=tuple(sorted(pairs)), repetition=repetition, frequency=frequency, presence=presence)

    @property
    def needs_counts(self) -> bool:
        """Whether a penalty depends on the tokens of the row."""
        return self.repetition != 1 or self.frequency != 0 or self.presence != 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `OptionError` if an id of `logit_bias` is `vocab_size` or more."""
        if self.logit_bias and self.logit_bias[-1][0] >= vocab_size:
            raise OptionError(
                f"expected ids below {vocab_size}, the size of the model's vocabulary, in `logit_bias`, "
                f"got {self.logit_bias[-1][0]}",
                "logit_bias",
            )


NO_PENALTIES = Penalties()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters that one token is chosen by, unchecked: samplers make it, and check their options."""

    is_greedy: bool  # take the most probable token; the warpers are ignored
    penalties: Penalties = NO_PENALTIES
    warpers: tuple[Warper, ...] = ()  # applied after the penalties, in this order

    @property
    def is_standard(self) -> bool:
        """Whether it contains no warper of a user."""
        return all(warper.is_standard for warper in self.warpers)

    @property
    def needs_counts(self) -> bool:
        """Whether anything depends on the tokens of the row."""
        return self.penalties.needs_counts or any(warper.needs_counts for warper in self.warpers)

    @property
    def follows_surprise(self) -> bool:
        """Whether a warper depends on the surprisal of the tokens drawn so far, so that the row records where that began."""
        return any(warper.follows_surprise for warper in self.warpers)

    def penalty_options(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each penalty that changes something, in the order of the steps."""
        for field in fields(self.penalties):
            value = getattr(self.penalties, field.name)
            if value != field.default:
                yield ("logit_bias", dict(value)) if field.name == "logit_bias" else (f"{field.name}_penalty", value)


def penalised(
    logits: torch.Tensor, penalties: Sequence[Penalties], counts: Sequence[TokenCounts | None] | None
) -> torch.Tensor:
    """Return the logits with every row's penalties.

    Args:
        logits: (R, V) float32 or float64; not changed. Minus infinity stays minus infinity.
        penalties: one value per row.
        counts: the token counts of each row; None for rows whose penalties need none.

    Returns:
        (R, V): a changed copy, or `logits` itself if there is no penalty.

    Raises:
        OptionError: a bias is for a token of V or more.
        TypeError: counts are missing.

    Cost: a copy of the logits, a handful of calls in all, and work on the distinct tokens of the rows. Replaces the plain
    form: for every row, for every token of it, change one number.
    """
    biased = [(row, p) for row, p in enumerate(penalties) if p.logit_bias]
    counted = [(row, p, counts_of_row(counts, row)) for row, p in enumerate(penalties) if p.needs_counts]
    if not biased and not counted:
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    vocab_size, flat = logits.shape[-1], logits.view(-1)
    if biased:
        for _, p in biased:
            p.check_vocabulary(vocab_size)
        pairs = [(row * vocab_size + token_id, bias) for row, p in biased for token_id, bias in p.logit_bias]
        indices, values = zip(*pairs, strict=True)
        flat[torch.tensor(indices, device=logits.device)] += torch.tensor(
            values, dtype=logits.dtype, device=logits.device
        )
    if counted:
        _penalise_counted(flat, vocab_size, counted)
    return logits


def _penalise_counted(flat: torch.Tensor, vocab_size: int, rows: Sequence[tuple[int, Penalties, TokenCounts]]) -> None:
    """Apply the penalties that depend on the tokens of the rows to `flat`, (R * V,), in place."""
    token_ids, in_row, generated = (
        np.concatenate(columns)
        for columns in zip(*((c.token_ids, c.in_row, c.generated) for _, _, c in rows), strict=True)
    )
    owners = np.repeat(np.arange(len(rows)), [len(c.token_ids) for _, _, c in rows])
    if token_ids.max(initial=0) >= vocab_size:
        # The embedding may have more tokens than the logits.
        known = token_ids < vocab_size
        token_ids, in_row, generated, owners = token_ids[known], in_row[known], generated[known], owners[known]
    starts = np.array([row * vocab_size for row, _, _ in rows])
    indices = torch.from_numpy(starts[owners] + token_ids).to(flat.device)
    logits = flat[indices]
    repetition, frequency, presence = np.array([(p.repetition, p.frequency, p.presence) for _, p, _ in rows]).T
    if (repetition != 1).any():
        factor = torch.from_numpy(np.where(in_row > 0, repetition[owners], 1.0)).to(logits)
        logits = torch.where(logits < 0, logits * factor, logits / factor)
    if frequency.any() or presence.any():
        logits -= torch.from_numpy(frequency[owners] * generated + presence[owners] * (generated > 0)).to(logits)
    flat[indices] = logits
