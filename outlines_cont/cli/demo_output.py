"""`demo_output`: writes the file of the demo under a temporary name and renames it at the end (atomic). It replaces only an empty file, or
one whose first line may be of the demo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from outlines_cont.pipelines.outcome import SetupError
from outlines_cont.pipelines.output import check_suffix

_FIELDS = {"text", "kind", "record", "due"}


@contextmanager
def demo_output(path: Path) -> Iterator[TextIO]:
    """Yield a file that replaces `path` when the block ends, and is removed when it fails.

    Before the block `SetupError` is raised if the file cannot be written, or another file would be replaced.
    """
    check_suffix(path)
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not _is_of_demo(target):
            raise SetupError(
                f"expected a new file or an earlier output of the demo, but {str(path)!r} is something else and would be lost. "
                "Name another file with --output."
            )
        file = part.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise SetupError(
            f"expected an output that can be written, but {str(path)!r}: {error.strerror}. Name another file with --output."
        ) from error
    try:
        with file:
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_of_demo(path: Path) -> bool:
    """Whether `path` is an empty file, or one whose first line the demo may have written."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
    try:
        return not first or json.loads(first).keys() >= _FIELDS
    except (ValueError, AttributeError, RecursionError):
        return False
