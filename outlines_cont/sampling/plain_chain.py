"""`PlainChain`: warpers some of which are a user's own and have `warp` alone, over whole rows, and the draw after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.errors import SamplerError
from outlines_cont.sampling.draw import Drawn, inverse_cdf
from outlines_cont.sampling.warpers import RowWarper, Warper


class PlainChain:
    """What is done with the logits of r rows before the draw, by looking at whole rows."""

    def __init__(self, warpers: Sequence[RowWarper | Warper]) -> None:
        """Take the warpers in their order: those with a fast form for all r rows, the others as they are, equal for all of them."""
        self._warpers = warpers

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor) -> Drawn:
        """Draw one token per row; see `WarperChain.sample`.

        Raises:
            SamplerError: a warper has returned what are no logits for these rows.
        """
        return inverse_cdf(self.kept(logits), uniforms)

    def kept(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left, minus infinity where a token is not kept. None is shifted."""
        for warper in self._warpers:
            logits = warper.whole(logits, _where) if isinstance(warper, RowWarper) else _warped(warper, logits)
        return logits


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
