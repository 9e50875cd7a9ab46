"""`WarperChain`: the warpers of rows that have the same kinds of them in the same order, and the draw after them.

No vocabulary is sorted: what is kept is looked for among a few blocks that hold the largest logits of a row. Only where these cannot
tell (very flat distributions, very many equal logits) the whole row is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.sampling.kernels.draw import Drawn, inverse_cdf, not_below
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.kernels.top_blocks import TopBlocks
from outlines_cont.sampling.warpers.warper import RowWarper

# How many blocks are looked at where no warper says how many tokens are left.
_BLOCKS = 128
# How many logits are looked at in one go where there are many passes.
_CACHED = 2**18


class WarperChain:
    """What is done with the logits of r rows before the draw, each row by its own numbers."""

    def __init__(self, warpers: Sequence[RowWarper]) -> None:
        """Take the warpers in their order, each for all r rows."""
        self._warpers = warpers
        self._num_listed, self._blocks = 0, _BLOCKS
        for warper in warpers:
            self._num_listed = max(self._num_listed, warper.reach)
            if warper.is_limit:
                self._blocks = self._num_listed
                break
        self._blocks = max(self._blocks, self._num_listed)

    def sample(
        self, logits: torch.Tensor, uniforms: torch.Tensor, counts: Sequence[TokenCounts | None] | None = None
    ) -> Drawn:
        """Draw one token per row.

        Args:
            logits: (r, V) float32 or float64, minus infinity where a token is not allowed.
            uniforms: (r,) float64 in [0, 1).
            counts: what each row holds, where a warper needs it.

        Cost: with `top_k` first, or `min_p` alone, one pass over the logits; else a softmax as well. Rows whose smallest kept logit
        lies deeper take about ten passes.
        """
        if not self._num_listed:
            return inverse_cdf(self.kept(logits, counts), uniforms)
        warpers = [warper.at(counts) for warper in self._warpers]
        top = TopBlocks(logits, self._blocks, self._num_listed)
        for warper in warpers:
            warper.narrow(top)
        token_ids, logprobs = top.draw(uniforms)
        for rows in _parts(top.in_doubt(), logits):
            kept = _kept([warper[rows.cpu()] for warper in warpers], logits[rows])
            token_ids[rows], logprobs[rows] = inverse_cdf(kept, uniforms[rows.to(uniforms.device)])
        return token_ids, logprobs

    def kept(self, logits: torch.Tensor, counts: Sequence[TokenCounts | None] | None = None) -> torch.Tensor:
        """Return (r, V) logits of the distribution that is left, by looking at whole rows.

        They are minus infinity where a token is not kept, and may be shifted, by one number for each row.
        """
        return _kept([warper.at(counts) for warper in self._warpers], logits)


def _kept(warpers: Sequence[RowWarper], logits: torch.Tensor) -> torch.Tensor:
    for warper in warpers:
        logits = warper.whole(logits, not_below)
    return logits


def _parts(rows: torch.Tensor, logits: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the indices of rows in parts: on a CPU as many as its caches hold."""
    if not len(rows):
        return ()
    return torch.split(rows, max(_CACHED // logits.shape[-1], 1)) if logits.device.type == "cpu" else (rows,)
