"""`TopP`: nucleus sampling: keeps the fewest most probable tokens that together have a given share of the probability, and those as
probable as the last (Holtzman et al. 2020, arXiv:1904.09751). Found among the largest logits, else by a histogram; see `nucleus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.warpers.nucleus import floor_of_listed, floor_of_rows
from outlines_cont.sampling.warpers.warper import NumberWarper


@dataclass(frozen=True, slots=True)
class TopP(NumberWarper):
    """Keeps the fewest most probable tokens that together have the share `p` of the probability, and those as probable as the last.

    Attributes:
        p: above 0 and at most 1.
    """

    neutral: ClassVar = 1
    p: float

    def __post_init__(self) -> None:
        check("top_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    @classmethod
    def reach(cls, numbers: torch.Tensor) -> int:
        """Return 128: fewer tokens nearly always have nine tenths of the probability."""
        return 128

    @classmethod
    def floor(cls, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logit of the last token of each nucleus."""
        return floor_of_rows(logits, numbers)

    @classmethod
    def narrow(cls, top: TopBlocks, numbers: torch.Tensor) -> None:
        """Sum up the probabilities of the listed logits."""
        top.doubt_if_excluded()  # the share is that of all tokens that earlier warpers have kept
        floor, needed = floor_of_listed(top.listed, top.largest_prob(), numbers)
        # Where all listed tokens are needed, more may be, unless the others were excluded before.
        top.doubt((needed == top.listed.shape[-1]) & top.may_keep_more)
        top.raise_floor(floor)
