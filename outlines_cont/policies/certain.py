"""`Certain`: how far the text of a piece is certain, which is what a stream has shown. Nothing before that place is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlines_cont.interfaces import Tokenizer


@dataclass(frozen=True, slots=True)
class Certain:
    """A place in the text of a row.

    Attributes:
        token: index of the first token that is not wholly certain.
        offset: how many bytes of it are certain: fewer than it has.
    """

    token: int
    offset: int = 0

    @property
    def first_open(self) -> int:
        """Index of the first token no byte of which is certain."""
        return self.token + (self.offset > 0)

    def advanced(self, tokenizer: Tokenizer, token_ids: Sequence[int], held_bytes: int) -> Certain:
        """Return the place before the last `held_bytes` of a row, or this one, where that is further. Cost: the tokens behind it."""
        sizes = [len(tokenizer.text_bytes([token_id])) for token_id in token_ids[self.token :]]
        left = sum(sizes) - held_bytes - self.offset
        if left < 0 or (left == 0 and held_bytes):
            return self
        token, left = self.token, left + self.offset
        for size in sizes:
            if size > left:
                break
            token, left = token + 1, left - size
        return Certain(token, left)
