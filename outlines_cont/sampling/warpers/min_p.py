"""`MinP`: keeps tokens with at least a given share of the largest probability (Nguyen et al. 2024, arXiv:2407.01082), by a floor on the
logits, without a softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import NumberWarper


@dataclass(frozen=True, slots=True)
class MinP(NumberWarper):
    """Keeps tokens whose probability is at least `p` times that of the most probable one.

    Attributes:
        p: from 0 to 1.
    """

    neutral: ClassVar = 0
    p: float

    def __post_init__(self) -> None:
        check("min_p", self.p, is_number(self.p) and 0 <= self.p <= 1, "a number from 0 to 1, or None")

    @property
    def number(self) -> float:
        """The logarithm of p: the difference between the floor and the largest logit."""
        return math.log(self.p) if self.p else -math.inf

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the largest logit plus the logarithm of p."""
        return logits.amax(dim=-1, keepdim=True) + numbers.to(logits)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the first listed logit."""
        top.raise_floor(top.listed[:, :1] + numbers.to(top.listed))
