"""`Certain`: a position in the tokens of a row, with a byte offset, before which nothing is rewound any more, so that a stream may show
it. `PieceText`: byte arithmetic over the tokens of a generated span (piece): that position, which only advances, how much of a healed
prompt is still to be respelled, and the bytes between two positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from outlines_cont.interfaces import Tokenizer


@dataclass(frozen=True, slots=True)
class Certain:
    """A position in the text of a row: a token, and a byte offset in it. Nothing before it is rewound."""

    token: int  # index of the first token that is not wholly certain
    offset: int = 0  # how many bytes of it are certain: fewer than it has

    @property
    def first_open(self) -> int:
        """Index of the first token no byte of which is certain."""
        return self.token + (self.offset > 0)

    def advanced(self, tokenizer: Tokenizer, token_ids: Sequence[int], held_bytes: int) -> Certain:
        """Return the position before the last `held_bytes` of a row, or this one if further. Cost: O(the tokens behind it)."""
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


@dataclass(frozen=True, slots=True, eq=False)
class PieceText:
    """Where the text of a generated span (piece) begins, and how far it is final; the tokens themselves are those of the row."""

    # The bytes at its beginning that stood in the row before, and are spelled anew; mostly none, see `healing`.
    healed: bytes
    start: int  # index of the first token of the piece
    tokenizer: Tokenizer  # that of the model
    certain: Certain | None = None  # how far it is certain; None where it is not streamed

    @property
    def begin(self) -> Certain:
        """Where it begins, behind what is healed, whose tokens may be yet to come."""
        return Certain(self.start, len(self.healed))

    def certain_until(self, token_ids: Sequence[int], held_bytes: int) -> Certain:
        """Return how far it is certain if the last `held_bytes` may be rewound. Cost: O(the tokens that were not certain before)."""
        return (self.certain or self.begin).advanced(self.tokenizer, token_ids, held_bytes)

    def shown(self, certain: Certain) -> Self:
        """Return the same, certain up to a position."""
        return replace(self, certain=certain)

    def first_open(self, token_ids: Sequence[int]) -> int:
        """Return the index of the first token that may yet be rewound: that of the piece, or the first whose text was not shown."""
        certain = self.certain
        if certain is None or self.num_healed_from(token_ids, certain.token) >= max(certain.offset, 1):
            return self.start  # nothing of the new text is certain
        return max(self.start, certain.first_open)

    def between(self, token_ids: Sequence[int], start: Certain, stop: Certain) -> bytes:
        """Return the bytes from one position to another, without what is healed."""
        offset = max(start.offset, self.num_healed_from(token_ids, start.token))
        data = self.tokenizer.text_bytes(token_ids[start.token : stop.token + 1])
        last = len(self.tokenizer.text_bytes(token_ids[stop.token : stop.token + 1]))
        return data[offset : len(data) - last + stop.offset]

    def num_unspelled(self, token_ids: Sequence[int]) -> int:
        """Return how many bytes of the healed end of the prompt are not respelled yet."""
        left = len(self.healed)
        for index in range(self.start, len(token_ids)):
            if left <= 0:
                break
            left -= self._size(token_ids[index])
        return max(left, 0)

    def num_healed_from(self, token_ids: Sequence[int], index: int) -> int:
        """Return how many of the bytes that respell the healed end of the prompt are in token `index`, or behind it."""
        if index - self.start >= len(self.healed):  # a token has a byte at least
            return 0
        return max(len(self.healed) - len(self.tokenizer.text_bytes(token_ids[self.start : index])), 0)

    def num_healing(self, token_ids: Sequence[int], following: Sequence[int]) -> int:
        """Return how many of the tokens `following` a row only respell the healed end of the prompt."""
        left, count = self.num_unspelled(token_ids), 0
        while count < len(following) and left > 0:
            left -= self._size(following[count])
            count += left >= 0
        return count

    def _size(self, token_id: int) -> int:
        return len(self.tokenizer.text_bytes([token_id]))
