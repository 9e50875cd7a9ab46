"""`MarkedText`: a `str` that records in which of its parts special tokens are control tokens, and `given_parts`, which makes as few
`Tokens` of such texts as possible. `joined` keeps the marks; any other string operation returns a plain `str`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.state.tokens import Tokens

Part = tuple[str, bool]


class MarkedText(str):
    """A text that knows in which of its parts special tokens are control tokens; the results of string operations are plain.

    Attributes:
        parts: texts, each with whether special tokens in it are such.
    """

    parts: tuple[Part, ...]

    def __new__(cls, parts: Iterable[Part]) -> Self:
        """Return the parts as one text."""
        kept = tuple(part for part in parts if part[0])
        text = super().__new__(cls, "".join(part for part, _ in kept))
        text.parts = kept
        return text

    def __str__(self) -> str:
        """Return the same: as it comes out of a template."""
        return self


def parts_of(texts: Iterable[str]) -> list[Part]:
    """Return the parts of texts that follow each other."""
    found: list[Part] = []
    for text in texts:
        found += text.parts if isinstance(text, MarkedText) else [(text, False)]
    return found


def joined(texts: Sequence[str]) -> str:
    """Return texts as one, marked where one of them is."""
    if any(isinstance(text, MarkedText) for text in texts):
        return MarkedText(parts_of(texts))
    return "".join(texts)


def given_parts(texts: Sequence[str], names: SpecialNames) -> list[Tokens]:
    """Return texts that follow each other, as few as there can be, in the form in which a state takes them.

    Args:
        texts: plain ones, and marked ones.
        names: how special tokens are written.
    """
    parts = parts_of(texts)
    text = "".join(part for part, _ in parts)
    num_special = sum(names.count_in(part) for part, is_special in parts if is_special)
    if not num_special:
        return [Tokens(text)] if text else []
    if num_special == names.count_in(text):
        return [Tokens(text, special=True)]  # just as the tokenizer encodes it
    return _separated(parts, names)


def _separated(parts: Iterable[Part], names: SpecialNames) -> list[Tokens]:
    """Return the special tokens one by one, and the letters between them: some of these are written like special tokens."""
    found: list[Tokens] = []
    letters = ""
    for text, is_special in parts:
        rest = text
        while is_special and (name := names.first_in(rest)) is not None:
            before, _, rest = rest.partition(name)
            found += [Tokens(letters + before), Tokens(name, special=True)]
            letters = ""
        letters += rest
    return [part for part in (*found, Tokens(letters)) if part.text]
