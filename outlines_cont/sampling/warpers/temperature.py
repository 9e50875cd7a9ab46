"""`Temperature`: divides all logits by one number, per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import NumberWarper, Truncate


@dataclass(frozen=True, slots=True)
class Temperature(NumberWarper):
    """Divides the logits by `t`: below 1 makes likely tokens likelier, above 1 less likely.

    Attributes:
        t: above 0.
    """

    neutral: ClassVar = 1
    t: float

    def __post_init__(self) -> None:
        holds = is_number(self.t) and 1e-30 < self.t < 1e30
        check("temperature", self.t, holds, "a number above 0 (for 0 use `greedy()`)")

    @classmethod
    def reach(cls, numbers: torch.Tensor) -> int:
        """Return 0: nothing is excluded."""
        return 0

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return minus infinity: nothing is excluded."""
        return logits.new_full((len(logits), 1), -torch.inf)

    @classmethod
    def whole(cls, logits: torch.Tensor, numbers: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits divided by the numbers."""
        return logits / numbers.to(logits)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Divide the largest logits."""
        top.divide(numbers)
