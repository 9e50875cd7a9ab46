"""`TokenTable`, `PieceCode`: the bytes of every entry of a vocabulary, from how it is written: the byte alphabet of byte-level BPE
(GPT-2), byte fallback (`<0xE2>`), and SentencePiece's mark for the space (U+2581). Special ids have no bytes; added tokens that look
like markup (`<think>`) are listed.

A *piece* is the name of a token in the vocabulary, not its text. The functions here compute the one from the other by the rules with
which the tokenizer encodes, so that the joined bytes of an encoded text are the bytes of the text. Decoding single ids cannot do this:
a token may be part of a character.

`TokenStarts`: the tokens sorted by their bytes and found by prefix with binary search, for token healing. `num_open`: how many tokens to
remove from the end of a prompt, those of its longest suffix that begins a longer token; `spelling`: which tokens may be the first while
that text is spelled again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOT_IN_ALPHABET = "\uffff"  # cannot be encoded in Latin-1


def byte_alphabet() -> tuple[str, ...]:
    """Return the 256 characters by which a byte-level vocabulary writes the bytes, by byte.

    Printable Latin-1 characters are written for their own code; the other bytes as the characters from U+0100 on, in order.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(shifted)) for byte in range(256))


def _latin1_table() -> dict[int, str]:
    alphabet = byte_alphabet()
    outside = {code: _NOT_IN_ALPHABET for code in range(256) if chr(code) not in alphabet}
    return outside | {ord(char): chr(byte) for byte, char in enumerate(alphabet)}


