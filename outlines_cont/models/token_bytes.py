"""How the pieces of a vocabulary spell bytes: a byte alphabet, byte fallback, a mark for the space.

A *piece* is the text by which a tokenizer names a token; it is not the text that the token stands for. The
functions here go from the one to the other by the rules with which the tokenizer encodes, so that the
joined bytes of an encoded text are the bytes of the text. Decoding single ids cannot give this: a token
may hold part of a character.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOT_IN_ALPHABET = "\uffff"  # cannot be encoded in Latin-1


def byte_alphabet() -> tuple[str, ...]:
    """Return the character that stands for each byte in a byte-level vocabulary; 256 characters, by byte.

    Printable Latin-1 characters stand for their own code; the other bytes take the characters from U+0100
    on, in order.
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
_BYTE_OF_CODE = np.full(0x200, -1, np.int16)  # by character code; -1 outside the alphabet, as for the last entry
_BYTE_OF_CODE[[ord(char) for char in byte_alphabet()]] = np.arange(256)


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; one with a character outside the alphabet stands for itself."""
    try:
        return piece.translate(_LATIN1_OF_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def _byte_level_pieces(pieces: Sequence[str]) -> list[bytes]:
    """Return the bytes of many byte-level pieces.

    Each character of the alphabet is one byte, so the pieces are looked up as one array and cut where they
    were joined.
    """
    codes = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), np.uint32)
    looked_up = _BYTE_OF_CODE[np.minimum(codes, len(_BYTE_OF_CODE) - 1)]
    joined = looked_up.astype(np.uint8).tobytes()
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    foreign = set(np.searchsorted(ends, np.flatnonzero(looked_up < 0), side="right").tolist())
    starts = itertools.chain([0], ends.tolist())
    cuts = (joined[start:end] for start, end in zip(starts, ends.tolist(), strict=False))
    return [pieces[i].encode() if i in foreign else data for i, data in enumerate(cuts)]


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
        """Return the bytes that `piece` stands for."""
        if self.byte_level:
            return byte_level_bytes(piece)
        if self.byte_fallback and piece.startswith("<0x") and (match := _FALLBACK_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for mark, text in self.replacements:
            piece = piece.replace(mark, text)
        return piece.encode()

    def pieces_bytes(self, pieces: Sequence[str]) -> list[bytes]:
        """Return `[self.piece_bytes(piece) for piece in pieces]`.

        Byte-level pieces are translated all at once: MEASURED
        """
        return _byte_level_pieces(pieces) if self.byte_level else list(map(self.piece_bytes, pieces))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a vocabulary is: the bytes of every id, and which ids have none.

    Attributes:
        token_bytes: The bytes of each id; None for special and unused ids, and for gaps.
        special_token_ids: Ids that stand for no text: control tokens, padding, unknown.
        eos_token_id: The id that ends a text, None if there is none.
        bos_token_id: The id that begins a text, None if there is none.
        has_prefix_space: Encoding puts a space in front that is not in the text.
    """

    token_bytes: tuple[bytes | None, ...]
    special_token_ids: frozenset[int]
    eos_token_id: int | None
    bos_token_id: int | None
    has_prefix_space: bool

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[int, bytes],
        *,
        special_token_ids: Iterable[int] = (),
        eos_token_id: int | None = None,
        bos_token_id: int | None = None,
        has_prefix_space: bool = False,
    ) -> TokenTable:
        """Make a table of the bytes by id; its length is the greatest id, special ones included, plus 1.

        An id that is special, or whose bytes are empty, gets None.
        """
        special = frozenset(special_token_ids)
        table = list(map(entries.get, range(max([-1, *entries, *special]) + 1)))
        for token_id in special:
            table[token_id] = None
        token_bytes = tuple(token or None for token in table)
        return cls(token_bytes, special, eos_token_id, bos_token_id, has_prefix_space)
