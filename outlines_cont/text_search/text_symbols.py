"""`SymbolReader`: incremental decoding of UTF-8 into the symbols that phrases are compared by: characters, case-folded if wanted, and marks
at word boundaries for whole-word search. Its state: up to 3 bytes of an unfinished character, and whether the last one is in a word.
Invalid bytes are U+FFFD.

Phrases are decoded in the same way as the output: one that begins or ends with a word character has marks there, and is found as a whole
word only.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

WORD_BEGINS, WORD_ENDS = "<word", "word>"
"""Symbols of the boundaries of words."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of some bytes, and the state of the decoder after them."""

    symbols: tuple[str, ...] = ()  # characters, and marks before and after words
    held: bytes = b""  # bytes of an unfinished character, at most 3
    in_word: bool = False  # whether the last whole character belongs to a word


BEGINNING = Symbols()


@dataclass(frozen=True, slots=True)
class SymbolReader:
    """Reads UTF-8 that arrives in chunks; invalid bytes are U+FFFD, as with `errors="replace"`."""

    ignore_case: bool = True  # a character becomes that or those of `str.casefold`
    whole_word: bool = False  # words have marks. A word is made of letters, digits and underscores, as `\\w` of `re`.

    def read(self, data: bytes, before: Symbols) -> Symbols:
        """Return the symbols of `data`, given the state `before`, of which only `held` and `in_word` count."""
        data = before.held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        if not self.whole_word:
            return Symbols(tuple(text.casefold() if self.ignore_case else text), data[used:])
        symbols: list[str] = []
        in_word = before.in_word
        for character in text:
            is_word = character.isalnum() or character == "_"
            if is_word is not in_word:
                symbols.append(WORD_BEGINS if is_word else WORD_ENDS)
            symbols += character.casefold() if self.ignore_case else character
            in_word = is_word
        return Symbols(tuple(symbols), data[used:], in_word)

    def phrase(self, text: str) -> tuple[str, ...]:
        """Return the symbols of a whole text, with the mark at its end."""
        read = self.read(text.encode(), BEGINNING)
        return (*read.symbols, WORD_ENDS) if read.in_word else read.symbols