_LATIN1_OF_ALPHABET = _latin1_table()


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; for one with a character outside the alphabet, those of its name."""
    try:
        return piece.translate(_LATIN1_OF_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


@dataclass(frozen=True, slots=True)
class PieceCode:
    """The rule by which the pieces of one vocabulary spell bytes.

    Attributes:
        byte_level: Pieces are written in the byte alphabet; then nothing else applies.
        byte_fallback: A piece such as `<0xE2>` is that one byte.
        replacements: Pairs (mark, text), applied in order; SentencePiece writes a space as U+2581.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()

    def piece_bytes(self, piece: str) -> bytes:
        """Return the bytes of the token that is named `piece`."""
        if self.byte_level:
            return byte_level_bytes(piece)
        if self.byte_fallback and piece.startswith("<0x") and (match := _FALLBACK_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for mark, text in self.replacements:
            piece = piece.replace(mark, text)
        return piece.encode()

    def pieces_bytes(self, pieces: Sequence[str]) -> list[bytes]:
        """Return `[self.piece_bytes(piece) for piece in pieces]`, faster for byte-level pieces."""
        if self.byte_level:
            try:
                return [piece.translate(_LATIN1_OF_ALPHABET).encode("latin-1") for piece in pieces]
            except UnicodeEncodeError:
                pass  # some piece has a character outside the alphabet
        return [self.piece_bytes(piece) for piece in pieces]


class TokenTable:
    """The tokens of a vocabulary: the bytes of every id, and the special ids.

    Args:
        entries: The bytes of each id; of a special one its name.
        special_token_ids: Ids without text: control tokens, padding, unknown.
        eos_token_id, bos_token_id: The ids that end and begin a text, or None.
        has_prefix_space: Encoding puts a space in front that is not in the text.
        unknown_token_ids: Those of the special ids by which text is encoded that no token spells.
        added: The texts of added tokens, by id.

    Attributes:
        token_bytes: The bytes of each id; None for special and unused ids, and for gaps.
        special_tokens: How special ids are written, such as `</s>`; without those that have no name.
        markup_tokens: Added tokens with bytes that steer a model all the same, such as `<tool_response>`, by id; see `markup_in`.
    """

    def __init__(
        self,
        entries: Mapping[int, bytes],
        *,
        special_token_ids: Iterable[int],
        eos_token_id: int | None,
        bos_token_id: int | None,
        has_prefix_space: bool = False,
        unknown_token_ids: Iterable[int] = (),
        added: Mapping[int, str] | None = None,
    ) -> None:
        special = self.special_token_ids = frozenset(special_token_ids)
        self.eos_token_id = eos_token_id
        self.bos_token_id = bos_token_id
        self.has_prefix_space = has_prefix_space
        self.unknown_token_ids = frozenset(unknown_token_ids)
        size = 1 + max(max(entries, default=-1), max(special, default=-1))
        self.token_bytes = tuple([None if i in special else entries.get(i) or None for i in range(size)])
        self.special_tokens = {i: entries[i].decode(errors="replace") for i in sorted(special & entries.keys())}
        self.markup_tokens = markup_in({i: text for i, text in (added or {}).items() if i not in special})


# Punctuation at both ends, and a letter or a digit between.
_MARKUP = re.compile(r"\s*[^\w\s].*\w.*[^\w\s]\s*", re.DOTALL)


# Tags of HTML that format text, as Gemma has them; they steer no model. Not `<s>`, by which many begin a text.
_HTML = re.compile(r"</?(?:b|blockquote|caption|code|em|h[1-6]|i|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|u)>")


def markup_in(added: Mapping[int, str]) -> dict[int, str]:
    """Return those of the added tokens that look like markup: they begin and end with punctuation, with a letter or digit between.

    So `<think>`, `[/INST]` and `### Answer:` are markup; words, `C++`, `->`, runs of spaces, and tags of HTML that format text are not.
    """
    found = {token_id: text for token_id, text in sorted(added.items()) if _MARKUP.fullmatch(text)}
    return {token_id: text for token_id, text in found.items() if not _HTML.fullmatch(text)}


class TokenStarts:
    """Looks up tokens by the bytes with which they begin. Cost: one sort, 0.15 s for 131,072 tokens; 1.2 MB."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_bytes = token_bytes
        spelled = sorted((data, token_id) for token_id, data in enumerate(token_bytes) if data)
        self._texts = [data for data, _ in spelled]
        self._ids = np.array([token_id for _, token_id in spelled], dtype=np.int64)
        self._longest = max(map(len, self._texts), default=0)
        # First two bytes (or the one) of a text -> length of the longest token that begins so.
        self._reach: dict[bytes, int] = {}
        for data in self._texts:
            for first in (data[:1], data[:2]):
                self._reach[first] = max(self._reach.get(first, 0), len(data))

    def num_open(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens to remove from the end of a text, because a longer token might have covered them and the continuation.

        They cover the longest suffix of the text that is a proper prefix of some token. Special tokens and the first token are kept.
        Cost: 30 us for 131,072 tokens.
        """
        data, sizes = self._tail(token_ids)
        most = min(len(data), self._longest - 1)
        open_bytes = next((size for size in range(most, 0, -1) if self._begins_longer(data[-size:])), 0)
        count = 0
        while open_bytes > 0:
            open_bytes -= sizes[count]
            count += 1
        return count

    def spelling(self, text: bytes) -> NDArray[np.int64]:
        """Return the ids, ascending, that may be the first token of a text that begins with `text`.

        They begin with `text`, or are a prefix of it whose rest other tokens can spell. Cost: two look-ups per pair of positions in `text`.
        """
        ends = self._spelled_from(text)
        found = [self._ids[self._beginning_with(text)]]
        found += [self._ids[self._equal(text[:end])] for end in range(1, len(text)) if ends[end]]
        return np.sort(np.concatenate(found))

    def _tail(self, token_ids: Sequence[int]) -> tuple[bytes, list[int]]:
        """Return the bytes of the last tokens, as many as matter, and how many each has, the last token first."""
        data, sizes = b"", []
        for index in range(len(token_ids) - 1, 0, -1):
            token = self._token_bytes[token_ids[index]] if token_ids[index] < len(self._token_bytes) else None
            if not token or len(data) >= self._longest:
                break
            data = token + data
            sizes.append(len(token))
        return data, sizes

    def _begins_longer(self, text: bytes) -> bool:
        if self._reach.get(text[:2], 0) <= len(text):
            return False
        at = bisect_right(self._texts, text)
        return at < len(self._texts) and self._texts[at].startswith(text)

    def _spelled_from(self, text: bytes) -> list[bool]:
        """Return for every position of `text` whether tokens can spell it from there on, or beyond its end."""
        spelled = [False] * len(text) + [True]
        for start in range(len(text) - 1, -1, -1):
            spelled[start] = len(self._ids[self._beginning_with(text[start:])]) > 0 or any(
                spelled[end] and len(self._ids[self._equal(text[start:end])]) for end in range(start + 1, len(text))
            )
        return spelled

    def _equal(self, text: bytes) -> slice:
        return slice(bisect_left(self._texts, text), bisect_right(self._texts, text))

    def _beginning_with(self, text: bytes) -> slice:
        """Return the range of the sorted tokens that begin with `text`, one byte or more."""
        # The smallest text after all that begin with `text`; bytes of 255 cannot be incremented.
        head = text.rstrip(b"\xff")
        stop = bisect_left(self._texts, head[:-1] + bytes([head[-1] + 1])) if head else len(self._texts)
        return slice(bisect_left(self._texts, text), stop)
