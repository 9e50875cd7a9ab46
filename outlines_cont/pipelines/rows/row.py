"""`InputRow`: one row of an input, with the digest by which a resumed run recognises it; `InputFormat`: the format of an input;
`check_fields` refuses rows with fields that the output adds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlines_cont.pipelines.rows.errors import RowError

OUTPUT_FIELDS = ("_line", "_digest", "_details", "record", "error")
"""The fields that the output adds; a row may not have them."""


class InputFormat(StrEnum):
    """The format of the lines of an input; `auto` infers it from the name."""

    AUTO = "auto"
    JSONL = "jsonl"
    TXT = "txt"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of the input.

    Attributes:
        line: the number of its first line, from 1, blank lines counted; of a Parquet file the number of the row.
        digest: 12 hexadecimal digits that change when the row changes.
        fields: the JSON object, the cells by the names of their columns, or the text under the name of the text field; empty where the
            row is unusable.
        error: why the row is unusable, else None.
    """

    line: int
    digest: str
    fields: dict[str, Any] = field(default_factory=dict)
    error: RowError | None = None


def digest_of(data: bytes) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:12]


def check_fields(names: Iterable[str], taken: Collection[str] = OUTPUT_FIELDS) -> None:
    """Raise `RowError` for a row with a field that the output adds."""
    name = next((name for name in taken if name in names), None)
    if name is not None:
        raise RowError(f"expected a row without {name!r}, which is a field of the output. Rename it in the input.")
