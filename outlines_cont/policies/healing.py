"""Token healing: how many tokens are removed from the end of a row before generation (`healing_of`): those of the longest suffix of its
text that begins some longer token of the vocabulary, found by binary search in the sorted vocabulary (`TokenStarts`); not special tokens,
nor the first. The generated tokens must spell the removed bytes first; the policies' masks enforce this.

A text that ends in `http:` is followed by `//` more often than a model predicts that has read the token `:`, as it was trained on the
token `://`. The mask allows the tokens that begin the bytes that are left to spell, or that begin with all of them; each is sampled as
always.

`PieceText`: byte offsets in the tokens of a generated span (piece): how far its text is final, so that a stream may show it, how much of
a healed prompt is still to be respelled, and the bytes between two positions. `TextPosition`: a token and a byte offset in it.
`text_before`: the end of the text before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.models.tokenizer.token_bytes import TokenStarts

if TYPE_CHECKING:
    import torch

    from outlines_cont.policies.policy import RowView


@dataclass(frozen=True, slots=True, eq=False)
class Healing:
    """The tokens that are removed from the end of a row."""

    count: int = 0  # how many
    # (V,) before some of them, by their index, if they are known
    logits: Mapping[int, torch.Tensor] = field(default_factory=dict)


NO_HEALING = Healing()


def healing_of(model: LanguageModel, token_ids: Sequence[int], num_kept: int = 0) -> Healing:
    """Return what is removed from the end of a row before generation begins.

    None of the first `num_kept` tokens is: those up to the last image, of whose tokens some have text.
    """
    count = token_starts(model).num_open(token_ids[max(num_kept - 1, 0) :])  # which keeps the first
    return Healing(count) if count else NO_HEALING


def token_starts(model: LanguageModel) -> TokenStarts:
    """Return the tokens of a model, sorted for search by their first bytes; computed once per model."""
    if "token_starts" not in model.memo:
        model.memo["token_starts"] = TokenStarts(model.tokenizer.token_bytes[: model.vocab_size])
    found: TokenStarts = model.memo["token_starts"]
    return found


@dataclass(frozen=True, slots=True)
class TextPosition:
    """A position in the text of a row: the index of a token, and a byte offset in it, smaller than its number of bytes."""

    token: int
    offset: int = 0

    def advanced(self, tokenizer: Tokenizer, token_ids: Sequence[int], held_bytes: int) -> TextPosition:
        """Return the position before the last `held_bytes` of a row, or this one if it is later. Cost: O(tokens after this one)."""
        if not held_bytes and not self.offset:
            return TextPosition(len(token_ids))
        final = len(tokenizer.text_bytes(token_ids[self.token :])) - held_bytes
        if final < self.offset or (final == self.offset and held_bytes):
            return self
        return position_at(tokenizer, token_ids, final, self.token)


def position_at(tokenizer: Tokenizer, token_ids: Sequence[int], num_bytes: int, first: int = 0) -> TextPosition:
    """Return the position `num_bytes` behind the beginning of token `first`, after tokens without text that are there."""
    for token in range(first, len(token_ids)):
        size = len(tokenizer.text_bytes(token_ids[token : token + 1]))
        if size > num_bytes:
            return TextPosition(token, num_bytes)
        num_bytes -= size
    return TextPosition(len(token_ids), num_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class PieceText:
    """Where the text of a generated span (piece) begins, and how far it is final; the tokens themselves are those of the row."""

    healed: bytes  # the bytes at its beginning that were removed from the prompt and are respelled, see `healing`
    start: int  # index of the first token of the piece
    tokenizer: Tokenizer  # that of the model
    # the position before which nothing is rewound any more; None if the piece is not streamed
    final: TextPosition | None = None

    @property
    def begin(self) -> TextPosition:
        """Where it begins, after the healed bytes, which may not be generated yet."""
        return TextPosition(self.start, len(self.healed))

    def final_until(self, token_ids: Sequence[int], held_bytes: int) -> TextPosition:
        """Return how far it is final if the last `held_bytes` may be rewound. Cost: O(tokens that were not final before)."""
        return (self.final or self.begin).advanced(self.tokenizer, token_ids, held_bytes)

    def with_final(self, position: TextPosition) -> Self:
        """Return the same text, final up to a position."""
        return replace(self, final=position)

    def first_open(self, token_ids: Sequence[int]) -> int:
        """Return the index of the first token that may be rewound: that of the piece, or the first without a final byte."""
        final = self.final
        if final is None or self.num_healed_from(token_ids, final.token) >= max(final.offset, 1):
            return self.start
        return max(self.start, final.token + (final.offset > 0))

    def between(self, token_ids: Sequence[int], start: TextPosition, stop: TextPosition) -> bytes:
        """Return the bytes from one position to another, without healed ones."""
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
            left -= len(self.tokenizer.text_bytes(token_ids[index : index + 1]))
        return max(left, 0)

    def num_healed_from(self, token_ids: Sequence[int], index: int) -> int:
        """Return how many of the bytes that respell the healed end of the prompt are in token `index`, or after it."""
        if index - self.start >= len(self.healed):  # each token has a byte or more
            return 0
        return max(len(self.healed) - len(self.tokenizer.text_bytes(token_ids[self.start : index])), 0)

    def num_healing(self, token_ids: Sequence[int], following: Sequence[int]) -> int:
        """Return how many of the tokens `following` those of a row only respell the healed end of the prompt."""
        left, count = self.num_unspelled(token_ids), 0
        while count < len(following) and left > 0:
            left -= len(self.tokenizer.text_bytes([following[count]]))
            count += left >= 0
        return count


def text_before(row: RowView, tokenizer: Tokenizer, num_bytes: int) -> bytes:
    """Return the end of the text before a piece, with its healed end: that of the fewest last tokens that have `num_bytes` or more."""
    first, size = row.piece_start, 0
    while first and size < num_bytes:
        first -= 1
        size += len(tokenizer.text_bytes(row.token_ids[first : first + 1]))
    return tokenizer.text_bytes(row.token_ids[first : row.piece_start]) + row.healed
