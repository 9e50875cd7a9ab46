"""`Shadow`: the negative prompt of a row, and behind it the tokens of its piece, which are fed beside those of the row."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol
from weakref import proxy

import torch

from outlines_cont.engine.drawing.kept_logits import KeptLogits
from outlines_cont.engine.guessing.expected import NOTHING_EXPECTED, Expected
from outlines_cont.kv import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import StateRow


class GuidedSequence(Protocol):
    """What a shadow asks of the row beside it; see `Row`."""

    token_ids: list[int]
    piece_start: int
    counts: Meter

    @property
    def feeds_all(self) -> bool:
        """Whether all that is pending is to be fed."""


class Shadow:
    """A sequence that a row is guided by. It is fed as a row is, but decides nothing: what the row appends and takes back is its text.

    Attributes:
        source: the negative prompt.
        cached: how many tokens have been fed; the rest is pending.
        logits: (V,) after the last token, where that was fed.
    """

    def __init__(self, source: StateRow, row: GuidedSequence, num_places: int) -> None:
        """Stand beside `row`, of which `num_places` tokens may be taken back without a forward."""
        self.source = source
        self.cached = source.cached
        self.logits = source.logits
        self._kept = KeptLogits(num_places)
        self._is_partial = False  # as those of the row
        self._expected = NOTHING_EXPECTED
        self._row: GuidedSequence = proxy(row)  # which holds this one
        self._offset = len(source.token_ids) - row.piece_start

    def fork(self, row: GuidedSequence) -> Shadow:
        """Return the same for a fork of the row."""
        fork = Shadow(self.source, row, 0)
        fork.cached, fork.logits, fork._is_partial = self.cached, self.logits, self._is_partial
        fork._kept, fork._expected = self._kept.fork(), self._expected
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
        """How many tokens are to be fed before the row can draw one, those included that are expected behind them."""
        pending = self.length - self.cached if self._row.feeds_all else 0
        return pending and pending + self._expected.num_pending

    @property
    def held(self) -> int:
        """How many tokens have keys and values, those included that are expected next."""
        return self.cached + self._expected.num_fed

    @property
    def base_kv(self) -> RowKV | None:
        """The keys and values that it begins with."""
        return self.source.kv

    @property
    def source_cached(self) -> int:
        """How many of them are those of the source."""
        return self.source.cached

    def chunk(self) -> list[int]:
        """Return the pending ids, and behind them those that are expected next."""
        if not self.num_pending:
            return []
        written = self._row.token_ids[max(self.cached - self._offset, self._row.piece_start) :]
        return [*self.source.token_ids[self.cached :], *written, *self._expected.token_ids]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted, ascending."""
        last = self.length - 1 - self.cached
        first = max(len(self.source.token_ids) - 1 - self.cached, last - self._kept.num_places, 0)
        return list(range(first, min(self.num_pending, chunk_size)))

    def unscored(self, fed: Container[int]) -> list[tuple[int, int]]:
        """Nothing: log-probabilities are those of the row."""
        return []

    def score(self, logprobs: Sequence[float]) -> None:
        """Never called."""

    def lose(self, cached: int) -> None:
        """Note that no more than the first `cached` tokens are held any longer."""
        if cached < self.held:
            self._row.counts.recomputed_tokens += self.held - min(cached, self.cached)
            self.cached, self._expected = min(self.cached, cached), self._expected.unfed()

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Note that `count` pending tokens were fed; `logits` holds the wanted ones by index into the chunk."""
        known = {self.cached + at + 1: line for at, line in logits.items()}
        own = min(count, self.length - self.cached)
        self._row.counts.fed_tokens += count
        self.cached += own
        for index in sorted(known):
            if index <= self.cached:
                self._kept.put(index, known[index])
        self._expected = self._expected.fed(count - own, known)
        self.logits, self._is_partial = known.get(self.cached), False

    # -- what the row asks ---------------------------------------------------------------------------------------------

    def expect(self, token_ids: Sequence[int]) -> None:
        """Feed tokens that were guessed behind what is pending."""
        self._expected = Expected(tuple(token_ids))

    def meet(self, token_id: int) -> None:
        """Follow the row by one token, which may have been expected, and fed."""
        before, self._expected = self._expected, self._expected.after(token_id)
        if not before.num_fed or before.token_ids[0] != token_id:
            return
        self.cached += 1
        self.logits, self._is_partial = before.logits.get(self.cached), False
        if self.logits is not None:
            self._kept.put(self.cached, self.logits)

    def rewind(self) -> None:
        """Follow the row, which has given tokens back."""
        length = self.length
        self.cached, self._expected = min(self.cached, length), NOTHING_EXPECTED
        self._kept.forget_after(length)
        self.logits = None  # see `need_logits`

    def restore(self) -> None:
        """Hold nothing but the source; see `Checkpoint`."""
        self._kept, self._expected = self._kept.emptied(), NOTHING_EXPECTED
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
