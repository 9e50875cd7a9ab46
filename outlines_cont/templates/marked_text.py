"""`MarkedText`: a `str` made of `TextPart`s: texts, of which some have special tokens as control tokens, and images. `joined` keeps the
parts; any other operation but `str()` returns a plain `str`, in which an image is the letters `<image>`.

`tokens_of`: what to append to a state for such texts: one `Tokens` for the text between two images, encoded as a whole, unless names of
special tokens are control tokens in some parts and letters in others; then one for each control token and for the text between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from outlines_cont.errors import TemplateError
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.state.image_span import PLACEHOLDER
from outlines_cont.state.tokens import Tokens


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text, with whether special tokens in it are control tokens; or an image, whose text is `<image>`."""

    text: str
    is_special: bool = False
    image: ReadImage | None = None


class MarkedText(str):
    """A text made of `parts`."""

    parts: tuple[TextPart, ...]

    def __new__(cls, parts: Iterable[TextPart]) -> Self:
        """Concatenate the parts."""
        kept = tuple(part for part in parts if part.text)
        text = super().__new__(cls, "".join(part.text for part in kept))
        text.parts = kept
        return text

    def __str__(self) -> str:
        """Return the same object, as Jinja calls `str` before it writes a value."""
        return self

    def __getitem__(self, part: Any) -> str:
        """Return characters as a plain text; `TemplateError` where an image would be lost."""
        if images_of(self):
            raise TemplateError(
                "expected a text without images, got a slice of one with some. Write images as they are"
            )
        return super().__getitem__(part)


def image_text(image: ReadImage) -> MarkedText:
    """Return the text of an image, `<image>`, which is the image where it is written."""
    return MarkedText([TextPart(PLACEHOLDER, image=image)])


def special_text(text: str) -> MarkedText:
    """Return a text in which special tokens are control tokens; images in it stay images."""
    parts = text.parts if isinstance(text, MarkedText) else (TextPart(str.__str__(text)),)
    return MarkedText(part if part.image is not None else TextPart(part.text, is_special=True) for part in parts)


def parts_of(texts: Iterable[str]) -> list[TextPart]:
    """Return the parts of consecutive texts."""
    found: list[TextPart] = []
    for text in texts:
        found += text.parts if isinstance(text, MarkedText) else [TextPart(text)]
    return found


def images_of(text: object) -> list[ReadImage]:
    """Return the images in a text, in order; none for other values."""
    parts = text.parts if isinstance(text, MarkedText) else ()
    return [part.image for part in parts if part.image is not None]


def joined(texts: Sequence[str]) -> str:
    """Concatenate texts; the result is marked if one of them is."""
    if any(isinstance(text, MarkedText) for text in texts):
        return MarkedText(parts_of(texts))
    return "".join(texts)


def tokens_of(texts: Sequence[str], names: SpecialNames) -> list[Tokens | ReadImage]:
    """Return consecutive texts, plain or marked, as few `Tokens`, and the images between them, to append to a state.

    `names` are those of the special tokens.
    """
    found: list[Tokens | ReadImage] = []
    between: list[TextPart] = []
    for part in parts_of(texts):
        if part.image is None:
            between.append(part)
        else:
            found += [*_tokens_between(between, names), part.image]
            between = []
    return [*found, *_tokens_between(between, names)]


def _tokens_between(parts: Sequence[TextPart], names: SpecialNames) -> list[Tokens]:
    """Return consecutive parts without an image as few `Tokens`."""
    text = "".join(part.text for part in parts)
    num_special = sum(names.count_in(part.text) for part in parts if part.is_special)
    if not num_special:
        return [Tokens(text)] if text else []
    if num_special == names.count_in(text):
        return [Tokens(text, special=True)]
    # Some letters look like special tokens: encode the special tokens one by one.
    found: list[Tokens] = []
    letters = ""
    for part in parts:
        rest = part.text
        while part.is_special and (name := names.first_in(rest)) is not None:
            before, _, rest = rest.partition(name)
            found += [Tokens(letters + before), Tokens(name, special=True)]
            letters = ""
        letters += rest
    return [part for part in (*found, Tokens(letters)) if part.text]
