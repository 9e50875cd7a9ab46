"""`XTC` ("exclude top choices", p-e-w 2024): with a given probability, excludes all tokens of at least `threshold`, except the least likely
of them and those in `keep`. The random coin is not thrown: the token is drawn from the mixture of both cases, so that one random number
suffices and log-probabilities are those of the mixture.
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
    """Excludes, with the given probability, all tokens of at least `threshold` except the least probable of these.

    Tokens as probable as the least probable are kept, too. End-of-text tokens are treated like others, unless they are in `keep`.

    Attributes:
        threshold: the probability from which a token is likely, from 0.000001 to 1; above 0.5 the step never changes anything.
        probability: how often tokens are excluded, from 0 to 1.
        keep: a tuple of token ids that are never excluded, such as those of `model.eos_token_ids`; unknown ids are ignored.
    """

    threshold: float = 0.1
    probability: float = 0.5
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        holds = is_number(self.threshold) and _SMALLEST <= self.threshold <= 1
        check("xtc", self.threshold, holds, f"a `threshold` from {_SMALLEST:f} to 1")
        holds = is_number(self.probability) and 0 <= self.probability <= 1
        check("xtc", self.probability, holds, "a `probability` from 0 to 1")
        holds = isinstance(self.keep, tuple) and all(is_int(i, 0) for i in self.keep)
        check("xtc", self.keep, holds, "a tuple of token ids, ints of 0 or more, as `keep`")

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture: lower for tokens that are sometimes excluded, higher for all others."""
        return warped_by_rows(self, logits)

    def __str__(self) -> str:
        return f"xtc {self.threshold} {self.probability}"

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is ever excluded."""
        return self.probability == 0 or self.threshold > 0.5

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> WholeRowWarper:
        """Return the vectorised form."""
        kept = [(row, i) for row, warper in enumerate(warpers) for i in warper.keep]
        return RowXTC(
            column([math.log(warper.threshold) for warper in warpers]),
            column([warper.probability for warper in warpers]),
            torch.tensor(kept, dtype=torch.int64).view(-1, 2),
        )


@dataclass(frozen=True, slots=True)
class RowXTC(WholeRowWarper):
    """The vectorised form, which also returns both outcomes, for chains with warpers after it."""

    log_threshold: torch.Tensor  # (r, 1) float64
    probability: torch.Tensor  # (r, 1) float64
    keep: torch.Tensor  # (n, 2) int64, (row, token id) pairs

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        """Return the logits of the mixture; for an `XTC` that is the last warper."""
        is_top, p = self._is_top(logits), self.probability.to(logits)
        rest = logits.softmax(dim=-1).masked_fill_(is_top, 0).sum(dim=-1, keepdim=True)
        return logits + torch.where(is_top, torch.log1p(-p), torch.log1p(p * (1 / rest - 1)))

    def excluded(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the outcome that likely tokens are excluded."""
        return logits.masked_fill(self._is_top(logits), -torch.inf)

    def mixed(self, excluded: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """Return the logits of the mixture of both outcomes, each after the warpers that follow."""
        p = self.probability.to(plain)
        return torch.logaddexp(excluded.log_softmax(dim=-1) + p.log(), plain.log_softmax(dim=-1) + torch.log1p(-p))

    def _is_top(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (r, V) bool: whether a token is among those that are sometimes excluded."""
        floor = logits.logsumexp(dim=-1, keepdim=True) + self.log_threshold.to(logits)
        lowest = logits.masked_fill(logits < floor, torch.inf).amin(dim=-1, keepdim=True)
        is_top = logits > lowest
        rows, ids = self.keep[self.keep[:, 1] < logits.shape[-1]].to(logits.device).T
        is_top[rows, ids] = False
        return is_top
