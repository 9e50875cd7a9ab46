"""`Sampler`: the protocol of samplers, which draw a token per row of logits: the three properties and the method that a user's own class
needs. The samplers of the package are in `outlines_cont.samplers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from outlines_cont.sampling.kernels.token_counts import TokenCounts


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
