"""`RowAhead`: a row as it would be some tokens later, for policies that are asked about tokens that are not written yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlines_cont.policies.row_view import RowView

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RowAhead:
    """A view of a row with more tokens; see `RowView`.

    Attributes:
        token_ids: all ids, those of the row and those that are not written yet; whoever asks appends to them.
        row: the row as it is.
    """

    token_ids: list[int]
    row: RowView

    @property
    def piece_start(self) -> int:
        """That of the row."""
        return self.row.piece_start

    @property
    def healed(self) -> bytes:
        """Those of the row."""
        return self.row.healed

    @property
    def first_open(self) -> int:
        """That of the row."""
        return self.row.first_open

    def was_drawn(self, index: int) -> bool:
        """Return whether the token is written and was drawn."""
        return index < len(self.row.token_ids) and self.row.was_drawn(index)

    def was_given(self, index: int) -> bool:
        """Return whether the token is written and was given."""
        return index < len(self.row.token_ids) and self.row.was_given(index)

    def sampling_logprob(self, index: int) -> float:
        """Return that of a token that is written."""
        return self.row.sampling_logprob(index)

    @property
    def is_random(self) -> bool:
        """Whether tokens of the row are drawn at random."""
        return self.row.is_random

    @property
    def retries(self) -> int:
        """Those of the row."""
        return self.row.retries

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that the row does not draw there."""
        return self.row.excluded(index)

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return the logits that the row keeps."""
        return self.row.logits_before(index)

    def uniform(self, *key: int) -> float:
        """Return the number of the row."""
        return self.row.uniform(*key)
