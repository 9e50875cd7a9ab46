"""`ToolStream`: streams a reply that may call tools: the events of its text, then those of its calls with partial arguments. Text that may
be the beginning of the marker of a call (a suffix that is a prefix of the marker) is held back until that is decided; nothing is retracted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from dataclasses import replace

from outlines_cont.chats.replies.open_calls import OpenCalls
from outlines_cont.chats.replies.tool_plan import ToolPlan, cut
from outlines_cont.continuation import continuous
from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.run import Run
from outlines_cont.generation.state_stream import StateStream
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


class ToolStream(Closing):
    """Events of a reply: first of its text, then of its calls. Text that may begin a call is held back.

    Args:
        reply: how the reply is written.
        before: the state of one row that it continues.
        first: the number of its first call in the conversation.
        top, partial: as in `continuous(generator).stream`, of the text.
        rng, options: as in a call.

    Raises:
        OptionError: as `ToolPlan.begin` does, and a stream of the text.
    """

    def __init__(
        self,
        reply: ToolPlan,
        before: SequenceState,
        first: int,
        *,
        top: int,
        partial: bool,
        rng: Rng,
        options: PieceOptions,
    ) -> None:
        self._reply, self._before, self._first, self._options = reply, before, first, options
        self._top, self._partial = top, partial
        self._stream: StateStream | None = continuous(reply.writer).stream(
            before, top=top, partial=partial, rng=rng, **reply.begin(options)
        )
        self._running: StateStream = self._stream
        self._done: SequenceState | None = None
        self._held = ""  # text that may begin a call
        self._seen = 0, 0  # how many characters and tokens of the text there were, reported or held
        self._last: StreamEvent | None = None
        self._is_text = True  # whether what runs is the text before the calls
        self._calls: OpenCalls | None = None

    @property
    def state(self) -> SequenceState:
        """The present state; see `StateStream.state`."""
        return self._done if self._done is not None else self._running.state

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield what is new after each step. A stream can be iterated once."""
        with closing(self):
            while (stream := self._stream) is not None:
                for event in stream:
                    yield from self._events_of(event)
                self._stream = None
                yield from self._start_rest()

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The asynchronous form, which does not block the event loop."""
        async with aclosing(self):
            while (stream := self._stream) is not None:
                async for event in stream:
                    for told in self._events_of(event):
                        yield told
                self._stream = None
                for told in await asyncio.to_thread(self._start_rest):
                    yield told

    def close(self) -> None:
        """End the work, wherever it is; `state` stays what it is now."""
        self._stream = None
        self._running.close()

    def _events_of(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """Yield the events of the reply for one event of the running generator."""
        if self._calls is not None:
            yield from _call_events(self._calls, event)
        elif not self._is_text:
            told = self._without_resumed(event)
            if told.text or told.token_ids or told.value is not None or told.finish_reason:
                yield told
        else:
            self._seen = self._seen[0] + len(event.text), self._seen[1] + len(event.token_ids)
            text = self._held + event.text
            shown = len(text) - _num_begun(text, self._reply.marker)
            if event.finish_reason:  # what follows is known when the stream is over
                self._last = replace(event, text=text)
                return
            self._held = text[shown:]
            told = replace(event, text=text[:shown])
            if told.text or told.token_ids or told.value is not None:
                yield told

    def _without_resumed(self, event: StreamEvent) -> StreamEvent:
        """Return the event of a resumed text without the part that earlier events contained."""
        text, tokens = min(len(event.text), self._seen[0]), min(len(event.token_ids), self._seen[1])
        self._seen = self._seen[0] - text, self._seen[1] - tokens
        ids, logprobs, top = event.token_ids[tokens:], event.logprobs[tokens:], event.top[tokens:]
        return replace(event, text=event.text[text:], token_ids=ids, logprobs=logprobs, top=top)

    def _start_rest(self) -> list[StreamEvent]:
        """Begin the rest of the reply, where there is one, and return the event with which the text before it ends."""
        last, reply = self._last, self._reply
        if not self._is_text or last is None:
            return []
        self._is_text = False
        state = self._running.state
        kind = reply.next(self._before, state)
        if kind == "nothing":
            return [last]
        if kind == "calls":
            marker_id = reply.marker_id
            state = reply.called(state)
            if marker_id is None:
                last = replace(last, text=last.text.removesuffix(reply.marker))
            else:
                ids, logprobs, top = (*last.token_ids, marker_id), (*last.logprobs, 0.0), (*last.top, ())
                last = replace(last, token_ids=ids, logprobs=logprobs, top=top)
        rest = reply.rest(self._before, state, self._options)
        if rest is None:
            self._done = cut(state)
            return [replace(last, finish_reason="length", stop=None)]
        if kind == "calls":
            self._calls = OpenCalls(reply.form, reply.tools, self._first, reply.marker)
            self._running = self._stream = continuous(reply.caller).stream(state, top=self._top, **rest)
        else:
            shown = StreamOptions(True, self._top, False, self._partial)
            self._running = self._stream = StateStream(
                Run(reply.writer, cut(state), Options.of(rest), resume=True), shown
            )
        return [replace(last, finish_reason="", stop=None)]


def _call_events(calls: OpenCalls, event: StreamEvent) -> Iterator[StreamEvent]:
    """Yield an event for each call that the text of an event belongs to."""
    news = list(calls.push(event.text))
    if not news:
        yield replace(event, text="")
    for number, call in enumerate(news):
        told = replace(event, text="", call=call) if number == 0 else StreamEvent(batch=0, sample=0, call=call)
        is_last = number == len(news) - 1
        end = (event.finish_reason, event.stop, event.error) if is_last else ("", None, None)
        yield replace(told, finish_reason=end[0], stop=end[1], error=end[2])


def _num_begun(text: str, marker: str) -> int:
    """Return how many characters at the end of a text are the beginning of a marker, or all of it."""
    return next((n for n in range(min(len(text), len(marker)), 0, -1) if text.endswith(marker[:n])), 0)
