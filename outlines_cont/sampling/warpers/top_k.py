"""`TopK`: keeps the k most probable tokens, and those as probable as the k-th."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_int
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import NumberWarper


@dataclass(frozen=True, slots=True)
class TopK(NumberWarper):
    """Keeps the `k` most probable tokens, and those as probable as the last of them.

    Attributes:
        k: 1 or more.
    """

    is_limit: ClassVar = True
    k: int

    def __post_init__(self) -> None:
        check("top_k", self.k, is_int(self.k, 1), "an int, 1 or more, or None")

    @classmethod
    def reach(cls, numbers: torch.Tensor) -> int:
        """Return the largest k."""
        return int(numbers.max())

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the k-th largest logit of each row."""
        return _kth_largest(logits.topk(min(cls.reach(numbers), logits.shape[-1]), dim=-1).values, numbers)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Use the k-th listed logit: if fewer are listed, an earlier `TopK` has excluded the others."""
        top.raise_floor(_kth_largest(top.listed, numbers))


def _kth_largest(listed: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return (r, 1): the k-th of the logits that are listed in descending order; the last if fewer are listed."""
    return listed.gather(-1, (k.to(listed.device).long() - 1).clamp_max(listed.shape[-1] - 1))
