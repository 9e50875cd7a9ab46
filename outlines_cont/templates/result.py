"""`TemplateResult`: text, captures, state, finish reasons and error of a run of a template; after an error, what there was until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from outlines_cont.errors import with_result
from outlines_cont.state.sequence_state import SequenceState


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TemplateResult:
    """The result of a run of a template.

    Attributes:
        text: all that was written and generated, in order.
        state: the same as a state, to go on with; what a given state held is in front. None where there is no token yet.
        captures: the values by name, in the order in which they came about: a text, or what JSON and generators of types make of it.
            A name that is generated in a loop, or was generated again, has the list of its values.
        finish_reasons: how each of them ended, in the same shape: `stop`, `constraint` or `length`.
        error: what the run has failed with; the rest is what there was then.
    """

    text: str
    state: SequenceState | None
    captures: Mapping[str, Any]
    finish_reasons: Mapping[str, Any]
    error: Exception | None = None

    def check(self) -> Self:
        """Return the same, or raise its error, whose attribute `result` is this result."""
        if self.error is not None:
            raise with_result(self.error, self)
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error: {self.error!r}"
        return f"TemplateResult({dict(self.captures)!r}, {len(self.text)} characters{error})"
