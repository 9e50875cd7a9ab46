"""`ChatStream`: the events of a reply, in a `for` or `async for` loop; at any time `chat` is the conversation with the reply so far.
`ToolStream`: the same if it may call tools, as two generations in turn: text up to the marker of a call, then calls under their constraint
(parsed by `OpenCalls`), or more text. A possible beginning of the marker is held back until that is known; no text is retracted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Generic, TypeVar

from outlines_cont.chats.replies.open_calls import OpenCalls
from outlines_cont.chats.replies.tool_reply import ToolPlan
from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.options import PieceOptions
from outlines_cont.generation.state_stream import StateStream
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState

ChatT = TypeVar("ChatT")


class ChatStream(Closing, Generic[ChatT]):
    """Events of a reply, to be iterated once: `for event in stream`, or `async for event in stream`.

    Leaving the loop cuts the reply; `chat` contains it. Nothing is computed before iteration begins.
    """

    def __init__(self, stream: StateStream | ToolStream, replied: Callable[[SequenceState], ChatT]) -> None:
        self._stream = stream
        self._replied = replied

    @property
    def chat(self) -> ChatT:
        """The conversation with the reply so far; a constrained reply that was cut has no value.

        Raises:
            Exception: the error of the row.
        """
        return self._replied(self._stream.state)

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield events after each step. A stream can be iterated once."""
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The asynchronous form, which does not block the event loop."""
        return aiter(self._stream)

    def close(self) -> None:
        """Cancel the rows."""
        self._stream.close()


class ToolStream(Closing):
    """Events of a reply: first of its text, then of its calls.

    It continues `before`, a state of one row; `first` is the number of its first call in the conversation. `shown` is without `retract`.

    Raises:
        OptionError: as `ToolPlan.text_options` does, and a stream of the text.
    """

    def __init__(
        self,
        reply: ToolPlan,
        before: SequenceState,
        first: int,
        shown: StreamOptions,
        options: PieceOptions,
        rng: Rng,
    ) -> None:
        self._reply, self._before, self._first, self._shown, self._options = reply, before, first, shown, options
        self._stream: StateStream | None = StateStream(
            reply.writer, before, self._shown, reply.text_options(options), rng=rng
        )
        self._running: StateStream = self._stream
        self._done: SequenceState | None = None
        self._held = ""  # text that may begin a call
        self._seen = 0, 0  # the numbers of characters and tokens of the text so far, reported or held back
        self._last: StreamEvent | None = None
        self._is_text = True  # whether the text before the calls is running
        self._calls: OpenCalls | None = None

    @property
    def state(self) -> SequenceState:
        """The present state; see `StateStream.state`."""
        return self._done if self._done is not None else self._running.state

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield events after each step. A stream can be iterated once."""
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
                    for shown in self._events_of(event):
                        yield shown
                self._stream = None
                for shown in await asyncio.to_thread(self._start_rest):
                    yield shown

    def close(self) -> None:
        """Cancel the rows; `state` keeps its present value."""
        self._stream = None
        self._running.close()

    def _events_of(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """Yield the events of the reply for one event of the running generator."""
        if self._calls is not None:
            yield from _call_events(self._calls, event)
        elif not self._is_text:
            new = self._without_resumed(event)
            if new.text or new.token_ids or new.value is not None or new.finish_reason:
                yield new
        else:
            self._seen = self._seen[0] + len(event.text), self._seen[1] + len(event.token_ids)
            text = self._held + event.text
            shown = len(text) - _num_begun(text, self._reply.marker)
            if event.finish_reason:  # whether calls follow is known when the stream is over
                self._last = replace(event, text=text)
                return
            self._held = text[shown:]
            new = replace(event, text=text[:shown])
            if new.text or new.token_ids or new.value is not None:
                yield new

    def _without_resumed(self, event: StreamEvent) -> StreamEvent:
        """Return the event of a resumed text without the part that earlier events contained."""
        text, tokens = min(len(event.text), self._seen[0]), min(len(event.token_ids), self._seen[1])
        self._seen = self._seen[0] - text, self._seen[1] - tokens
        ids, logprobs, top = event.token_ids[tokens:], event.logprobs[tokens:], event.top[tokens:]
        return replace(event, text=event.text[text:], token_ids=ids, logprobs=logprobs, top=top)

    def _start_rest(self) -> list[StreamEvent]:
        """Start the rest of the reply, if there is one, and return the last event of the text before it."""
        last, reply = self._last, self._reply
        if not self._is_text or last is None:
            return []
        self._is_text = False
        kind, state, rest = reply.rest(self._before, self._running.state, self._options)
        if kind == "nothing":
            return [last]
        marker_id = reply.marker_id
        if kind == "calls" and marker_id is None:
            last = replace(last, text=last.text.removesuffix(reply.marker))
        elif kind == "calls" and marker_id is not None:
            ids, logprobs, top = (*last.token_ids, marker_id), (*last.logprobs, 0.0), (*last.top, ())
            last = replace(last, token_ids=ids, logprobs=logprobs, top=top)
        if rest is None:
            self._done = state
            return [replace(last, finish_reason="length", stop=None)]
        if kind == "calls":
            self._calls = OpenCalls(reply.form, reply.tools, self._first, reply.marker)
            shown = replace(self._shown, partial=False)
            self._running = self._stream = StateStream(reply.caller, state, shown, rest)
        else:
            self._running = self._stream = StateStream(reply.writer, state, self._shown, rest, resume=True)
        return [replace(last, finish_reason="", stop=None)]


def _call_events(calls: OpenCalls, event: StreamEvent) -> Iterator[StreamEvent]:
    """Yield an event for each call that the text of an event belongs to."""
    news = list(calls.push(event.text))
    if not news:
        yield replace(event, text="")
    for number, call in enumerate(news):
        new = replace(event, text="", call=call) if number == 0 else StreamEvent(batch=0, sample=0, call=call)
        is_last = number == len(news) - 1
        end = (event.finish_reason, event.stop, event.error) if is_last else ("", None, None)
        yield replace(new, finish_reason=end[0], stop=end[1], error=end[2])


def _num_begun(text: str, marker: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a marker."""
    return next((n for n in range(min(len(text), len(marker)), 0, -1) if text.endswith(marker[:n])), 0)
