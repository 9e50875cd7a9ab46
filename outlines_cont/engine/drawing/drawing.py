"""The values that decide one draw of a token: `Drawing` (sampler and what it needs), `DrawPlace` (position, logits, mask, random number),
and `Draw`, the result. A draw may be made ahead, at a position behind guessed tokens, and is used only if all these are the same when the
row gets there.

Behind one forward all draws are made at once that come if the guess is right: to draw eight tokens takes little longer than one, and on a
GPU it saves seven synchronisations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.params import SamplingParams
from outlines_cont.sampling.sampler import Sampler

_MOST_TOKENS = 16_384
"""Up to this size of the vocabulary a draw on a CPU costs little but the calls; beyond it, unused draws cost more."""

Counts = Sequence[TokenCounts | None]


class _CountedRow(Protocol):
    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return what the row holds; `mirostat`: its next token is drawn with `Mirostat`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a token is drawn: the sampler, and what it needs; determined once, not for every token."""

    sampler: Sampler  # how tokens are drawn
    needs_random: bool  # whether a draw takes a random number
    needs_counts: bool  # whether a draw depends on the tokens of the row
    params: SamplingParams | None  # what the sampler chooses by; None for one with a `sample` of its own

    def counts_of(self, row: _CountedRow) -> TokenCounts | None:
        """Return what a draw needs to know of the tokens of a row; None where it needs nothing."""
        if not self.needs_counts:
            return None
        return row.counts_for(mirostat=self.has_mirostat)

    @property
    def has_mirostat(self) -> bool:
        """Whether `Mirostat` is among the warpers."""
        return self.params is not None and self.params.has_mirostat

    @property
    def kind(self) -> object:
        """Equal for rows that are drawn together."""
        if self.params is None:
            return id(self.sampler)
        return "standard" if self.params.is_standard else "own warpers"


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A sampled token, with its log-probability by the model and as it was sampled, and the most probable tokens if asked for."""

    token_id: int  # the token
    logprob: float  # its log-probability by the model; not finite where the logits are invalid
    sampling_logprob: float  # its log-probability as it was drawn; not finite where none can be drawn
    # The most probable tokens with their log-probabilities, as many as the row wants.
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DrawPlace:
    """A position at which a token is drawn, with all that decides the draw."""

    length: int  # how many tokens stand before it
    logits: torch.Tensor  # (V,), before masks
    mask: TokenSet  # the tokens that may be drawn
    drawing: Drawing  # how a token is drawn
    uniform: float | None  # the random number that it is drawn with; None where it takes none

    def asks_like(self, other: DrawPlace) -> bool:
        """Return whether a draw at one of both is a draw at the other: all that decides it is the same, the random number too."""
        is_same = self.logits is other.logits and self.drawing is other.drawing and self.uniform == other.uniform
        return is_same and self.mask == other.mask


def foresees(logits: torch.Tensor) -> bool:
    """Return whether to draw ahead pays for logits of (R, V)."""
    return logits.device.type != "cpu" or logits.shape[-1] <= _MOST_TOKENS
