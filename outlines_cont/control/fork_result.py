"""`Fork`: the result of one sequence of a program: state, text, captures, finish reason, error, and the last 65,536 characters logged."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlines_cont.errors import shortened
from outlines_cont.state.sequence_state import SequenceState

MAX_LOG = 65_536
"""How many characters of a log are kept, the last ones."""


@dataclass(slots=True, eq=False, repr=False)
class Fork:
    """One sequence of a program.

    Attributes:
        index: its number; the first is 0.
        parent: the number of the fork that it has left, None for the first.
        state: its tokens, prompt included, with their keys and values; None as long as it runs, and where it was cancelled.
        text: what the program has appended, as text; empty as long as it runs.
        finish_reason: empty as long as it runs; then `stop` (the controller has stopped it, or the script has ended), `length`
            (the context is full), the name of a limit in `Budget`, `deadlock`, `error` or `cancelled`.
        error: what it has failed with.
        trace: where its controller or script has failed, as Python prints it.
        log: what it has logged, without what its parent had logged before.
        captures: what it has generated under a name; those of its parent included, as they were when it left.
    """

    index: int
    parent: int | None = None
    state: SequenceState | None = None
    text: str = ""
    finish_reason: str = ""
    error: Exception | None = None
    trace: str = ""
    log: str = ""
    captures: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={shortened(repr(self.error), 80)}"
        return f"Fork({self.index}, {self.finish_reason or 'running'!r}, {shortened(self.text)!r}{error})"
