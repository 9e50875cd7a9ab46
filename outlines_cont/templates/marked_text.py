"""`MarkedText`: a `str` that records in which of its parts special tokens are control tokens. `tokens_of` makes one `Tokens` of such texts,
encoded as a whole, unless names of special tokens are control tokens in some parts and letters in others; then one for each control token
and for the text between two. `joined` keeps the marks; any other operation but `str()` returns a plain `str`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.state.tokens import Tokens

Part = tuple[str, bool]


class MarkedText(str):
    """A text made of `parts`: texts, each with whether special tokens in it are control tokens."""

    parts: tuple[Part, ...]

    def __new__(cls, parts: Iterable[Part]) -> Self:
        """Concatenate the parts."""
        kept = tuple(part for part in parts if part[0])
        text = super().__new__(cls, "".join(part for part, _ in kept))
        text.parts = kept
        return text

    def __str__(self) -> str:
        """Return the same object, as Jinja calls `str` before it writes a value."""
        return self


def parts_of(texts: Iterable[str]) -> list[Part]:
    """Return the parts of consecutive texts."""
    found: list[Part] = []
    for text in texts:
        found += text.parts if isinstance(text, MarkedText) else [(text, False)]
    return found


def joined(texts: Sequence[str]) -> str:
    """Concatenate texts; the result is marked if one of them is."""
    if any(isinstance(text, MarkedText) for text in texts):
        return MarkedText(parts_of(texts))
    return "".join(texts)


def tokens_of(texts: Sequence[str], names: SpecialNames) -> list[Tokens]:
    """Return consecutive texts, plain or marked, as few `Tokens` to append to a state; `names` are those of the special tokens."""
    parts = parts_of(texts)
    text = "".join(part for part, _ in parts)
    num_special = sum(names.count_in(part) for part, is_special in parts if is_special)
    if not num_special:
        return [Tokens(text)] if text else []
    if num_special == names.count_in(text):
        return [Tokens(text, special=True)]
    # Some letters look like special tokens: encode the special tokens one by one.
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
