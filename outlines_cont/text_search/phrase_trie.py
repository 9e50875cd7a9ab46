"""`SymbolReader`: incremental decoding of UTF-8 into characters, for patterns, and into the symbols that phrases are compared by: these,
case-folded if wanted, and marks at word boundaries for whole-word search. Its state: up to 3 bytes of an unfinished character, and whether
the last one is in a word. Invalid bytes are U+FFFD.

Phrases are decoded in the same way as the output: one that begins or ends with a word character has marks there, and is found as a whole
word only.

`PhraseTrie`: the Aho-Corasick automaton of many phrases, over any symbols, fed one at a time; `depth` of a node is the length of the
longest suffix read so far that begins a phrase, `ends` the phrases that end there. Failure links are made at construction, by breadth-first
search; transitions along them when first taken, and cached.

Aho and Corasick 1975, "Efficient String Matching". A step, but the first, costs the same for any number of phrases.

`load_phrases`: reads phrases with factors for `ban` from a JSON file: `[["phrase", factor], ...]`, as the authors of antislop publish
them, a list of phrases (factor 0), or an object. Of duplicates in a list the smallest factor counts.
"""

from __future__ import annotations

import codecs
import json
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Generic, TypeVar

from outlines_cont.errors import OptionError

WORD_BEGINS, WORD_ENDS = "<word", "word>"
"""Symbols of the boundaries of words."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of some bytes, and the state of the decoder after them.

    Positions are offsets from the first of these bytes; they are negative for a character that began before it.
    """

    characters: tuple[tuple[int, bytes], ...] = ()  # each whole character with its position
    symbols: tuple[str, ...] = ()  # characters, and marks before and after words
    places: tuple[
        tuple[int, int], ...
    ] = ()  # for each symbol the position of its character, and its number among those of it
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
        data, at, in_word = before.held + data, -len(before.held), before.in_word
        characters: list[tuple[int, bytes]] = []
        symbols: list[str] = []
        places: list[tuple[int, int]] = []
        for character, size in _characters(data):
            new = [*(character.casefold() if self.ignore_case else character)]
            if self.whole_word and in_word is not (is_word := character.isalnum() or character == "_"):
                new.insert(0, WORD_BEGINS if is_word else WORD_ENDS)
                in_word = is_word
            characters.append((at, character.encode()))
            symbols += new
            places += [(at, number) for number in range(len(new))]
            at += size
        return Symbols(tuple(characters), tuple(symbols), tuple(places), data[len(before.held) + at :], in_word)

    def phrase(self, text: str) -> tuple[str, ...]:
        """Return the symbols of a whole text, with the mark at its end."""
        read = self.read(text.encode(), BEGINNING)
        return (*read.symbols, WORD_ENDS) if read.in_word else read.symbols


def _characters(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the whole characters of some bytes, U+FFFD for what is none, each with the number of its bytes in `data`."""
    at = 0
    while text := codecs.utf_8_decode(data[at : at + 4], "replace", False)[0]:
        size = len(text[0].encode())
        try:
            data[at : at + size].decode()
        except UnicodeDecodeError as error:
            size = error.end
        yield text[0], size
        at += size


T = TypeVar("T", bound=Hashable)


class PhraseTrie(Generic[T]):
    """The Aho-Corasick automaton of some phrases, each a sequence of one symbol or more; node 0 is the root.

    Attributes:
        depth: for each node the number of symbols that lead to it, the longest suffix read so far that begins a phrase.
        length: for each phrase its number of symbols.
        phrases: the phrases by their numbers.
    """

    __slots__ = ("_children", "_ends", "_failure", "_owner", "_steps", "_symbols", "depth", "length", "phrases")

    def __init__(self, phrases: Iterable[Sequence[T]]) -> None:
        """Build the trie and its failure links. Cost: 1 us per symbol; some 300 bytes each."""
        self._children: list[dict[T, int]] = [{}]
        self._failure = [0]
        self._ends: list[tuple[int, ...]] = [()]
        self._owner = [0]  # a phrase that begins with what leads to the node
        self.depth = [0]
        self.phrases = [*phrases]
        self.length = [*map(len, self.phrases)]
        for number, phrase in enumerate(self.phrases):
            node = 0
            for symbol in phrase:
                node = self._children[node].get(symbol) or self._add_child(node, symbol, number)
            self._ends[node] += (number,)
        self._symbols = {symbol for children in self._children for symbol in children}
        self._link()
        # The steps of a node: to its children, and along failure links when they are first taken.
        self._steps = [dict(children) for children in self._children]

    def step(self, node: int, symbol: T) -> int:
        """Return the node after one more symbol. Cost: 0.1 us; the first time that a step is taken, its failure links."""
        found = self._steps[node].get(symbol)
        if found is None:
            if symbol not in self._symbols:  # most of Unicode is in no phrase, and is not cached
                return 0
            found = self._steps[node][symbol] = self._after_failure(node, symbol)
        return found

    def ends(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the phrases that end here, the longest first."""
        return self._ends[node]

    def path(self, node: int, start: int, stop: int) -> Sequence[T]:
        """Return the symbols from number `start` up to `stop` of those that lead to a node."""
        return self.phrases[self._owner[node]][start:stop] if start < stop else ()

    def _after_failure(self, node: int, symbol: T) -> int:
        while node and symbol not in self._children[node]:
            node = self._failure[node]
        return self._children[node].get(symbol, 0)

    def _add_child(self, node: int, symbol: T, number: int) -> int:
        child = self._children[node][symbol] = len(self._children)
        self._children.append({})
        self._failure.append(0)
        self._ends.append(())
        self._owner.append(number)
        self.depth.append(self.depth[node] + 1)
        return child

    def _link(self) -> None:
        pending = deque(self._children[0].values())
        while pending:
            node = pending.popleft()
            self._ends[node] += self._ends[self._failure[node]]
            for symbol, child in self._children[node].items():
                self._failure[child] = self._after_failure(self._failure[node], symbol)
                pending.append(child)


def load_phrases(path: str | PathLike[str]) -> dict[str, float]:
    """Return the phrases of a file with their factors, for `policies.ban`.

    Args:
        path: a JSON file: a list of `["phrase", factor]`, a list of phrases, which have the factor 0, or an object with the factors
            of phrases.

    Raises:
        OptionError: it contains something else.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError(f"expected phrases as JSON in {str(path)!r}, got something else: {error}", "path") from error
    items = list(data.items()) if isinstance(data, dict) else data
    if not isinstance(items, list):
        raise OptionError(
            f'expected a list such as `[["phrase", 0.5]]` in {str(path)!r}, got {type(items).__name__}', "path"
        )
    phrases: dict[str, float] = {}
    for number, item in enumerate(items):
        match [item, 0.0] if isinstance(item, str) else item:
            case [str(phrase), int() | float() as factor] if not isinstance(factor, bool):
                phrases[phrase] = min(factor, phrases.get(phrase, factor))
            case _:
                raise OptionError(
                    f'expected `["phrase", factor]` as item {number} of {str(path)!r}, got {item!r}. A factor is a number from 0 to 1.',
                    "path",
                )
    return phrases
