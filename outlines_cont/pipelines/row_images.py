"""`RowImages`: the fields of rows that have images, as paths, bytes, images of PIL or the dicts of `datasets.Image`; where they stand in a
prompt, what an output has of them, and their thumbnails. A field may have a list of images, which follow each other at one place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Self

from outlines_cont.checks import check
from outlines_cont.errors import ImageError
from outlines_cont.models.image_file import open_image, thumbnail
from outlines_cont.pipelines.outcome import RowError, SetupError, listed
from outlines_cont.state.image_span import PLACEHOLDER

_MOST_THUMBNAILS = 4


@dataclass(frozen=True, slots=True)
class RowImages:
    """The fields of rows with images.

    Attributes:
        names: the fields, in the order of their places in the prompt; none for rows of texts alone.
        optional: those of them that may be missing, or None.
    """

    names: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()

    @classmethod
    def of(cls, images: str | Sequence[str] | None, allow_missing: Collection[str] | bool = ()) -> Self:
        """Return the images of the fields that are named; `OptionError` if these are not names."""
        names = () if images is None else (images,) if isinstance(images, str) else images
        are_names = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
        is_right = are_names and len({*names}) == len(names) and (images is None or bool(names))
        check("images", images, is_right, "the name of a field with an image, a list of different names, or None")
        missing = names if allow_missing is True else allow_missing or ()
        return cls(tuple(names), frozenset(names) & frozenset(missing))

    def __bool__(self) -> bool:
        """Whether rows have images."""
        return bool(self.names)

    @property
    def needed(self) -> list[str]:
        """The fields that each row must have."""
        return [name for name in self.names if name not in self.optional]

    def check_places(self, template: str) -> None:
        """Raise `SetupError` for a template without a place for the image of each field."""
        found = template.count(PLACEHOLDER)
        if self.names and found < len(self.names):
            raise SetupError(
                f"expected a template with `{PLACEHOLDER}` for the image of each field ({listed(self.names)}), got {found} in "
                f"{template[:200]!r}. Write it where the image stands, such as 'Read this: {PLACEHOLDER}'."
            )

    def sources(self, fields: Mapping[str, Any]) -> list[list[Any]]:
        """Return the images for each place, as `open_image` takes them; `RowError` for a row without one that is needed."""
        return [self._of_field(name, fields) for name in self.names]

    def _of_field(self, name: str, fields: Mapping[str, Any]) -> list[Any]:
        if name not in fields and name not in self.optional:
            raise RowError(f"expected an image in the field {name!r}, got a row with {listed(fields) or 'no fields'}")
        value: Any = fields.get(name)
        is_array = getattr(getattr(value, "dtype", None), "kind", "") == "O"  # of pandas, for a list
        items = list(value) if isinstance(value, list | tuple) or is_array else [value]
        found = [one for one in (_source(item, name) for item in items) if one is not None]
        if len(found) < len(items) or not items:
            if name in self.optional:
                return found
            raise RowError(
                f"expected an image in the field {name!r}, got none. A path, bytes, or {{'bytes': ...}} is one."
            )
        return found

    def readable(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that a template may read: all but images that are no path."""
        return {name: value for name, value in fields.items() if name not in self.names or _path(value) is not None}

    def written(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that an output has: of images their paths, and nothing of those without one."""
        found = dict(fields)
        for name in self.names:
            paths = [_path(item) for item in _items(found.pop(name, None))]
            known = [path for path in paths if path is not None]
            if known and len(known) == len(paths):
                found[name] = known if len(known) > 1 else known[0]
        return found

    def placed(self, prompt: str, fields: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        """Return the texts of a prompt before, between and after its images, and these; `RowError` for another number of places."""
        texts, sources = prompt.split(PLACEHOLDER), self.sources(fields)
        if len(texts) != len(sources) + 1:
            raise RowError(
                f"expected a prompt with `{PLACEHOLDER}` for the image of each field ({listed(self.names)}), got {len(texts) - 1}"
            )
        parts, images = [texts[0]], list[Any]()
        for some, text in zip(sources, texts[1:], strict=True):
            images += some
            if some:
                parts += [""] * (len(some) - 1) + [text]
            else:
                parts[-1] += text
        return parts, images

    def thumbnails(self, fields: Mapping[str, Any]) -> list[str]:
        """Return small pictures of the images as `data:` URLs, of at most four; those that cannot be read are left out."""
        found = list[str]()
        for name in self.names:
            with suppress(RowError):
                for source in self._of_field(name, fields)[: _MOST_THUMBNAILS - len(found)]:
                    with suppress(ImageError):
                        found.append(thumbnail(open_image(source)))
        return found


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _path(value: Any) -> str | None:
    """Return the path of an image, None for one without, such as bytes or a `data:` URL."""
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, PathLike):
        value = fspath(value)
    return value if isinstance(value, str) and value.strip() and value[:5].lower() != "data:" else None


def _source(value: Any, name: str) -> Any:
    """Return an item of a field as `open_image` takes it; None for one that is missing."""
    if isinstance(value, Mapping):
        if not {"bytes", "path"} & set(value):
            raise RowError(
                f"expected an image in the field {name!r} as {{'bytes': ..., 'path': ...}}, got {listed(value)}"
            )
        held = value.get("bytes")
        value = value.get("path") if held is None else held
    is_missing = value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)
    return None if is_missing or (isinstance(value, str) and not value.strip()) else value
