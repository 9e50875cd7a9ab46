"""`Speller`: spells bytes with the fewest tokens, by dynamic programming from the end, for text that the tokenizer does not encode exactly.
`TokenizerError` where no tokens spell it. `encode_bytes_inside`: ids for bytes that may begin inside a character.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlines_cont.errors import TokenizerError, shortened
from outlines_cont.interfaces import Tokenizer


class Speller:
    """Spells bytes with the fewest tokens, without the tokenizer's own rules; of ids with the same bytes the smallest is used."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_ids: dict[bytes, int] = {}
        self._longest: dict[bytes, int] = {}  # first two bytes (or the one) of a token -> length of the longest such
        for token_id, token in enumerate(token_bytes):
            if token and token not in self._token_ids:
                self._token_ids[token] = token_id
                self._longest[token[:2]] = max(len(token), self._longest.get(token[:2], 0))

    def spell(self, data: bytes) -> list[int]:
        """Return the fewest token ids whose joined bytes are `data`; of equally many, longer tokens are first.

        Raises `TokenizerError` where the tokens cannot spell `data`. Cost: the length of `data`, times that of the longest token with the
        same first two bytes.
        """
        unspelled = len(data) + 1
        count = [unspelled] * len(data) + [0]  # tokens from here to the end
        length = [0] * len(data)  # of the first of them
        for start in range(len(data) - 1, -1, -1):
            longest = max(self._longest.get(data[start : start + 2], 0), 1)
            for end in range(min(start + longest, len(data)), start, -1):
                if count[end] + 1 < count[start] and data[start:end] in self._token_ids:
                    count[start], length[start] = count[end] + 1, end - start
        if count[0] >= unspelled:
            raise _cannot_spell(data, max(start for start in range(len(data)) if count[start] >= unspelled))
        token_ids, start = [], 0
        while start < len(data):
            token_ids.append(self._token_ids[data[start : start + length[start]]])
            start += length[start]
        return token_ids


def _cannot_spell(data: bytes, offset: int) -> TokenizerError:
    """Return the error for `data`, whose byte at `offset` begins no sequence of tokens to the end."""
    text = data.decode("utf-8", errors="replace")
    position = len(data[:offset].decode("utf-8", errors="ignore"))
    return TokenizerError(
        f"expected text that the vocabulary can spell, received {shortened(repr(text))}, in which no tokens cover the "
        f"character {text[position]!r} at position {position}. Use other text, or a model whose vocabulary has all "
        "256 bytes."
    )


def encode_bytes_inside(tokenizer: Tokenizer, data: bytes, before: Sequence[int]) -> list[int]:
    """Return ids whose bytes are `data`, which follows `before` and may begin inside a character; `TokenizerError` without any."""
    try:
        return tokenizer.encode_inside(data.decode(), before) if data else []
    except UnicodeDecodeError:
        return Speller(tokenizer.token_bytes).spell(data)
