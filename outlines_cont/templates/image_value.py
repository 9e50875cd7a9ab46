"""Images among the values of a template: `written_image` returns the image that `{{ value }}` writes, `image_of` the one that
`{{ value | image }}` does; `ImageValues` reads them for a model, each value of a call once.

A text never opens a file, as neither the author of a template nor the texts of values are trusted: paths are `pathlib.Path` objects, which
only code can make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from outlines_cont.errors import TemplateError, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.models.image_file import is_picture, is_pixels
from outlines_cont.templates.marked_text import images_of

_PART_KINDS = ("image", "image_url")
_SOURCES = ("image", "url", "path", "image_url", "bytes")
_MOST_KEPT = 16
READABLE = frozenset({"width", "height", "size", "mode", "format"})
"""The attributes of an image that a template may read; others write files, or take any time."""


def written_image(value: object) -> object | None:
    """Return the image that a value is, for `{{ value }}`; None for a value that is written as text.

    An image is one of PIL, an array (H, W, 3) of bytes, or a part of a message such as `{"type": "image", "image": scan}`.
    """
    if isinstance(value, Mapping):
        has_source = value.get("type") in _PART_KINDS and any(value.get(name) is not None for name in _SOURCES)
        return image_of(value) if has_source else None
    return value if isinstance(value, ReadImage) or is_picture(value) or is_pixels(value) else None


def image_of(value: object) -> object:
    """Return the image that a value is, for `{{ value | image }}`: also bytes of a file, a path, and a `data:` URL.

    Raises:
        TemplateError: it is a text that would open a file, or no image.
    """
    if isinstance(value, Mapping):
        source = next((value[name] for name in _SOURCES if value.get(name) is not None), None)
        return image_of(source) if source is not value else _refused(value)
    if isinstance(value, str):
        return str.__str__(value) if value[:5].lower() == "data:" else _refused(value)
    is_image = isinstance(value, bytes | bytearray | memoryview | PathLike) or hasattr(value, "__array__")
    return value if is_image or written_image(value) is not None else _refused(value)


def _refused(value: object) -> object:
    shown = shortened(repr(value)) if isinstance(value, str) else type(value).__name__
    raise TemplateError(
        f"expected an image of PIL, bytes, an array of bytes, a `pathlib.Path` or a `data:` URL, got {shown}. A template opens no file by "
        "its name: pass `Path(...)` as the value"
    )


def check_images(what: str, given: Iterable[object], result: object) -> None:
    """Raise `TemplateError` if a text that was made of some values lacks images that are in them, or are items of them.

    Cost: a pass over the items of lists, if the result is a text.
    """
    if not isinstance(result, str):
        return
    items = [item for value in given for item in (value if isinstance(value, list | tuple) else [value])]
    count = sum(is_picture(item) or len(images_of(item)) for item in items)
    if count > len(images_of(result)):
        raise TemplateError(
            f"expected texts without images, as {what} keeps none, got {count}. Write images as they are, `{{{{ scan }}}}`, or join texts "
            "and images by `~`"
        )


class ImageValues:
    """Reads the images of a call for one model. The last values are kept, so that one that all rows have is processed once."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        # By the id of a value, which is kept so that no other gets it.
        self._known: dict[int, tuple[object, ReadImage]] = {}

    def read(self, source: Any) -> ReadImage:
        """Return an image as the network takes it.

        Raises `UnsupportedModel` and `ImageError` as `model.see` does. Cost: that of the processor, for a value that is not among the last.
        """
        if isinstance(source, ReadImage):
            return source
        value, image = self._known.get(id(source), (None, None))
        if image is None or value is not source:
            image = self._model.read_image(source)
            while len(self._known) >= _MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[id(source)] = source, image
        return image
