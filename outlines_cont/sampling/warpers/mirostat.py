"""`Mirostat`: keeps the most probable token and those up to a bound on their surprisal: `2 * tau`, less `eta * (s - tau)` for each drawn
token of surprisal s, so that the mean approaches tau: version 2 of Basu et al. 2021 (arXiv:2007.14966), without an estimate of the tail.
The bound is computed from prefix sums over the log-probabilities of the row, so that it is correct after a rewind, in forks, and in a saved
state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from outlines_cont.checks import check, is_number
from outlines_cont.sampling.kernels.blocks import TopBlocks
from outlines_cont.sampling.kernels.token_counts import TokenCounts, counts_of_row
from outlines_cont.sampling.warpers.warper import RowWarper, Truncate, Warper, column


@dataclass(frozen=True, slots=True)
class Mirostat(Warper):
    """Keeps tokens whose surprisal, in bits, is at most mu, and the most probable one in any case.

    mu is `2 * tau` at first. After every drawn token with surprisal s, `eta * (s - tau)` is subtracted from it, where s is that of
    the distribution that the token was drawn from, -log2 of `exp(sampling_logprobs)`.

    Attributes:
        tau: the target of the mean surprisal per token, in bits, above 0 and at most 100.
        eta: the learning rate of mu, from 0 to 10.
    """

    follows_surprise: ClassVar[bool] = True
    needs_counts: ClassVar[bool] = True

    tau: float = 5.0
    eta: float = 0.1

    def __post_init__(self) -> None:
        check("mirostat", self.tau, is_number(self.tau) and 0 < self.tau <= 100, "a `tau` above 0 and at most 100")
        check("mirostat", self.eta, is_number(self.eta) and 0 <= self.eta <= 10, "an `eta` from 0 to 10")

    def mu(self, counts: TokenCounts) -> float:
        """Return the bound for the next token of a row."""
        bits, count = counts.surprise
        return 2 * self.tau - self.eta * (bits - self.tau * count)

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits for rows in which no token was drawn yet."""
        return logits.where(logits >= _floor(logits, torch.full((len(logits), 1), 2.0 * self.tau)), -torch.inf)

    @classmethod
    def for_rows(cls, warpers: Sequence[Self]) -> RowWarper:
        """Return the vectorised form."""
        return _RowMirostat(tuple(warpers), None)


@dataclass(frozen=True, slots=True)
class _RowMirostat(RowWarper):
    warpers: tuple[Mirostat, ...]
    mu: torch.Tensor | None  # (r, 1) float64, the bounds of the present draw; None before `at`

    def at(self, counts: Sequence[TokenCounts | None] | None) -> _RowMirostat:
        bounds = [warper.mu(counts_of_row(counts, row, warper)) for row, warper in enumerate(self.warpers)]
        return _RowMirostat(self.warpers, column(bounds))

    def __getitem__(self, rows: torch.Tensor) -> _RowMirostat:
        return _RowMirostat(tuple(self.warpers[row] for row in rows.tolist()), self._bounds[rows])

    def whole(self, logits: torch.Tensor, truncate: Truncate) -> torch.Tensor:
        return truncate(logits, _floor(logits, self._bounds))

    def narrow(self, top: TopBlocks) -> None:
        top.doubt_if_excluded()  # the surprisal is that among all tokens that earlier warpers have kept
        depth = self._bounds.to(top.listed) * math.log(2) + top.largest_prob().log()
        top.raise_floor(top.listed[:, :1] - depth.clamp_min(0))

    @property
    def _bounds(self) -> torch.Tensor:
        assert self.mu is not None
        return self.mu


def _floor(logits: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
    """Return (r, 1): the smallest logit that is kept."""
    floor = logits.logsumexp(dim=-1, keepdim=True) - mu.to(logits) * math.log(2)
    return torch.minimum(floor, logits.amax(dim=-1, keepdim=True))
