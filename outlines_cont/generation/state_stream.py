"""`StateStream`: iterates once over the events of a `continuous` call, in a `for` or `async for` loop; at any time `state` is a snapshot
that any generator can continue. Leaving the loop cancels the rows and keeps the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.stream_options import StreamOptions, check_streamed
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.prompt import Prompt
from outlines_cont.generation.run_events import RunEvents
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


class StateStream(Closing):
    """Events of a continuation, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Leaving the loop cancels the rows, and `state` keeps their last state. Resume that state
    to continue the same piece, or pass it to another generator; no token is fed twice.

    After leaving an `async for` loop close the stream (`async with`, or `await stream.aclose()`), since Python finalises such a loop later.
    """

    def __init__(
        self,
        maker: PieceMaker,
        prompt: Prompt,
        shown: StreamOptions,
        options: PieceOptions,
        *,
        rng: Rng = None,
        resume: bool = False,
    ) -> None:
        check_streamed(maker.sampler)
        self._call = Call(maker, prompt, Options.of(options), rng=rng, resume=resume)
        self._events = RunEvents(self._call, shown)
        self._is_begun = False
        self._left: SequenceState | None = None

    @property
    def state(self) -> SequenceState:
        """The present state, also in the middle of a generated span: the text so far, with keys and values.

        A span that has not ended counts as cut (`length`): `continuous(generator).resume` continues it. The state may contain
        characters that the stream still holds back. Cost: shares keys and values; some microseconds per row.
        """
        return self._left if self._left is not None else self._call.snapshot()

    def written(self) -> tuple[Sequence[int], bytes]:
        """Return the ids of the span of the first row so far, and the bytes of the prompt with which it begins, if it was healed."""
        row = self._call.rows[0]
        return ((), b"") if row is None else (row.piece_ids, row.healed)

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield events with the new part of each row after each step. A stream can be iterated once.

        Raises:
            BaseException: the error that interrupts the run. A single row that fails has its error in its last event, and the others
                continue.
        """
        if not self._begin():
            return
        steps = self._call.steps()  # a variable, so that the rows are cancelled only after `close` has taken the state
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
        async with aclosing(self._call.async_steps()) as steps:
            try:
                async for _ in steps:
                    for event in await asyncio.to_thread(self._events.pull):
                        yield event
            finally:
                await self.aclose()

    def close(self) -> None:
        """Cancel the rows; `state` keeps its present value."""
        if self._left is None:
            self._left = self._call.leave()

    def _begin(self) -> bool:
        is_first = self._left is None and not self._is_begun
        self._is_begun = True
        return is_first
