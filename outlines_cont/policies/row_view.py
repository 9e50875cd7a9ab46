"""`RowView`: the protocol of a row as policies read it: its tokens, their origin and probability, kept logits, what is excluded, retries,
and random numbers. Read only; imports no module of the package.
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
        """All ids of the row so far, prompt included. Do not change it, nor keep it after the call."""

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece that is being generated."""

    @property
    def healed(self) -> bytes:
        """The bytes at the beginning of the piece that were removed from the prompt and are respelled; not a part of its text."""

    @property
    def first_open(self) -> int:
        """Index of the first token that may be rewound: that of the piece, or the first whose text was not streamed yet."""

    def was_drawn(self, index: int) -> bool:
        """Return whether the token at `index` was sampled; forced and given tokens were not."""

    def was_given(self, index: int) -> bool:
        """Return whether the token at `index` of the piece was appended by a policy as given text, or re-encoded."""

    def sampling_logprob(self, index: int) -> float:
        """Return the log-probability with which the token at `index` was drawn, under mask and temperature; 0 if it was not drawn."""

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn at random, so that a second draw may give another token."""

    @property
    def retries(self) -> int:
        """How often the piece was rewound so far because a policy refused it."""

    def excluded(self, index: int) -> frozenset[int]:
        """Return the ids that are not drawn as token `index`, because what followed them was refused."""

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index`, as the model returned them; None if they are not kept. Do not change them."""

    def uniform(self, *key: int) -> float:
        """Return a random number in [0, 1) that depends on `key` and the random stream of the row only, and does not advance the stream.

        Let `key` contain the position that is decided on and a digest of the text before it: then each position has one decision.
        """
