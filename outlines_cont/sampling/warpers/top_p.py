"""`TopP`: the fewest tokens that have a share of the probability together; nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.nucleus import floor_of_listed, floor_of_rows
from outlines_cont.sampling.warpers.warper import RowWarper, Truncate, Warper, column


@dataclass(frozen=True, slots=True)
class TopP(Warper):
    """Keeps the fewest most probable tokens that together have the share `p` of what is left, and all as probable as the last.

    Attributes:
        p: above 0 and at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        check("top_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits that are not below the last of the nucleus; the plain form, which sorts."""
        if self.is_neutral:
            return logits
        ranked = logits.sort(dim=-1, descending=True).values
        probs = ranked.double().softmax(dim=-1)
        needed = ((probs.cumsum(dim=-1) - probs) < self.p).sum(dim=-1, keepdim=True).clamp_min(1)
        return logits.where(logits >= ranked.gather(-1, needed - 1), -torch.inf)

    @property
    def is_neutral(self) -> bool:
        """Whether `p` is 1."""
        return self.p == 1

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own p, all of them below 1."""
        return _RowTopP(column([warper.p for warper in warpers], torch.float64))


@dataclass(frozen=True, slots=True)
class _RowTopP(RowWarper):
    """The p of r rows.

    Attributes:
        p: (r, 1) float64, below 1.
    """

    p: torch.Tensor

    @property
    def reach(self) -> int:
        """Nine tenths of the probability are nearly always in fewer tokens."""
        return 128

    def __getitem__(self, rows: torch.Tensor) -> _RowTopP:
        return _RowTopP(self.p[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, floor_of_rows(logits, self.p))

    def narrow(self, top: TopBlocks) -> None:
        top.doubt_if_left_out()  # the share is of what earlier warpers have kept, all of it
        floor, needed = floor_of_listed(top.listed, top.largest_prob(), self.p)
        # Where all that is listed is needed, more may be; unless the rest was left out before.
        top.doubt((needed == top.num_listed) & top.may_keep_more)
        top.raise_floor(floor)
