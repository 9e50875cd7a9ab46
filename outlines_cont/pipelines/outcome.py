"""Errors of pipelines: `SetupError`: an option, file, schema or model cannot be used; `InputError`, `OutputError` and `WorkersFailed` end
a run, `RowError` and `TemplateError` fail a single row. `listed` formats names for messages.

`InputRow`: one row of an input, with the digest by which a resumed run recognises it; `InputFormat`: the format of an input;
`check_fields` refuses rows with fields that the output adds, `check_columns` tables without one that the prompt names; `plain` is a value
as JSON has it.

`Outcome`: the result of one row: the record or a `Failure`, with `Usage`, log-probabilities and agreement. Plain data that can be sent
to another process, but for `value`, the Python object, which workers leave out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, Protocol, Self

from outlines_cont.errors import OutlinesContError
from outlines_cont.near_names import did_you_mean


class SetupError(OutlinesContError, ValueError):
    """An option, file or schema cannot be used. Nothing ran, and no output was touched."""


class InputError(OutlinesContError, OSError):
    """The input cannot be read to its end, for example because a page of a Parquet file is corrupt. The rows before are written."""


class OutputError(OutlinesContError, OSError):
    """The output could not be written to its end, for example because the disk is full. It has only whole lines."""


class RowError(OutlinesContError, ValueError):
    """A row of the input cannot be used; the others can."""


class TemplateError(RowError):
    """The prompt template fails on a row: a name that the row does not have, or a limit."""


class WorkersFailed(OutlinesContError, RuntimeError):
    """Too many workers have crashed in succession. What was written stays, and can be resumed."""


def listed(names: Iterable[object]) -> str:
    """Return names for a message, at most 12 of them."""
    shown = [repr(str(name)) for name in names]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")


OUTPUT_FIELDS = ("_line", "_digest", "_details", "record", "error")
"""The fields that the output adds; a row may not have them."""


Confidence = Literal["agreement", "cheap"]
"""What the confidence of values is made from: samples that agree, or the tokens of the record."""


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
        fields: the JSON object, the cells by the names of their columns, or the text under the name of the text field; empty if the
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
    if type(value).__name__ == "NAType" or (isinstance(value, float | date | Decimal) and value != value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise RowError(f"expected a value that JSON has in the field {name!r}, got {type(value).__name__}")


ShowValue = Callable[[Any, Any, bool], None]
"""Shows a value while it is written: the key of its row, the value so far, and whether it is whole.

The value is None before there is one; a None that is whole means that the row is over.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no record: the name of the error's class, and its message."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure of an error."""
        return cls(type(error).__name__, str(error))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a row.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the record.
        forced_tokens: those of them that the schema determined.
        sample_tokens: tokens of the samples that were compared with it.
        steps: steps of the engine from the moment when the row was given to it.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    forced_tokens: int = 0
    sample_tokens: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Withheld:
    """A value that is not in a record, as it is too uncertain.

    Attributes:
        value: the value that the model has written.
        confidence: its confidence, below the limit.
        reason: why it was withheld, as a sentence.
    """

    value: Any
    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one row.

    Attributes:
        record: the record as JSON; None if the row failed (or the record is `null`).
        failure: why there is no record, or None.
        value: the record as an instance of the Python type of the schema; None if it is from another process, or if a value is withheld.
        weight: the log-probability of the record, under the unmodified model; None if it was not requested.
        usage: the cost of the row.
        logprobs: for each value of the record, by its path, the log-probability of its tokens under the schema.
        agreement: for each value of the record, by its path, the share of the samples with an equal one there.
        confidence: of an extractor with a `confidence`, how sure each value that the model wrote is, by its path; with a calibration the
            probability that it is right.
        certainty: the same before calibration, if it is no agreement.
        withheld: the values that are None in the record, as they are too uncertain, by their paths.
        reused_tokens: tokens of any rows that were not fed, because others had fed the same, since the outcome before this one.
    """

    record: Any = None
    failure: Failure | None = None
    value: Any = None
    weight: float | None = None
    usage: Usage = Usage()
    logprobs: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    confidence: Mapping[str, float] = field(default_factory=dict)
    certainty: Mapping[str, float] = field(default_factory=dict)
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    reused_tokens: int = 0


class Outcomes(Protocol):
    """An object that turns rows into outcomes: an `Extractor`, or workers with one each."""

    def outcomes(
        self, rows: Iterable[Mapping[str, Any] | Exception], show: ShowValue | None = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order. Rows are taken when there is room for them."""
