"""`GuidedRow`: a row whose tokens are drawn from a guided law; see `guidance`. Its log-probabilities are the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from outlines_cont.engine.drawing.draw_place import DrawPlace
from outlines_cont.engine.guessing.lookahead import Lookahead
from outlines_cont.engine.guided.guidance import guided_logits
from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.engine.row import Row, RowCheckpoint, Want
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import StateRow


class GuidedRow(Row):
    """A row with a shadow beside it.

    Attributes:
        scale: see `Guidance`.
    """

    def __init__(self, *args: Any, negative: StateRow, scale: float, **options: Any) -> None:
        """Begin or resume a piece as a `Row` does.

        Args:
            *args: those of `Row`.
            negative: the negative prompt.
            scale: see `Guidance`.
            **options: those of `Row`. Both sequences fit into the context: the piece ends where the first of them has no room left.
        """
        super().__init__(*args, **options)
        self.scale = scale
        self._shadow = Shadow(negative, self, self._kept.num_places)
        if self._context_length is not None:
            room = self._context_length - len(negative.token_ids)
            self._max_length = min(self.piece_start + room, self._max_length or self._context_length)

    @property
    def shadow(self) -> Shadow:
        """The negative prompt, and behind it the tokens of the piece."""
        return self._shadow

    @property
    def is_ready(self) -> bool:
        """Whether a token can be drawn: both sequences are fed."""
        return super().is_ready and self.shadow.is_ready

    @property
    def is_reading(self) -> bool:
        """Whether one of both waits for its tokens to be fed."""
        return super().is_reading or (self.want is Want.SAMPLE and self.shadow.num_pending > 0)

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) guided logits before the token at `index`; None where they are not kept."""
        positive, negative = super().logits_before(index), self.shadow.logits_before(index)
        return None if positive is None or negative is None else guided_logits(positive, negative, self.scale)

    def fork(self) -> Self:
        """Return a second row that goes on from here by itself, with a shadow of its own."""
        fork = super().fork()
        fork._shadow = self._shadow.fork(fork)
        return fork

    def restore(self, before: RowCheckpoint) -> None:
        """Become what the row was then, and the shadow with it."""
        super().restore(before)
        self.shadow.restore()
        if self.want is Want.SAMPLE:
            self.shadow.need_logits(self.mask)

    def guess(self, found: Lookahead) -> None:
        """Feed what was guessed behind what is pending of both sequences."""
        super().guess(found)
        self.shadow.expect(found.token_ids)

    def places_ahead(self) -> list[DrawPlace]:
        """Return none: what guided tokens are drawn from is made of both sequences where the row has come there."""
        return []

    def _append(self, token_id: int, kind: bytes, logprob: float, sampling_logprob: float) -> None:
        super()._append(token_id, kind, logprob, sampling_logprob)
        self.shadow.meet(token_id)

    def _want_sample(self, mask: TokenSet, sequences: list[list[int]], temperature: float | None) -> bool:
        is_asked_again = super()._want_sample(mask, sequences, temperature)
        if self.want is Want.SAMPLE:
            self.shadow.need_logits(self.mask)
        return is_asked_again

    def _rewind(self, count: int) -> None:
        super()._rewind(count)
        self.shadow.rewind()


def guided(rows: Sequence[Row], logits: torch.Tensor) -> torch.Tensor:
    """Return (R, V) logits that tokens are drawn from: those of the model, but for rows that are guided.

    Cost: some passes over the logits of guided rows; nothing where there are none.
    """
    found = [(i, row) for i, row in enumerate(rows) if isinstance(row, GuidedRow)]
    if not found:
        return logits
    at = [i for i, _ in found]
    negative = torch.stack([line for _, row in found if (line := row.shadow.logits) is not None])
    scales = torch.tensor([[row.scale] for _, row in found], dtype=logits.dtype, device=logits.device)
    drawn_from = logits.clone()
    drawn_from[at] = guided_logits(logits[at], negative, scales)
    return drawn_from
