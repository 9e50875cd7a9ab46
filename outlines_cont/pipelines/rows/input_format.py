"""`InputFormat`: what the rows of an input are."""

from __future__ import annotations

from enum import StrEnum


class InputFormat(StrEnum):
    """What the lines of an input are; `auto` goes by its name."""

    AUTO = "auto"
    JSONL = "jsonl"
    TXT = "txt"
    CSV = "csv"
    PARQUET = "parquet"
