"""`Drawing`, `DrawInput`, `Draw`: the values that determine one draw of a token (sampler and what it needs; position, logits, mask, random
number), and its result. A draw may be made ahead, at a position behind draft tokens; it is used only if its input is the same when the row
reaches that position. `draws_ahead_pay`: not on a CPU with a vocabulary of more than 16,384 tokens.

After one forward all draws behind a draft are made together: eight take little longer than one, and save seven synchronisations on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.params import NO_PENALTIES, Sampler, SamplingParams

_MOST_TOKENS = 16_384
"""The largest vocabulary for which draws ahead pay on a CPU: a draw costs little more than the calls; beyond, unused draws cost more."""


class _CountedRow(Protocol):
    def counts_for(self, *, follows_surprise: bool) -> TokenCounts:
        """Return the token counts of the row; `follows_surprise`: see `SamplingParams`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A sampler, and what it needs for a draw; determined once, not for every token."""

    sampler: Sampler
    needs_random: bool  # whether a draw takes a random number
    needs_counts: bool  # whether a draw depends on the tokens of the row
    params: SamplingParams | None  # None for a sampler with a `sample` of its own

    def counts_of(self, row: _CountedRow) -> TokenCounts | None:
        """Return the token counts of a row, if a draw depends on them."""
        return row.counts_for(follows_surprise=self.follows_surprise) if self.needs_counts else None

    @property
    def follows_surprise(self) -> bool:
        """Whether a warper depends on the surprisal of the tokens drawn so far."""
        return self.params is not None and self.params.follows_surprise

    @property
    def takes_largest(self) -> bool:
        """Whether the most probable token is drawn, as the logits are."""
        return self.params is not None and self.params.is_greedy and self.params.penalties == NO_PENALTIES

    @property
    def kind(self) -> object:
        """A key that is equal for rows that can be drawn together."""
        if self.params is None:
            return id(self.sampler)
        return "standard" if self.params.is_standard else "own warpers"


class Draw(NamedTuple):
    """A sampled token with its log-probabilities."""

    token_id: int
    logprob: float  # by the model; not finite if the logits are invalid
    sampling_logprob: float  # masked and warped; not finite if no token can be drawn
    top: tuple[tuple[int, float], ...] = ()  # the `num_top` most probable tokens, with their log-probabilities


class DrawInput(NamedTuple):
    """The input of one draw."""

    length: int  # the number of tokens before it
    logits: torch.Tensor  # (V,), before masks
    mask: TokenSet  # the tokens that may be drawn
    drawing: Drawing
    uniform: float | None  # the random number, if it takes one

    def is_same_draw(self, other: DrawInput) -> bool:
        """Return whether both draws have the same input, and so the same result."""
        is_same = self.logits is other.logits and self.drawing is other.drawing and self.uniform == other.uniform
        return is_same and self.mask == other.mask


def draws_ahead_pay(logits: torch.Tensor) -> bool:
    """Return whether draws ahead pay for logits of (R, V)."""
    return logits.device.type != "cpu" or logits.shape[-1] <= _MOST_TOKENS
