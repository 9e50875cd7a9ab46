"""`EventSource`: a run as its streams see it: it takes steps, and tells what is new in its rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Protocol

from outlines_cont.events.event import StreamEvent
from outlines_cont.events.feed import Feed
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.state.sequence_state import SequenceState


class EventSource(Protocol):
    """The methods of `Run` that streams use."""

    def steps(self) -> Generator[None, None, None]:
        """Run to the end, one step of the engine at a time; closing the generator earlier releases the rows."""

    def async_steps(self) -> AsyncGenerator[None, None]:
        """The asynchronous form, which does not block the event loop."""

    def feeds(self, options: StreamOptions) -> list[Feed | None]:
        """Return what finds the news of each row; None for a row that does not run."""

    def pull(self, feeds: Sequence[Feed | None]) -> list[StreamEvent]:
        """Return an event for each row with news."""

    def grid(self, items: Mapping[tuple[int, int], Any], missing: Any) -> list[list[Any]]:
        """Return what rows have, by batch entry and sample, as `[batch][sample]` lists."""

    def snapshot(self) -> SequenceState:
        """Return the state as it is now."""

    def leave(self) -> SequenceState:
        """End the run where it is, and return its state."""
