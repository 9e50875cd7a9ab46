"""`XTC` ("exclude top choices", p-e-w 2024): with a given probability, excludes all likely tokens but the least likely of them. The
random coin is not thrown: the token is drawn from the mixture of both cases, so that one random number suffices and log-probabilities are
those of the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from outlines_cont.checks import check, is_int, is_number
from outlines_cont.sampling.warpers.warper import Truncate, Warper, WholeRowWarper, column, warped_by_rows

_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class XTC(Warper):
    """Excludes, in the share `probability` of the draws, all tokens with at least `threshold` but the least probable of these.

    What is as probable as the least probable stays, too. An end of text is a token like others; `keep` holds those that are never
    excluded.

    Attributes:
        threshold: which tokens are likely, as a probability from 0.000001 to 1; above 0.5 there is never more than one.
        probability: from 0 to 1.
        keep: ids that are never excluded, such as `model.eos_token_ids`; those that the model does not have do nothing.
    """

    threshold: float = 0.1
    probability: float = 0.5
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        holds = is_number(self.threshold) and _SMALLEST <= self.threshold <= 1
        check("xtc", self.threshold, holds, f"a `threshold` from {_SMALLEST:f} to 1")
        holds = is_number(self.probability) and 0 <= self.probability <= 1
        check("xtc", self.probability, holds, "a `probability` from 0 to 1")
        holds = isinstance(self.keep, tuple) and all(is_int(i) and i >= 0 for i in self.keep)
        check("xtc", self.keep, holds, "a tuple of token ids, ints of 0 or more, as `keep`")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture: what is excluded at times is lower, all else higher."""
        return warped_by_rows(self, logits)

    def __str__(self) -> str:
        return f"xtc {self.threshold} {self.probability}"

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is ever excluded."""
        return self.probability == 0 or self.threshold > 0.5

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the step for rows with their own numbers."""
        kept = [(row, i) for row, warper in enumerate(warpers) for i in warper.keep]
        return RowXTC(
            column([math.log(warper.threshold) for warper in warpers]),
            column([warper.probability for warper in warpers]),
            torch.tensor(kept, dtype=torch.int64).view(-1, 2),
        )


@dataclass(frozen=True, slots=True)
class RowXTC(WholeRowWarper):
    """The numbers of r rows."""

    log_threshold: torch.Tensor  # (r, 1) float64
    probability: torch.Tensor  # (r, 1) float64
    keep: torch.Tensor  # (n, 2) int64, (row, token id) pairs

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits of the mixture, where nothing but the draw comes after."""
        is_top, p = self._is_top(logits), self.probability.to(logits)
        rest = logits.softmax(dim=-1).masked_fill_(is_top, 0).sum(dim=-1, keepdim=True)
        return logits + torch.where(is_top, torch.log1p(-p), torch.log1p(p * (1 / rest - 1)))

    def excluded(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the case that likely tokens are excluded."""
        return logits.masked_fill(self._is_top(logits), -torch.inf)

    def mixed(self, excluded: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture of both cases, after all that came behind in each."""
        p = self.probability.to(plain)
        return torch.logaddexp(excluded.log_softmax(dim=-1) + p.log(), plain.log_softmax(dim=-1) + torch.log1p(-p))

    def _is_top(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (r, V) bool: what is excluded."""
        floor = logits.logsumexp(dim=-1, keepdim=True) + self.log_threshold.to(logits)
        lowest = logits.masked_fill(logits < floor, torch.inf).amin(dim=-1, keepdim=True)
        is_top = logits > lowest
        rows, ids = self.keep[self.keep[:, 1] < logits.shape[-1]].to(logits.device).T
        is_top[rows, ids] = False
        return is_top
