"""`TopA`: top-a sampling, which keeps tokens with a probability of at least `a * p_max ** 2`, fewer where the model is confident."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import NumberWarper


@dataclass(frozen=True, slots=True)
class TopA(NumberWarper):
    """Keeps tokens whose probability is at least `a` times the square of that of the most probable one.

    Attributes:
        a: from 0 to 1.
    """

    neutral: ClassVar = 0
    a: float

    def __post_init__(self) -> None:
        check("top_a", self.a, is_number(self.a) and 0 <= self.a <= 1, "a number from 0 to 1, or None")

    @property
    def number(self) -> float:
        """The logarithm of a."""
        return math.log(self.a) if self.a else -math.inf

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logit of log-probability log(a) + 2 log(largest probability)."""
        largest = logits.amax(dim=-1, keepdim=True)
        return largest + numbers.to(logits) + (largest - logits.logsumexp(dim=-1, keepdim=True))

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the first listed logit and its probability."""
        top.doubt_if_excluded()  # the probability is that among all tokens that earlier warpers have kept
        top.raise_floor(top.listed[:, :1] + numbers.to(top.listed) + top.largest_prob().log())
