"""`TypicalP`: locally typical sampling: keeps the fewest tokens with surprisal nearest to the entropy that together have a given share of
the probability, and ties with the last (Meister et al. 2023, arXiv:2202.00666). Only one bucket is sorted, the one in which a histogram of
the probability over the distances reaches the share; the result is that of a sort of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import exact
from outlines_cont.sampling.warpers.nucleus import border_bucket, padded_rows
from outlines_cont.sampling.warpers.warper import Truncate, Warper, WholeRowWarper, column, warped_by_rows

# Up to this number of tokens that are not excluded are gathered, and processed without the others.
_FEW = 1024
# Less likely tokens add nothing to an entropy; minus infinity times 0 would be NaN.
_DEEPEST = -1e4


@dataclass(frozen=True, slots=True)
class TypicalP(Warper):
    """Keeps the fewest tokens with surprisal nearest to the entropy that together have the share `p`, and those as near as the last.

    The surprisal of a token is minus the logarithm of its probability, the entropy is the expected surprisal. The most probable
    token may be excluded.

    Attributes:
        p: above 0 and at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        check("typical_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the tokens near the entropy."""
        return warped_by_rows(self, logits)

    @property
    def is_neutral(self) -> bool:
        """Whether `p` is 1."""
        return self.p == 1

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the vectorised form; each p is below 1."""
        return _RowTypicalP(column([warper.p for warper in warpers]))


@dataclass(frozen=True, slots=True)
class _RowTypicalP(WholeRowWarper):
    p: torch.Tensor  # (r, 1) float64, below 1

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits of the kept tokens; only the histogram bucket that contains the last one is sorted.

        Cost: some 25 passes; three if a mask or `TopK` has excluded all but a few tokens of each row.
        """
        num_left = int((logits > -torch.inf).sum(dim=-1).max())
        if not 0 < num_left <= _FEW < logits.shape[-1]:
            return self._near(logits)
        left = logits.topk(num_left, dim=-1)
        return torch.full_like(logits, -torch.inf).scatter_(-1, left.indices, self._near(left.values))

    def _near(self, logits: torch.Tensor) -> torch.Tensor:
        distances, probs, entropy = _distances(logits)
        p, entropy = self.p.to(exact(entropy).device), exact(entropy)
        # The distance of likelier tokens is at most the entropy; V tokens of a larger distance have less than 1 - p together.
        deepest = torch.maximum(entropy, torch.log(probs.shape[-1] / (1 - p)) - entropy).clamp_min(1e-3)
        inside, before = border_bucket(distances.clone(), deepest, probs, p)
        listed, order = padded_rows(distances, inside, torch.inf).sort(dim=-1)
        listed_probs = exact(padded_rows(probs, inside, 0.0).gather(-1, order))
        needed = ((before + listed_probs.cumsum(dim=-1) - listed_probs) < p).sum(dim=-1, keepdim=True)
        needed = torch.minimum(needed.to(inside.device), inside.sum(dim=-1, keepdim=True)).clamp_min(1)
        return logits.where(distances <= listed.gather(-1, needed - 1), -torch.inf)


def _distances(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (r, V) distances of the surprisal from the entropy, (r, V) probabilities and the (r, 1) entropies."""
    logprobs = logits.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp_min(_DEEPEST)).sum(dim=-1, keepdim=True)
    return logprobs.add_(entropy).abs_(), probs, entropy
