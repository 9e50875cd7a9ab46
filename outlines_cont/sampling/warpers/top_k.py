"""`TopK`: the k most probable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_int
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import RowWarper, Truncate, Warper, column


@dataclass(frozen=True, slots=True)
class TopK(Warper):
    """Keeps the `k` most probable tokens, and all that are as probable as the last of them.

    Attributes:
        k: 1 or more.
    """

    k: int

    def __post_init__(self) -> None:
        check("top_k", self.k, is_int(self.k) and self.k >= 1, "an int, 1 or more, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits that are not below the k-th; the plain form, which sorts."""
        ranked = logits.sort(dim=-1, descending=True).values
        kth = ranked[:, min(self.k, logits.shape[-1]) - 1, None]
        return logits.where(logits >= kth, -torch.inf)

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the step for rows with their own k."""
        return _RowTopK(column([warper.k for warper in warpers], torch.int64), max(warper.k for warper in warpers))


@dataclass(frozen=True, slots=True)
class _RowTopK(RowWarper):
    """The k of r rows.

    Attributes:
        k: (r, 1) int64.
        largest: the largest of them.
    """

    k: torch.Tensor
    largest: int

    @property
    def reach(self) -> int:
        """The largest k."""
        return self.largest

    @property
    def is_limit(self) -> bool:
        """True."""
        return True

    def __getitem__(self, rows: torch.Tensor) -> _RowTopK:
        k = self.k[rows]
        return _RowTopK(k, int(k.max()))

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, self._kth(logits.topk(min(self.largest, logits.shape[-1]), dim=-1).values))

    def narrow(self, top: TopBlocks) -> None:
        # More are asked for than are listed only behind another `TopK`, which has left out what is not.
        top.raise_floor(self._kth(top.listed))

    def _kth(self, listed: torch.Tensor) -> torch.Tensor:
        """Return (r, 1): the logit that is the k-th of its row; the last where fewer are listed."""
        return listed.gather(-1, (self.k.to(listed.device) - 1).clamp_max(listed.shape[-1] - 1))
