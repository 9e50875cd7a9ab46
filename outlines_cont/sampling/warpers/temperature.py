"""`Temperature`: all logits divided by one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import RowWarper, Truncate, Warper, column


@dataclass(frozen=True, slots=True)
class Temperature(Warper):
    """Divides the logits by `t`: below 1 likely tokens become likelier, above 1 less so.

    Attributes:
        t: above 0.
    """

    t: float

    def __post_init__(self) -> None:
        holds = is_number(self.t) and 1e-30 < self.t < 1e30
        check("temperature", self.t, holds, "a number above 0 (for 0 use `greedy()`)")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits divided by `t`."""
        return logits / self.t

    @property
    def is_neutral(self) -> bool:
        """Whether `t` is 1."""
        return self.t == 1

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own temperatures."""
        return _RowTemperature(column([warper.t for warper in warpers], torch.float64))


@dataclass(frozen=True, slots=True)
class _RowTemperature(RowWarper):
    """Temperatures of r rows.

    Attributes:
        t: (r, 1) float64.
    """

    t: torch.Tensor

    @property
    def reach(self) -> int:
        """0: nothing is left out."""
        return 0

    def __getitem__(self, rows: torch.Tensor) -> _RowTemperature:
        return _RowTemperature(self.t[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return logits / self.t.to(logits)

    def narrow(self, top: TopBlocks) -> None:
        top.divide(self.t)
