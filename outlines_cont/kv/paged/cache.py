"""`PagedTails`: where the tokens of a forward are in a pool: the slots that it writes, and the table by which queries find those of their
rows. `PagedCache` is the cache of a batch with such tails. Our own forward attends over the table (`attend`); to that of transformers the
layers return copies, flush right, so that it needs no other mask than that of left padding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.growing import GrowingCache, GrowingLayer, Tails
from outlines_cont.kv.paged.attention import paged_attend
from outlines_cont.kv.paged.pool import Pool


class PagedTails(Tails):
    """The slots of a forward of Q tokens in each of R rows; without any until `aim` is called.

    Attributes:
        pool: where they are.
        given: (3, R, Q) int64, ids, positions and slots of what is fed.
        slots: (R, Q), where the tokens are written; 0 for padding, which is before a row's tokens.
        lengths: (R,) int32, the tokens of each row, the new ones included; 0 for a row without new ones.
        table: (R, C) int32, the slot of each token; anything from the length of a row on.
        whole: (R, C or more), the table in one tensor, the same for as long as it has the same values.
        length: C - Q, what transformers takes for the columns before those that are fed.
    """

    is_paged = True
    given: Tensor
    slots: Tensor
    lengths: Tensor
    table: Tensor
    whole: Tensor

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.is_ours, self.segments, self._prefixes, self._slots = False, [], [], None

    def aim(self, given: Tensor, lengths: Tensor, table: Tensor, whole: Tensor | None = None) -> PagedTails:
        """Take the slots of the next forward, and return itself."""
        self.given, self.slots, self.lengths, self.table = given, given[2], lengths, table
        self.whole = table if whole is None else whole
        self.length = table.shape[1] - given.shape[2]
        self._flush_right: tuple[Tensor, Tensor] | None = None
        return self

    def begin(self, num_layers: int, like: Tensor) -> None:
        """Do nothing: the slots are there."""

    def write_pair(self, index: int, pair: Tensor) -> Layer:
        """Write (2, R, Hk, Q, D) keys and values in one layer; return (S, Hk, D) views of all slots, for `attend`."""
        tokens = pair.permute(1, 3, 0, 2, 4).flatten(0, 1)  # a view of what a product has given
        held = self.pool.pairs[index].permute(2, 0, 1, 3)
        held[self.slots.view(-1)] = tokens
        keys, values = held.unbind(1)
        return keys, values

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """Return (R, Q, H, D), attention of (R, H, Q, D) queries over the slots of their rows; see `paged_attend`."""
        return paged_attend(query, keys, values, self.table, self.lengths, scale, window=window).transpose(1, 2)

    def write(self, index: int, keys: Tensor, values: Tensor) -> Layer:
        """Write (R, Hk, Q, D) keys and values in one layer; return a copy of those of all tokens, (R, Hk, C, D), flush right."""
        self.write_pair(index, torch.stack([keys, values]))
        is_token, slots = self._placed()
        found = self.pool.pairs[index][:, :, slots].transpose(1, 2).masked_fill_(~is_token[:, None, :, None], 0)
        return found[0], found[1]

    def mask(self) -> Tensor:
        """Return (R, C) int64, 1 where `write` returns a token."""
        return self._placed()[0].long()

    def _placed(self) -> tuple[Tensor, Tensor]:
        """Return where there are tokens if these are flush right, (R, C) bool, and their slots."""
        if self._flush_right is None:
            columns = self.table.shape[1]
            at = torch.arange(columns, device=self.table.device) - (columns - self.lengths[:, None])
            self._flush_right = at >= 0, self.table.gather(1, at.clamp_min(0).long()).long()
        return self._flush_right


class PagedCache(GrowingCache):
    """The cache of a batch whose tokens are in slots."""

    tails: PagedTails

    def __init__(self, pool: Pool) -> None:
        DynamicCache.__init__(self)
        self.tails = PagedTails(pool)
        self.layers = [GrowingLayer(self.tails, index) for index in range(len(pool.pairs))]
