"""`Near`: the few blocks of each row in which its largest logits lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outlines_cont.sampling.blocks import places, reduced, taken
from outlines_cont.sampling.draw import Drawn, inverse_cdf, not_below

# 32 neighbours per block make both the maxima of the blocks and what is in the chosen ones few.
_SIZE = 32


@dataclass(frozen=True, slots=True)
class Near:
    """Some of each row's logits, among them the largest.

    Attributes:
        logits: (r, M), in the order of the ids.
        token_ids: (r, M) int64; None where all tokens are here.
        outside: (r, 1), the largest logit that is not here; None where all tokens are here.
    """

    logits: torch.Tensor
    token_ids: torch.Tensor | None = None
    outside: torch.Tensor | None = None

    @classmethod
    def of(cls, logits: torch.Tensor, blocks: int) -> Near:
        """Return the blocks of (r, V) logits with the largest maxima: the `blocks` largest logits are in them.

        Cost: one pass over the logits, and a sort of the numbers of the blocks.
        """
        if 2 * blocks * _SIZE > logits.shape[-1]:
            return cls(logits)
        largest = reduced(logits, _SIZE, torch.amax).topk(blocks + 1, dim=-1)
        at = places(largest.indices[:, :-1].sort(dim=-1).values, _SIZE)
        return cls(taken(logits, at, -torch.inf), at.clamp_max(logits.shape[-1] - 1), largest.values[:, -1:])

    def divided(self, temperature: torch.Tensor | None) -> Near:
        """Return the same tokens with their logits divided by (r, 1) temperatures."""
        if temperature is None:
            return self
        divisor = temperature.to(self.logits)
        return Near(self.logits / divisor, self.token_ids, None if self.outside is None else self.outside / divisor)

    def leaves_out(self, floor: torch.Tensor) -> torch.Tensor:
        """Return (r, 1) bool: whether some logit that is not here may be as large as the floor of its row."""
        if self.outside is None:
            return torch.zeros_like(floor, dtype=torch.bool)
        return (self.outside >= floor) & (self.outside > -torch.inf)

    def draw(self, floor: torch.Tensor, uniforms: torch.Tensor) -> Drawn:
        """Draw one token of each row among those that are not below its floor."""
        found, logprobs = inverse_cdf(not_below(self.logits, floor), uniforms)
        return self.ids_of(found[:, None])[:, 0], logprobs

    def ids_of(self, places: torch.Tensor) -> torch.Tensor:
        """Return the token ids, (r, n) int64, of what is at (r, n) places."""
        return places if self.token_ids is None else self.token_ids.gather(-1, places)
