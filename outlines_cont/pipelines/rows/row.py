"""`InputRow`: one row of an input, with the digest by which a resumed run recognises it; `InputFormat`: the format of an input;
`check_fields` refuses rows with fields that the output adds, `check_columns` tables without one that the prompt names; `plain` is a value
as JSON has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import StrEnum
from typing import Any

from outlines_cont.pipelines.rows.errors import RowError, SetupError, listed
from outlines_cont.unknown_option import did_you_mean

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


def check_columns(columns: Collection[str], needed: Iterable[str], advice: str = "") -> None:
    """Raise `SetupError` for a table without a column that is needed; the error names those that there are, and one of a similar name."""
    name = next((name for name in needed if name not in columns), None)
    if name is not None:
        found = f"got one with {listed(columns)}" if columns else "got none"
        raise SetupError(f"expected a table with the column {name!r}, {found}.{did_you_mean(name, columns)}{advice}")


def plain(value: Any, name: str) -> Any:
    """Return a value of the field `name` as JSON has it.

    Scalars and arrays of numpy are those of Python, dates and decimals texts, and missing values (NaN, and `NaT` and `NA` of pandas) None.

    Raises:
        RowError: JSON has no such value.
    """
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        kind = getattr(value.dtype, "kind", "")
        value = (value.astype(f"{kind}8[us]") if kind in ("m", "M") else value).tolist()  # nanoseconds would be ints
    if isinstance(value, Mapping):
        return {str(key): plain(inner, name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, name) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    if type(value).__name__ == "NAType" or (isinstance(value, float | date | Decimal) and value != value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return value
    raise RowError(f"expected a value that JSON has in the field {name!r}, got {type(value).__name__}")
