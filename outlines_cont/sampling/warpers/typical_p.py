"""`TypicalP`: locally typical sampling: keeps the tokens whose surprisal is nearest to the entropy, as few as have a share of the
probability (Meister et al. 2023, arXiv:2202.00666). Found by a histogram of the distances over whole rows, not by a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.draw import exact
from outlines_cont.sampling.warpers.nucleus import border_bucket, padded_rows
from outlines_cont.sampling.warpers.warper import Truncate, Warper, WholeRowWarper, column, warped_by_rows

# So many tokens are looked at apart from those that are left out.
_FEW = 1024
# Less likely tokens add nothing to an entropy; minus infinity would be times 0.
_DEEPEST = -1e4


@dataclass(frozen=True, slots=True)
class TypicalP(Warper):
    """Keeps the fewest tokens whose surprise is nearest to the entropy that together have the share `p`, and all as near as the last.

    The surprise of a token is minus the logarithm of its probability, the entropy is the expected surprise. The most probable
    token may be left out.

    Attributes:
        p: above 0 and at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        check("typical_p", self.p, is_number(self.p) and 0 < self.p <= 1, "a number above 0 and at most 1, or None")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the tokens that are near."""
        return warped_by_rows(self, logits)

    @property
    def is_neutral(self) -> bool:
        """Whether `p` is 1."""
        return self.p == 1

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the step for rows with their own p, all of them below 1."""
        return _RowTypicalP(column([warper.p for warper in warpers]))


@dataclass(frozen=True, slots=True)
class _RowTypicalP(WholeRowWarper):
    """The p of r rows."""

    p: torch.Tensor  # (r, 1) float64, below 1

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return what `warp` does, but put only those in order among which the last one is.

        Cost: some 25 passes; where a mask or `TopK` has left few tokens of each row, three passes.
        """
        num_left = int((logits > -torch.inf).sum(dim=-1).max())
        if not 0 < num_left <= _FEW < logits.shape[-1]:
            return self._near(logits)
        left = logits.topk(num_left, dim=-1)
        return torch.full_like(logits, -torch.inf).scatter_(-1, left.indices, self._near(left.values))

    def _near(self, logits: torch.Tensor) -> torch.Tensor:
        distances, probs, entropy = _distances(logits)
        p, entropy = self.p.to(exact(entropy).device), exact(entropy)
        # Likelier tokens are no farther than the entropy; V tokens that are less likely by more than this have less than 1 - p.
        deepest = torch.maximum(entropy, torch.log(probs.shape[-1] / (1 - p)) - entropy).clamp_min(1e-3)
        inside, before = border_bucket(distances.clone(), deepest, probs, p)
        listed, order = padded_rows(distances, inside, torch.inf).sort(dim=-1)
        listed_probs = exact(padded_rows(probs, inside, 0.0).gather(-1, order))
        needed = ((before + listed_probs.cumsum(dim=-1) - listed_probs) < p).sum(dim=-1, keepdim=True)
        needed = torch.minimum(needed.to(inside.device), inside.sum(dim=-1, keepdim=True)).clamp_min(1)
        return logits.where(distances <= listed.gather(-1, needed - 1), -torch.inf)


def _distances(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (r, V) distances of the surprise from the entropy, (r, V) probabilities and the (r, 1) entropies."""
    logprobs = logits.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp_min(_DEEPEST)).sum(dim=-1, keepdim=True)
    return logprobs.add_(entropy).abs_(), probs, entropy
