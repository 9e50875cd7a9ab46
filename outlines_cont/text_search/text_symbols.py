"""`SymbolReader`: incremental decoding of UTF-8 into the symbols that phrases are compared by: characters, case-folded if wanted, and
marks at word boundaries for whole-word search. Up to 3 bytes of an unfinished character are buffered; invalid bytes are U+FFFD.

Phrases are read in the same way as the output, so that to compare is to find one sequence of symbols in another: a phrase that begins or
ends with a word character has marks there, and is found as a whole word only.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

WORD_BEGINS, WORD_ENDS = "<word", "word>"
"""Symbols of the boundaries of words."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of some bytes, and what the reading of the next bytes depends on."""

    symbols: tuple[str, ...] = ()  # characters, and marks before and behind words
    held: bytes = b""  # bytes, at most 3, of a character that has only begun
    in_word: bool = False  # whether the last whole character was one of a word


BEGINNING = Symbols()


@dataclass(frozen=True, slots=True)
class SymbolReader:
    """Reads UTF-8 that arrives in chunks; invalid bytes are U+FFFD, as with `errors="replace"`."""

    ignore_case: bool = True  # characters are read as `str.casefold` writes them, which may be several
    whole_word: bool = False  # words have marks. A word is made of letters, digits and underscores, as `\\w` of `re`.

    def read(self, data: bytes, before: Symbols) -> Symbols:
        """Return what `data` is read as behind what was read `before`, of which only `held` and `in_word` count."""
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
        """Return what a whole text is read as, its end included."""
        read = self.read(text.encode(), BEGINNING)
        return (*read.symbols, WORD_ENDS) if read.in_word else read.symbols
