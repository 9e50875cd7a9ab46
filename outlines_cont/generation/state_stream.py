"""`StateStream`: iterates once over the events of a `continuous` call, in a `for` or `async for` loop; at every moment `state` is a
snapshot that any generator can continue. Leaving the loop cancels the rows and keeps the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.protocols import EventSource
from outlines_cont.generation.run_events import RunEvents
from outlines_cont.state.sequence_state import SequenceState


class StateStream(Closing):
    """Events of a continuation, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Leaving the loop ends the work: its rows leave the engine, and `state` stays. To go on
    with the same piece, resume that state; to go on with another generator, give it that state. No token is fed twice.

    After `async for` close the stream to be sure (`async with`, or `await stream.aclose()`): Python ends a loop of that kind later.
    """

    def __init__(self, run: EventSource, options: StreamOptions) -> None:
        self._run = run
        self._events = RunEvents(run, options)
        self._is_begun = False
        self._left: SequenceState | None = None

    @property
    def state(self) -> SequenceState:
        """The present state, also in the middle of a generated span: what was written so far, with keys and values.

        A span that has not ended counts as cut here (`length`): `continuous(generator).resume` continues it. Its last
        characters may be ones that the stream still holds back. Cost: shares keys and values; some microseconds per row.
        """
        return self._left if self._left is not None else self._run.snapshot()

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield the news of each row after each step. A stream can be iterated once.

        Raises:
            BaseException: whatever interrupts the run. A row that fails alone has its error in its last event, and the others continue.
        """
        if not self._begin():
            return
        steps = self._run.steps()  # held, so that the rows are let go only after the state was taken
        try:
            for _ in steps:
                yield from self._events.pull()
        finally:
            self.close()
            steps.close()

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The asynchronous form, which does not block the event loop."""
        if not self._begin():
            return
        async with aclosing(self._run.async_steps()) as steps:
            try:
                async for _ in steps:
                    for event in await asyncio.to_thread(self._events.pull):
                        yield event
            finally:
                await self.aclose()

    def close(self) -> None:
        """End the work, wherever it is; `state` stays what it is now."""
        if self._left is None:
            self._left = self._run.leave()

    def _begin(self) -> bool:
        is_first = self._left is None and not self._is_begun
        self._is_begun = True
        return is_first
