"""`WarperChain`: a sequence of logits warpers with parameters per row, and the draw after them, without sorting the vocabulary: warpers
that keep the largest logits work on the top blocks of each row (`TopBlocks`). Rows where these do not suffice (very flat, many equal
logits), and steps such as XTC, `TypicalP`, or a user's own warpers, pass over whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.errors import SamplerError
from outlines_cont.sampling.kernels.draw import Drawn, inverse_cdf, not_below
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import RowWarper, Warper, WholeRowWarper, where_not_below
from outlines_cont.sampling.warpers.xtc import RowXTC

Counts = Sequence[TokenCounts | None]

# How many blocks are looked at where no warper says how many tokens are left.
_BLOCKS = 128
# How many logits are looked at in one go where there are many passes.
_CACHED = 2**18


class WarperChain:
    """The warpers of r rows, each row with its own parameters, and the draw from what they leave."""

    def __init__(self, fast: Sequence[RowWarper], steps: Sequence[WholeRowWarper | Warper] = ()) -> None:
        """Take the warpers for r rows in their order: first `steps`, which look at whole rows, then those that need the largest logits."""
        self._fast, self._steps = fast, steps
        self._coin = next((i for i, warper in enumerate(steps) if isinstance(warper, RowXTC)), None)
        self._num_listed, self._blocks = 0, _BLOCKS
        for warper in fast:
            self._num_listed = max(self._num_listed, warper.reach)
            if warper.is_limit:
                self._blocks = self._num_listed
                break
        self._blocks = max(self._blocks, self._num_listed)

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor, counts: Counts | None = None) -> Drawn:
        """Draw one token per row.

        Args:
            logits: (r, V) float32 or float64, minus infinity where a token is not allowed.
            uniforms: (r,) float64 in [0, 1).
            counts: what each row holds, where a warper needs it.

        Raises:
            SamplerError: a warper of a user has returned what are no logits for these rows.

        Cost: with `top_k` first, or `min_p` alone, one pass over the logits; else a softmax as well. Rows whose smallest kept logit
        lies deeper take about ten passes.
        """
        if not self._num_listed or self._coin is not None:
            return inverse_cdf(self.kept(logits, counts), uniforms)
        logits = _stepped(self._steps, logits, counts)
        warpers = [warper.at(counts) for warper in self._fast]
        top = TopBlocks(logits, self._blocks, self._num_listed)
        for warper in warpers:
            warper.narrow(top)
        token_ids, logprobs = top.draw(uniforms)
        for rows in _parts(top.in_doubt(), logits):
            kept = _whole([warper[rows.cpu()] for warper in warpers], logits[rows])
            token_ids[rows], logprobs[rows] = inverse_cdf(kept, uniforms[rows.to(uniforms.device)])
        return token_ids, logprobs

    def kept(self, logits: torch.Tensor, counts: Counts | None = None) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left, by looking at whole rows.

        They are minus infinity where a token is not kept, and may be shifted, by one number for each row.
        """
        at = self._coin
        if at is None or (at == len(self._steps) - 1 and not self._fast):
            return self._behind(self._steps, logits, counts)
        # Both cases of the coin of `XTC` go through what comes behind it; the law of the token is their mixture.
        coin, rest = self._steps[at], self._steps[at + 1 :]
        assert isinstance(coin, RowXTC)
        logits = _stepped(self._steps[:at], logits, counts)
        return coin.mixed(self._behind(rest, coin.excluded(logits), counts), self._behind(rest, logits, counts))

    def _behind(
        self, steps: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None
    ) -> torch.Tensor:
        """Return the logits after some steps and all that comes behind these."""
        return _whole([warper.at(counts) for warper in self._fast], _stepped(steps, logits, counts))


def _whole(warpers: Sequence[RowWarper], logits: torch.Tensor) -> torch.Tensor:
    for warper in warpers:
        logits = warper.whole(logits, not_below)
    return logits


def _stepped(steps: Sequence[WholeRowWarper | Warper], logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    """Return the logits after some steps that look at whole rows; none is shifted."""
    for step in steps:
        logits = _warped(step, logits, counts)
    return logits


def _parts(rows: torch.Tensor, logits: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the indices of rows in parts: on a CPU as many as its caches hold."""
    if not len(rows):
        return ()
    return torch.split(rows, max(_CACHED // logits.shape[-1], 1)) if logits.device.type == "cpu" else (rows,)


def _warped(warper: WholeRowWarper | Warper, logits: torch.Tensor, counts: Counts | None) -> torch.Tensor:
    """Return what a warper makes of the logits; what was left out before stays out.

    Raises:
        SamplerError: it has another shape or type, or a row of it is no distribution, though one was given.
    """
    if isinstance(warper, WholeRowWarper):
        return warper.at(counts).whole(logits, where_not_below)
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
