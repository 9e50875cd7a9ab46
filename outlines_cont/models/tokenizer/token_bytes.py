"""`TokenTable`, `PieceCode`: the bytes of every entry of a vocabulary, from how it is written: the byte alphabet of byte-level BPE
(GPT-2), byte fallback (`<0xE2>`), and SentencePiece's mark for the space (U+2581). Special ids have no bytes; added tokens that look
like markup (`<think>`) are listed.

A *piece* is the text by which a tokenizer names a token, not the text that the token stands for. The functions here go from the one to
the other by the rules with which the tokenizer encodes, so that the joined bytes of an encoded text are the bytes of the text. Decoding
single ids cannot give this: a token may hold part of a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOT_IN_ALPHABET = "\uffff"  # cannot be encoded in Latin-1


def byte_alphabet() -> tuple[str, ...]:
    """Return the 256 characters that stand for the bytes in a byte-level vocabulary, by byte.

    Printable Latin-1 characters stand for their own code; the other bytes take the characters from U+0100 on, in order.
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
    """Return the bytes of a byte-level piece; one with a character outside the alphabet stands for itself."""
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
        """Return the bytes that `piece` stands for."""
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


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of a vocabulary: the bytes of every id, and the special ids.

    Attributes:
        token_bytes: The bytes of each id; None for special and unused ids, and for gaps.
        special_token_ids: Ids that stand for no text: control tokens, padding, unknown.
        has_prefix_space: Encoding puts a space in front that is not in the text.
        special_tokens: How special ids are written, such as `</s>`; without those that have no name.
        unknown_token_ids: Those of the special ids that stand for text that no token spells.
        markup_tokens: Added tokens with bytes that steer a model all the same, such as `<tool_response>`, by id; see `markup_in`.
    """

    token_bytes: tuple[bytes | None, ...]
    special_token_ids: frozenset[int]
    eos_token_id: int | None
    bos_token_id: int | None
    has_prefix_space: bool
    special_tokens: Mapping[int, str]
    unknown_token_ids: frozenset[int] = frozenset()
    markup_tokens: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[int, bytes],
        *,
        special_token_ids: Iterable[int] = (),
        eos_token_id: int | None = None,
        bos_token_id: int | None = None,
        has_prefix_space: bool = False,
        unknown_token_ids: Iterable[int] = (),
        added: Mapping[int, str] | None = None,
    ) -> TokenTable:
        """Make a table of the bytes by id; its length is the greatest id, special ones included, plus 1.

        An id that is special, or whose bytes are empty, gets None; the bytes of a special one are its name. `added` has the texts of added
        tokens.
        """
        special = frozenset(special_token_ids)
        size = 1 + max(max(entries, default=-1), max(special, default=-1))
        table: list[bytes | None] = [entries.get(token_id) or None for token_id in range(size)]
        for token_id in special:
            table[token_id] = None
        names = {token_id: entries[token_id].decode(errors="replace") for token_id in sorted(special & entries.keys())}
        unknown = frozenset(unknown_token_ids)
        markup = markup_in({token_id: text for token_id, text in (added or {}).items() if token_id not in special})
        return cls(tuple(table), special, eos_token_id, bos_token_id, has_prefix_space, names, unknown, markup)


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
