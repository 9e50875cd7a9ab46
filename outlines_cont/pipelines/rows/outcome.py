"""`Outcome`: the result of one row: the record or a `Failure`, with `Usage`, log-probabilities and agreement. Plain data that can be sent
to another process, but for `value`, the Python object, which workers leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

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
class Outcome:
    """The result of one row.

    Attributes:
        record: the record as JSON; None if the row failed (or the record is `null`).
        failure: why there is no record, or None.
        value: the record as an instance of the Python type of the schema; None if it is from another process.
        weight: the log-probability of the record, under the unmodified model; None if it was not requested.
        usage: the cost of the row.
        logprobs: for each value of the record, by its path, the log-probability of its tokens under the schema.
        agreement: for each value of the record, by its path, the share of the samples with an equal one there.
        reused_tokens: tokens of any rows that were not fed, because others had fed the same, since the outcome before this one.
    """

    record: Any = None
    failure: Failure | None = None
    value: Any = None
    weight: float | None = None
    usage: Usage = Usage()
    logprobs: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    reused_tokens: int = 0
