"""`Shadow`: the negative prompt of a row, and behind it the tokens of its piece, which are fed beside those of the row."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING
from weakref import proxy

import torch

from outlines_cont.engine.branch import TokenSet
from outlines_cont.engine.kept_logits import KeptLogits
from outlines_cont.state_row import StateRow

if TYPE_CHECKING:
    from outlines_cont.engine.row import Row


class Shadow:
    """A sequence that a row is guided by. It is fed as a row is, but decides nothing: what the row appends and takes back is its text.

    Attributes:
        source: the negative prompt.
        cached: how many tokens have been fed; the rest is pending.
        logits: (V,) after the last token, where that was fed.
    """

    def __init__(self, source: StateRow, row: Row, num_places: int) -> None:
        """Stand beside `row`, of which `num_places` tokens may be taken back without a forward."""
        self.source = source
        self.cached = source.cached
        self.logits = source.logits
        self._kept = KeptLogits(num_places)
        self._is_partial = False  # as those of the row
        self._row: Row = proxy(row)  # which holds this one
        self._offset = len(source.token_ids) - row.piece_start

    def fork(self, row: Row) -> Shadow:
        """Return the same for a fork of the row."""
        fork = Shadow(self.source, row, 0)
        fork.cached, fork.logits, fork._is_partial = self.cached, self.logits, self._is_partial
        fork._kept = self._kept.fork()
        return fork

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self._row.token_ids) + self._offset

    @property
    def is_ready(self) -> bool:
        """Whether the logits at the end are known."""
        return self.logits is not None and self.cached == self.length

    # -- what a lane asks of all that it feeds ---------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row can draw one."""
        return self.length - self.cached if self._row.feeds_all else 0

    @property
    def held(self) -> int:
        """How many tokens have keys and values."""
        return self.cached

    @property
    def source_cached(self) -> int:
        """How many of them are those of the source."""
        return self.source.cached

    def chunk(self) -> list[int]:
        """Return the pending ids."""
        if not self.num_pending:
            return []
        written = self._row.token_ids[max(self.cached - self._offset, self._row.piece_start) :]
        return [*self.source.token_ids[self.cached :], *written]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted, ascending."""
        last = self.length - 1 - self.cached
        first = max(len(self.source.token_ids) - 1 - self.cached, last - self._kept.num_places, 0)
        return list(range(first, min(last + 1, chunk_size)))

    def unscored(self, fed: Container[int]) -> list[tuple[int, int]]:
        """Nothing: log-probabilities are those of the row."""
        return []

    def score(self, logprobs: Sequence[float]) -> None:
        """Never called."""

    def lose(self, cached: int) -> None:
        """Note that no more than the first `cached` tokens are held any longer."""
        if cached < self.cached:
            self._row.counts.recomputed_tokens += self.cached - cached
            self.cached = cached

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Note that `count` pending tokens were fed; `logits` holds the wanted ones by index into the chunk."""
        known = {self.cached + at + 1: line for at, line in logits.items()}
        for index in sorted(known):
            self._kept.put(index, known[index])
        self._row.counts.fed_tokens += count
        self.cached += count
        self.logits, self._is_partial = known.get(self.cached), False

    # -- what the row asks ---------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Follow the row, which has given tokens back."""
        length = self.length
        self.cached = min(self.cached, length)
        self._kept.forget_after(length)
        self.logits, self._is_partial = self._kept.whole(length), False

    def restore(self) -> None:
        """Hold nothing but the source; see `Checkpoint`."""
        self._kept = self._kept.emptied()
        self.lose(self.source_cached)
        self.logits, self._is_partial = self.source.logits, False

    def need_logits(self, mask: TokenSet) -> None:
        """Make sure that something is pending, or that the logits at the end are known for a mask."""
        if self.cached < self.length or (self.logits is not None and not self._is_partial):
            return
        self.logits = self._kept.for_mask(self.cached, mask)
        self._is_partial = self.logits is not None
        if self.logits is None:
            self.lose(self.cached - 1)

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index` of the row; None where they are not kept."""
        return self._kept.whole(index + self._offset)
