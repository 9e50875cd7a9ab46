"""`RowView`: the protocol of a row as policies read it: its tokens, how each came about and with which probability, and kept logits. Read
only; imports nothing at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class RowView(Protocol):
    """What a policy may read of a row."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids of the row so far, prompt included. Not to be changed, nor kept."""

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece that is being generated."""

    @property
    def healed(self) -> bytes:
        """The bytes at the beginning of the piece that stood in the row before it, and are spelled anew: not a part of its text."""

    @property
    def first_open(self) -> int:
        """Index of the first token that may yet be rewound: that of the piece, or the first whose text was not shown yet."""

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` was drawn, so that another might have been; no forced and no given one is."""

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was put there by a policy as given text, or spelled anew."""

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn, masked and tempered; 0 where it was not drawn."""

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that another try may go otherwise by itself."""

    @property
    def retries(self) -> int:
        """How often the piece has gone back so far."""

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that are not drawn as token `index`, as what followed them was refused."""

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, as the model returned them; None where they are not kept. Not to be changed."""

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) for a decision; the same for the same `key`, whatever is drawn or refused.

        It depends on the row's stream of random numbers, but takes none from it. Put into `key` the position that it is about, and what
        distinguishes the text before it from others, so that one decision is made for each position.
        """
