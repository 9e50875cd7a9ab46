"""`TemplateResult`: text, captures, state, finish reasons and error of a run of a template; after an error, those until then."""

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
        text: all text that was written and generated, in order.
        state: the same as a state, to be continued; the tokens of a given state are in front. None if there is no token yet.
        captures: the values by name, in the order of generation: a text, or the parsed value of JSON and of generators of types. A name
            that is generated in a loop, or several times, has the list of its values.
        finish_reasons: of each capture, in the same shape: `stop`, `constraint` or `length`.
        error: the error of the run, or None; after an error the other attributes are those until then.
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
