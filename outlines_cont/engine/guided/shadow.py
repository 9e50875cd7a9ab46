"""`Shadow`: the second sequence of classifier-free guidance: the negative prompt of a row, followed by the generated tokens of that row.
It is fed in the same forwards with a KV cache of its own, and follows every append and rewind. `guided`: the guided logits of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import proxy

import torch

from outlines_cont.engine.guessing.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.guided.guidance import guided_logits
from outlines_cont.engine.parts.fed_tokens import FedSequence, FedTokens
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import StateRow


class GuidedSequence(Protocol):
    """What a shadow reads of the row beside it; see `Row`."""

    counts: Meter

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece."""

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included."""

    @property
    def feeds_all(self) -> bool:
        """Whether all that is pending is to be fed."""


class Shadow(FedSequence):
    """The negative prompt of a row and behind it the row's generated tokens; it is fed as a row is, but decides nothing."""

    def __init__(self, source: StateRow, row: GuidedSequence, num_places: int, scale: float = 1.0) -> None:
        """Begin with the negative prompt, `source`, beside `row`, whose last `num_places` tokens may be rewound without a forward."""
        super().__init__(source, FedTokens(source.cached, source.logits, row.counts))
        self.scale = scale
        self.feed.kept.num_places = num_places
        self._row: GuidedSequence = proxy(row)  # which holds this one
        self._offset = len(source.token_ids) - row.piece_start

    def fork(self, row: GuidedSequence) -> Shadow:
        """Return the same for a fork of the row."""
        fork = Shadow(self.source, row, 0, self.scale)
        fork.feed = self.feed.fork()
        return fork

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self._row.token_ids) + self._offset

    @property
    def is_ready(self) -> bool:
        """Whether the logits at the end are known."""
        return self.feed.is_ready(self.length)

    # -- what a batch asks of all sequences that it feeds ----------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row can draw one, those included that are expected behind them."""
        return self.feed.num_pending(self.length) if self._row.feeds_all else 0

    @property
    def source_cached(self) -> int:
        """How many of them are those of the source."""
        return self.source.cached

    def chunk(self) -> list[int]:
        """Return the pending ids, and behind them those that are expected next."""
        if not self.num_pending:
            return []
        written = self._row.token_ids[max(self.cached - self._offset, self._row.piece_start) :]
        return [*self.source.token_ids[self.cached :], *written, *self.feed.expected.token_ids]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted, ascending."""
        last = self.length - 1 - self.cached
        first = max(len(self.source.token_ids) - 1 - self.cached, last - self.feed.kept.num_places, 0)
        return list(range(first, min(self.num_pending, chunk_size)))

    # -- what the row asks ---------------------------------------------------------------------------------------------

    def expect(self, token_ids: Sequence[int]) -> None:
        """Feed tokens that were guessed behind what is pending."""
        self.feed.expected = Expected(tuple(token_ids))

    def meet(self, token_id: int) -> None:
        """Follow the row by one token, which may have been expected, and fed."""
        if self.feed.expected.token_ids:
            self.feed.meet(token_id)

    def rewind(self) -> None:
        """Follow the row, which was rewound."""
        self.feed.rewind(self.length)
        self.feed.logits = None  # see `need_logits`

    def restore(self) -> None:
        """Hold nothing but the source; see `Checkpoint`."""
        self.feed.kept, self.feed.expected = self.feed.kept.emptied(), NOTHING_EXPECTED
        self.lose(self.source_cached)
        self.feed.logits, self.feed.is_partial = self.source.logits, False

    def need_logits(self, mask: TokenSet) -> None:
        """Make sure that something is pending, or that the logits at the end are known for a mask."""
        self.feed.need_logits(self.length, mask)

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index` of the row; None where they are not kept."""
        return self.feed.kept.whole(index + self._offset)


def guided(shadows: Sequence[Shadow | None], logits: torch.Tensor) -> torch.Tensor:
    """Return (R, V) logits that tokens are drawn from: those of the model, but for rows that have a shadow.

    Cost: some passes over the logits of guided rows; nothing where there are none.
    """
    found = [(i, shadow) for i, shadow in enumerate(shadows) if shadow is not None]
    if not found:
        return logits
    at = [i for i, _ in found]
    negative = torch.stack([shadow.logits for _, shadow in found if shadow.logits is not None])
    scales = torch.tensor([[shadow.scale] for _, shadow in found], dtype=logits.dtype, device=logits.device)
    drawn_from = logits.clone()
    drawn_from[at] = guided_logits(logits[at], negative, scales)
    return drawn_from
