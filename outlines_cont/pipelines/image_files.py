"""`ImageFiles`: image files as the rows of an input, each with the path of one, in the order in which they are given. The digest of a row
is one of the file, so that a resumed run notices that it has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from outlines_cont.pipelines.outcome import InputRow, SetupError, digest_of

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def is_image_file(name: str) -> bool:
    """Return whether a file is one of an image, by the end of its name."""
    return name.lower().endswith(_SUFFIXES)


class ImageFiles:
    """The rows of some image files, each with the field `field`: the path of a file.

    Attributes:
        path: None, as for other inputs that are no single file.

    Raises:
        SetupError: there is none, or one is no file of an image by its name.
    """

    def __init__(self, names: Sequence[str], field: str) -> None:
        odd = next((name for name in names if not is_image_file(name)), None)
        if odd is not None or not names:
            raise SetupError(
                f"expected one input, or image files ({', '.join(_SUFFIXES)}), got {'none' if odd is None else repr(odd)}"
                f"{f' among {len(names)}' if len(names) > 1 else ''}. Rows of a table name their images in a column: --images NAME."
            )
        self.path: Path | None = None
        self._names, self._field = [*names], field

    @property
    def is_repeatable(self) -> bool:
        """Whether the rows can be read again."""
        return True

    def count(self) -> int:
        """Return the number of files."""
        return len(self._names)

    def columns(self) -> list[str]:
        """Return the one field that each row has."""
        return [self._field]

    def __iter__(self) -> Iterator[InputRow]:
        """Yield a row for each file; one that cannot be read fails where its image is opened."""
        for number, name in enumerate(self._names, start=1):
            digest = b""
            with suppress(OSError, ValueError):
                digest = _digest(Path(name))
            yield InputRow(number, digest_of(name.encode("utf-8", "surrogatepass") + digest), {self._field: name})


def _digest(path: Path) -> bytes:
    """Return the digest of a file; of what is no regular file, such as a pipe, nothing, as reading may never end."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
