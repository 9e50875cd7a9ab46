"""`TopBlocks`: a top-n selection without a sort: of the blocks of 32 logits of each row those with the largest maxima, which contain the
n largest logits. Warpers narrow it by raising a floor, the smallest logit kept; rows where the floor may lie outside of the blocks are
"in doubt", and the caller processes them whole.
"""

from __future__ import annotations

import torch

from outlines_cont.sampling.kernels.draw import Drawn, inverse_cdf, not_below, places, reduced, taken

# 32 neighbours per block make both the maxima of the blocks and what is in the chosen ones few.
_SIZE = 32


class TopBlocks:
    """The blocks with the largest logits of r rows, which warpers narrow one after the other.

    A warper that leaves tokens out sets a *floor*, the smallest logit that is kept, so tokens of equal probability stay or go
    together. Where a floor cannot be told from here, the row is in doubt, and is drawn by looking at all of it.

    Attributes:
        logits: (r, M), in the order of the ids, among them the largest.
        listed: (r, n), the n largest, the largest first.
        num_listed: n.
        floor: (r, 1); None where nothing was left out yet.
    """

    __slots__ = ("_divisor", "_doubts", "_largest_at", "_outside", "_rows", "_token_ids", "floor", "listed", "logits")

    def __init__(self, logits: torch.Tensor, blocks: int, num_listed: int) -> None:
        """Take the blocks of (r, V) logits with the largest maxima: the `blocks` largest logits are in them.

        Cost: one pass over the logits, and a sort of the numbers of the blocks.
        """
        self.logits = self._rows = logits
        self.floor: torch.Tensor | None = None
        self._token_ids: torch.Tensor | None = None  # (r, M) int64; None where all tokens are here
        self._outside: torch.Tensor | None = None  # (r, 1), the largest logit that is not here
        self._divisor: torch.Tensor | None = None  # (r, 1), what the rows are yet to be divided by
        self._doubts: torch.Tensor | None = None  # (r, 1) bool
        if 2 * blocks * _SIZE <= logits.shape[-1]:
            largest = reduced(logits, _SIZE, torch.amax).topk(blocks + 1, dim=-1)
            at = places(largest.indices[:, :-1].sort(dim=-1).values, _SIZE)
            self.logits, self._outside = taken(logits, at, -torch.inf), largest.values[:, -1:]
            self._token_ids = at.clamp_max(logits.shape[-1] - 1)
        self.listed, at = self.logits.topk(min(num_listed, self.logits.shape[-1]), dim=-1)
        self._largest_at = at[:, :1]

    @property
    def num_listed(self) -> int:
        """How many logits of each row are listed."""
        return self.listed.shape[-1]

    # -- what warpers do -----------------------------------------------------------------------------------------------

    def divide(self, divisor: torch.Tensor) -> None:
        """Divide the logits by (r, 1) numbers above 0."""
        divisor = divisor.to(self.logits)
        self.logits, self.listed = self.logits / divisor, self.listed / divisor
        self._divisor = divisor if self._divisor is None else self._divisor * divisor
        self.floor = None if self.floor is None else self.floor / divisor
        self._outside = None if self._outside is None else self._outside / divisor

    def raise_floor(self, floor: torch.Tensor) -> None:
        """Leave out what is below the (r, 1) floors, besides what was left out before."""
        self.floor = floor if self.floor is None else torch.maximum(self.floor, floor)

    def doubt(self, rows: torch.Tensor) -> None:
        """Note rows, (r, 1) bool, of which it cannot be told from here what is kept."""
        self._doubts = rows if self._doubts is None else self._doubts | rows

    def doubt_if_left_out(self) -> None:
        """Note the rows of which something that was kept is not here; for warpers that sum up what was kept."""
        if self.floor is not None and self._outside is not None:
            self.doubt((self._outside >= self.floor) & (self._outside > -torch.inf))

    @property
    def may_keep_more(self) -> torch.Tensor:
        """(r, 1) bool: whether some logit that is not listed may be kept, and not be equal to the floor."""
        return self.listed[:, -1:] > (-torch.inf if self.floor is None else self.floor)

    def largest_prob(self) -> torch.Tensor:
        """Return (r, 1): the largest probability, among what was kept so far.

        Cost: a softmax of whole rows where nothing was left out yet, else one of what is here.
        """
        if self.floor is not None:
            return not_below(self.logits, self.floor).softmax(dim=-1).gather(-1, self._largest_at)
        rows = self._rows if self._divisor is None else self._rows / self._divisor
        return rows.softmax(dim=-1).gather(-1, self._ids_of(self._largest_at))

    # -- what becomes of it --------------------------------------------------------------------------------------------

    def draw(self, uniforms: torch.Tensor) -> Drawn:
        """Draw one token of each row among those that were kept, with (r,) numbers; of rows in doubt it means nothing."""
        assert self.floor is not None
        found, logprobs = inverse_cdf(not_below(self.logits, self.floor), uniforms)
        return self._ids_of(found[:, None])[:, 0], logprobs

    def in_doubt(self) -> torch.Tensor:
        """Return the indices, (n,) int64, of the rows of which it cannot be told from here what is kept."""
        self.doubt_if_left_out()
        return self._doubts.nonzero()[:, 0] if self._doubts is not None else torch.zeros(0, dtype=torch.int64)

    def _ids_of(self, places: torch.Tensor) -> torch.Tensor:
        return places if self._token_ids is None else self._token_ids.gather(-1, places)
