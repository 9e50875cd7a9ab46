"""`Result`: the result of a program: its forks, shared variables, events and usage. `Fork`: the result of one sequence of it: state, text,
captures, finish reason, error, and the last 65,536 characters logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outlines_cont.errors import ScriptError, shortened, with_result
from outlines_cont.meter import Meter
from outlines_cont.programs.event import Event
from outlines_cont.state.sequence_state import SequenceState

MAX_LOG = 65_536
"""How many characters of a log are kept, the last ones."""


@dataclass(slots=True, eq=False, repr=False)
class Fork:
    """One sequence of a program.

    Attributes:
        index: its number; the first is 0.
        parent: the number of the fork that it was forked from, None for the first.
        state: its tokens, prompt included, with their keys and values; None while it runs, and if it was cancelled.
        text: what the program has appended, as text; empty while it runs.
        finish_reason: empty while it runs; then `stop` (the controller has stopped it, or the script has ended), `length`
            (the context is full), the name of a limit in `Budget`, `deadlock`, `error` or `cancelled`.
        error: the error that has ended it.
        trace: the traceback of its controller or script, as Python prints it.
        log: what it has logged, without what its parent had logged before.
        captures: what it has generated under a name; those of its parent before the fork included.
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The result of a program.

    Attributes:
        forks: all of them, by their number.
        shared: the shared variables at the end.
        events: what has happened, in order.
        usage: the work of its rows alone, such as `usage.sampled_tokens` and `usage.forced_tokens`. Forwards are shared with all rows of
            the model, so `usage.forwards` is 0; `model.meter()` counts those.
    """

    forks: list[Fork]
    shared: dict[str, Any]
    events: list[Event]
    usage: Meter

    @property
    def texts(self) -> list[str]:
        """The text of every fork, without the prompt."""
        return [fork.text for fork in self.forks]

    @property
    def text(self) -> str:
        """The text of the first fork."""
        return self.forks[0].text

    @property
    def captures(self) -> dict[str, str]:
        """The captures of all forks; of equal names those of the fork with the smallest number."""
        return {name: text for fork in reversed(self.forks) for name, text in fork.captures.items()}

    @property
    def log(self) -> str:
        """The logs of all forks, one after the other."""
        return "".join(fork.log for fork in self.forks)

    @property
    def state(self) -> SequenceState:
        """All forks as the samples of one state, prompt included; without those that were cancelled."""
        states = [fork.state for fork in self.forks if fork.state is not None]
        if not states:
            raise ScriptError("expected a fork that has ended, got only cancelled ones, which have no state")
        return SequenceState(states[0].model, (tuple(state.rows[0][0] for state in states),), states[0].seed)

    @property
    def errors(self) -> list[Exception | None]:
        """The error of every fork."""
        return [fork.error for fork in self.forks]

    def check(self) -> Result:
        """Return the same, or raise the error of the first fork that has failed; its attribute `result` is this result."""
        for error in filter(None, self.errors):
            raise with_result(error, self)
        return self

    def __repr__(self) -> str:
        count = f"{len(self.forks)} fork{'s' if len(self.forks) != 1 else ''}"
        failed = [f"{fork.index}: {shortened(repr(fork.error), 80)}" for fork in self.forks if fork.error is not None]
        errors = f"errors: [{', '.join(failed)}], " if failed else ""
        return f"Result({count}, {errors}{len(self.events)} events)"
