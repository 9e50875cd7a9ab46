"""`InputRow`: one row of an input, with the digest by which a resumed run recognises it, and `InputFormat`: the format of an input."""

from __future__ import annotations

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
