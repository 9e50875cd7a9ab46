"""`TopA`: top-a sampling, which keeps the tokens of at least `a * p_max ** 2`, so that fewer are left where the model is confident."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import RowWarper, Truncate, Warper, column


@dataclass(frozen=True, slots=True)
class TopA(Warper):
    """Keeps tokens whose probability is at least `a` times the square of that of the most probable one.

    Attributes:
        a: from 0 to 1.
    """

    a: float

    def __post_init__(self) -> None:
        check("top_a", self.a, is_number(self.a) and 0 <= self.a <= 1, "a number from 0 to 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits whose log-probability is at least log(a) + 2 log(largest probability)."""
        if self.is_neutral:
            return logits
        return logits.where(logits >= _floor(logits, math.log(self.a)), -torch.inf)

    @property
    def is_neutral(self) -> bool:
        """Whether `a` is 0."""
        return self.a == 0

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own a, all of them above 0."""
        return _RowTopA(column([warper.a for warper in warpers], torch.float64).log())


@dataclass(frozen=True, slots=True)
class _RowTopA(RowWarper):
    """The a of r rows.

    Attributes:
        log_a: (r, 1) float64, the logarithms.
    """

    log_a: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> _RowTopA:
        return _RowTopA(self.log_a[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, _floor(logits, self.log_a.to(logits)))

    def narrow(self, top: TopBlocks) -> None:
        top.doubt_if_left_out()  # the probability is that among what earlier warpers have kept, all of it
        top.raise_floor(top.listed[:, :1] + self.log_a.to(top.listed) + top.largest_prob().log())


def _floor(logits: torch.Tensor, log_a: torch.Tensor | float) -> torch.Tensor:
    """Return (r, 1): the smallest logit that is kept."""
    largest = logits.amax(dim=-1, keepdim=True)
    return largest + log_a + (largest - logits.logsumexp(dim=-1, keepdim=True))
