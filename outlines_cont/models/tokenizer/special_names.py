"""`Speller`: spells bytes with the fewest tokens, by dynamic programming from the end, for text that the tokenizer does not encode exactly.
`TokenizerError` where no tokens spell it. `encode_bytes_inside`: ids for bytes that may begin inside a character.

`SpecialNames`: finds special tokens in a text by their names (left-most longest match, by a regular expression; not those of one
character), and encodes the text with them as control tokens. `encode_letters` encodes text so that nothing in it becomes one, nor markup
such as `<think>`; `marked` puts a mark into names; `control_names_of` caches the names; `mapped_texts` changes all texts of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

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

        Raises `TokenizerError` if the tokens cannot spell `data`. Cost: the length of `data`, times that of the longest token with the
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


Encode = Callable[[str], list[int]]


class SpecialNames:
    """The names of the special tokens of a vocabulary, as a regular expression; of ids with the same name the smallest is used.

    A name of one character is left out: some tokenizers use a letter as padding, which in a text is an ordinary letter.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._ids = {name: token_id for token_id, name in sorted(names.items(), reverse=True) if len(name) > 1}
        longest_first = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(longest_first)})") if longest_first else None

    def first_in(self, text: str) -> str | None:
        """Return the first name in a text, the longest where several begin there; or None."""
        found = self._pattern.search(text) if self._pattern is not None else None
        return None if found is None else found[1]

    def count_in(self, text: str) -> int:
        """Return how many names there are in a text, without overlaps."""
        return len(self._pattern.findall(text)) if self._pattern is not None else 0

    def count_of(self, token_ids: Sequence[int]) -> int:
        """Return how many of the ids are those of names."""
        return sum(map({*self._ids.values()}.__contains__, token_ids))

    def parts(self, text: str) -> list[str]:
        """Return a text cut after the first character of every name in it, so that no part contains one."""
        cuts = [0]
        while self._pattern is not None and (found := self._pattern.search(text, cuts[-1])) is not None:
            cuts.append(found.start() + 1)
        return [text[start:stop] for start, stop in pairwise([*cuts, len(text)])]

    def marked(self, text: str, mark: str) -> str:
        """Return a text with `mark` inside every name in it, so that none is left."""
        return mark.join(self.parts(text))

    def encode_marked(self, text: str, mark: str, tokenizer: Tokenizer) -> list[int]:
        """Return the ids of the start of a text in which the names are special tokens; those with `mark` inside are letters."""
        return self.encode(
            text,
            lambda part: tokenizer.encode(part.replace(mark, "")),
            lambda part: _encoded_inside(part.replace(mark, ""), tokenizer),
        )

    def encode(self, text: str, start: Encode, inside: Encode) -> list[int]:
        """Return the ids of a text in which the names are special tokens.

        `start` encodes what the text begins with, up to the first name, and `inside` what is between the names and after them.
        """
        parts = self._pattern.split(text) if self._pattern is not None else [text]
        token_ids = start(parts[0]) if parts[0] else []
        for name, rest in zip(parts[1::2], parts[2::2], strict=True):
            token_ids.append(self._ids[name])
            token_ids += inside(rest) if rest else []
        return token_ids


def _encoded_inside(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text after a special token; as of a start of text, where a letter of it is only in a special token."""
    try:
        return encode_letters(text, tokenizer)
    except TokenizerError:
        return tokenizer.encode(text)


# Unicode noncharacters, which texts do not contain: they mark names that are to be encoded as letters.
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def mapped_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a value of JSON with its texts changed; keys are texts, too."""
    root = [value]
    stack: list[tuple[Any, Any]] = [(root, 0)]
    while stack:
        holder, key = stack.pop()
        item = holder[key]
        if isinstance(item, str):
            holder[key] = change(item)
        elif isinstance(item, Mapping):
            holder[key] = {change(name) if isinstance(name, str) else name: part for name, part in item.items()}
            stack += [(holder[key], name) for name in holder[key]]
        elif isinstance(item, list | tuple):
            holder[key] = list(item)
            stack += [(holder[key], index) for index in range(len(item))]
    return root[0]


def encode_letters(text: str, tokenizer: Tokenizer, before: Sequence[int] = ()) -> list[int]:
    """Return ids of a text that follows `before`, as `encode_inside` does, but with markup as letters: cut after its first character."""
    if not tokenizer.markup_tokens or not text:
        return tokenizer.encode_inside(text, before)
    token_ids: list[int] = []
    for part in _names_of(tokenizer)[1].parts(text):
        token_ids += tokenizer.encode_inside(part, [*before, *token_ids])
    return token_ids


# For each tokenizer the names of its special tokens, of its markup, and of both.
_NAMES: WeakKeyDictionary[Tokenizer, tuple[SpecialNames, SpecialNames, SpecialNames]] = WeakKeyDictionary()


def _names_of(tokenizer: Tokenizer) -> tuple[SpecialNames, SpecialNames, SpecialNames]:
    found = _NAMES.get(tokenizer)
    if found is None:
        special, markup = tokenizer.special_tokens, tokenizer.markup_tokens
        found = SpecialNames(special), SpecialNames(markup), SpecialNames({**markup, **special})
        _NAMES[tokenizer] = found
    return found


def special_names_of(tokenizer: Tokenizer) -> SpecialNames:
    """Return how the special tokens of a tokenizer are written, without markup; created at the first use."""
    return _names_of(tokenizer)[0]


def control_names_of(tokenizer: Tokenizer) -> SpecialNames:
    """Return how special tokens and markup are written."""
    return _names_of(tokenizer)[2]
