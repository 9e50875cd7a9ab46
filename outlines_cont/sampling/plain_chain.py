"""`PlainChain`: warpers some of which look at whole rows, such as a user's own, and the draw after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.errors import SamplerError
from outlines_cont.sampling.chain import WarperChain
from outlines_cont.sampling.kernels.draw import Drawn, inverse_cdf
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.warpers.warper import Warper, WholeRowWarper
from outlines_cont.sampling.warpers.xtc import RowXTC

Counts = Sequence[TokenCounts | None]


class PlainChain:
    """What is done with the logits of r rows before the draw, by looking at whole rows."""

    def __init__(self, warpers: Sequence[WholeRowWarper | Warper], last: WarperChain | None = None) -> None:
        """Take the warpers in their order.

        Args:
            warpers: those with a form for many rows for all r rows, the others as they are, equal for all of them.
            last: what comes behind them and need not look at whole rows.
        """
        self._warpers, self._last = warpers, last

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor, counts: Counts | None = None) -> Drawn:
        """Draw one token per row; see `WarperChain.sample`.

        Raises:
            SamplerError: a warper has returned what are no logits for these rows.
        """
        if self._last is None or any(isinstance(warper, RowXTC) for warper in self._warpers):
            return inverse_cdf(self.kept(logits, counts), uniforms)
        return self._last.sample(_warped_by(self._warpers, logits, counts), uniforms, counts)

    def kept(self, logits: torch.Tensor, counts: Counts | None = None) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left, minus infinity where a token is not kept."""
        xtc = next((i for i, warper in enumerate(self._warpers) if isinstance(warper, RowXTC)), None)
        if xtc is None or self._is_end(xtc):
            return self._behind(self._warpers, logits, counts)
        # Both cases of its coin go through what comes behind it; the law of the token is their mixture.
        coin, rest = self._warpers[xtc], self._warpers[xtc + 1 :]
        assert isinstance(coin, RowXTC)
        logits = _warped_by(self._warpers[:xtc], logits, counts)
        return coin.mixed(self._behind(rest, coin.excluded(logits), counts), self._behind(rest, logits, counts))

    def _is_end(self, index: int) -> bool:
        return index == len(self._warpers) - 1 and self._last is None

    def _behind(
        self, warpers: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None
    ) -> torch.Tensor:
        """Return the logits after some of the warpers and those that need not look at whole rows."""
        logits = _warped_by(warpers, logits, counts)
        return logits if self._last is None else self._last.kept(logits, counts)


def _warped_by(warpers: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    """Return the logits after some warpers; none is shifted."""
    for warper in warpers:
        logits = _one_step(warper, logits, counts)
    return logits


def _one_step(warper: WholeRowWarper | Warper, logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    if isinstance(warper, WholeRowWarper):
        return warper.at(counts).whole(logits, _where)
    return _warped(warper, logits)


def _where(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return the logits that are not below the (r, 1) floors, as they are: what comes next may ask for more than their differences."""
    return logits.where(logits >= floor, -torch.inf)


def _warped(warper: Warper, logits: torch.Tensor) -> torch.Tensor:
    """Return what a warper makes of the logits; what was left out before stays out.

    Raises:
        SamplerError: it has another shape or type, or a row of it is no distribution, though one was given.
    """
    warped = warper.warp(logits.clone())  # it may write into what it is given
    if not isinstance(warped, torch.Tensor) or warped.shape != logits.shape or not warped.is_floating_point():
        raise SamplerError(
            f"expected `warp` of {warper!r} to return logits, {_shown(logits)} as it was given, got {_shown(warped)}. "
            "Return minus infinity for tokens that are left out."
        )
    warped = torch.where(logits == -torch.inf, -torch.inf, warped.to(logits))
    if (_is_distribution(logits) & ~_is_distribution(warped)).any():
        raise SamplerError(
            f"expected `warp` of {warper!r} to keep a token with a finite logit in every row, got none, or NaN. "
            "Tokens that a mask leaves out have the logit minus infinity: leave them aside in sums and means."
        )
    return warped


def _is_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Return (r,) bool: whether the largest logit of each row is finite."""
    return logits.amax(dim=-1).isfinite()


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return type(value).__name__
