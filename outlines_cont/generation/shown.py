"""`Shown`: what a stream yields: the events of its rows, their texts, or the values so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outlines_cont.events.event import StreamEvent
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.event_source import EventSource


class Shown:
    """Converts the events of a run to what its stream yields.

    Args:
        run: what runs, before its first step.
        options: how it is shown.

    Raises:
        OptionError: partial values are asked for, and the generator has none.
    """

    def __init__(self, run: EventSource, options: StreamOptions) -> None:
        self._run = run
        self._options = options
        self._feeds = run.feeds(options)
        self._values: dict[tuple[int, int], Any] = {}

    def pull(self) -> list[StreamEvent]:
        """Return the events of the rows that have changed."""
        return self._run.pull(self._feeds)

    def items(self, events: Sequence[StreamEvent]) -> Iterator[Any]:
        """Yield the events; or their texts as one grid, if there are any; or all partial values, if one has changed."""
        if self._options.events:
            yield from events
        elif self._options.partial:
            before = dict(self._values)
            self._values.update({(event.batch, event.sample): event.value for event in events})
            if any(value is not before.get(place) for place, value in self._values.items()):
                yield squeezed(self._run.grid(self._values, None))
        elif any(event.text for event in events):
            texts = {(event.batch, event.sample): event.text for event in events}
            yield squeezed(self._run.grid(texts, ""))


def squeezed(grid: list[list[Any]]) -> Any:
    """Return `[batch][sample]` lists without the dimensions of size 1."""
    rows = [group[0] for group in grid] if all(len(group) == 1 for group in grid) else grid
    return rows[0] if len(grid) == 1 else rows
