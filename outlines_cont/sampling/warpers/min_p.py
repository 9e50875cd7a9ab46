"""`MinP`: tokens with a share of the largest probability (Nguyen et al. 2024, arXiv:2407.01082)."""

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
class MinP(Warper):
    """Keeps tokens whose probability is at least `p` times that of the most probable one.

    Attributes:
        p: from 0 to 1.
    """

    p: float

    def __post_init__(self) -> None:
        check("min_p", self.p, is_number(self.p) and 0 <= self.p <= 1, "a number from 0 to 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits that are at most -log(p) below the largest."""
        if self.is_neutral:
            return logits
        return logits.where(logits >= logits.amax(dim=-1, keepdim=True) + math.log(self.p), -torch.inf)

    @property
    def is_neutral(self) -> bool:
        """Whether `p` is 0."""
        return self.p == 0

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own p, all of them above 0."""
        return _RowMinP(column([warper.p for warper in warpers], torch.float64).log())


@dataclass(frozen=True, slots=True)
class _RowMinP(RowWarper):
    """The p of r rows.

    Attributes:
        log_p: (r, 1) float64, the logarithms.
    """

    log_p: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> _RowMinP:
        return _RowMinP(self.log_p[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, logits.amax(dim=-1, keepdim=True) + self.log_p.to(logits))

    def narrow(self, top: TopBlocks) -> None:
        top.raise_floor(top.listed[:, :1] + self.log_p.to(top.listed))
