"""`TopK`: keeps the k most probable tokens, and all that are as probable as the k-th."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_int
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import NumberWarper


@dataclass(frozen=True, slots=True)
class TopK(NumberWarper):
    """Keeps the `k` most probable tokens, and all that are as probable as the last of them.

    Attributes:
        k: 1 or more.
    """

    is_limit: ClassVar = True
    k: int

    def __post_init__(self) -> None:
        check("top_k", self.k, is_int(self.k) and self.k >= 1, "an int, 1 or more, or None")

    @classmethod
    def reach(cls, numbers: torch.Tensor) -> int:
        """Return the largest k."""
        return int(numbers.max())

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the k-th largest logit of each row."""
        return _kth(logits.topk(min(cls.reach(numbers), logits.shape[-1]), dim=-1).values, numbers)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Find the k-th among those that are listed: where k is larger, another `TopK` has left out the others before."""
        top.raise_floor(_kth(top.listed, numbers))


def _kth(listed: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return (r, 1): the logit that is the k-th of its row; the last where fewer are listed."""
    return listed.gather(-1, (k.to(listed.device).long() - 1).clamp_max(listed.shape[-1] - 1))
