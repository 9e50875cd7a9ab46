"""`ChatStream`: the events of a reply, in a `for` or `async for` loop; at any time `chat` is the conversation with the reply so far. Those
of a reply that may call tools are split at the marker of a call, by `ReplyEvents`: events of text, then of calls (parsed by `OpenCalls`). A
possible beginning of the marker is held back until that is known; no text is retracted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from outlines_cont.chats.replies.open_calls import OpenCalls
from outlines_cont.chats.replies.tool_reply import ReplyConstraint, ReplyMaker
from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.generation.state_stream import StateStream
from outlines_cont.state.sequence_state import SequenceState

ChatT = TypeVar("ChatT")

_NOWHERE = 2**62


class ChatStream(Closing, Generic[ChatT]):
    """Events of a reply, to be iterated once: `for event in stream`, or `async for event in stream`.

    Leaving the loop cuts the reply; `chat` contains it. Nothing is computed before iteration begins.
    """

    def __init__(
        self, stream: StateStream, replied: Callable[[SequenceState], ChatT], split: ReplyEvents | None = None
    ) -> None:
        """Show the events of `stream`, split where the reply may call."""
        self._stream, self._replied, self._split = stream, replied, split

    @property
    def chat(self) -> ChatT:
        """The conversation with the reply so far; a constrained reply that was cut has no value.

        Raises:
            Exception: the error of the row.
        """
        return self._replied(self._stream.state)

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield events after each step. A stream can be iterated once."""
        for event in self._stream:
            yield from self._shown(event)

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The asynchronous form, which does not block the event loop."""
        async for event in self._stream:
            for shown in self._shown(event):
                yield shown

    def close(self) -> None:
        """Cancel the rows."""
        self._stream.close()

    def _shown(self, event: StreamEvent) -> Iterator[StreamEvent]:
        return iter((event,)) if self._split is None else self._split.of(event)


class ReplyEvents:
    """Splits the events of one row, of a reply by `maker`, at the marker of a call."""

    def __init__(self, stream: StateStream, maker: ReplyMaker, calls: OpenCalls) -> None:
        self._stream, self._calls = stream, calls
        assert isinstance(maker.constraint, ReplyConstraint)
        self._constraint, self._tokenizer = maker.constraint, maker.model.tokenizer
        self._num_seen = 0  # characters of the reply in earlier events
        self._begin: int | None = None  # where the calls begin in its text, once that is known

    def of(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """Yield the event as one of text, and one for each call that it is about."""
        text_end, calls_begin = self._marker_place()
        before = max(text_end - self._num_seen, 0)
        text = event.text[:before]
        called = event.text[max(calls_begin - self._num_seen, 0) :]
        self._num_seen += len(event.text)
        if self._begin is None:
            yield event
            return
        news = list(self._calls.push(called))
        shown = replace(event, text=text, value=None)
        if not news:
            yield shown
            return
        end = (event.finish_reason, event.stop, event.error)
        if text:
            yield replace(shown, finish_reason="", stop=None, error=None)
            shown = StreamEvent(batch=0, sample=0)
        for number, call in enumerate(news):
            new = replace(shown if number == 0 else StreamEvent(batch=0, sample=0), text="", call=call)
            reason, stop, error = end if number == len(news) - 1 else ("", None, None)
            yield replace(new, finish_reason=reason, stop=stop, error=error)

    def _marker_place(self) -> tuple[int, int]:
        """Return the numbers of characters before and up to the end of the marker; far beyond the text if there is none yet."""
        constraint = self._constraint
        if self._begin is None:
            ids, healed = self._stream.written()
            at = constraint.calls_begin(ids, healed)
            if at is None:
                return _NOWHERE, _NOWHERE
            self._begin = len(self._tokenizer.text_bytes(ids[:at])[len(healed) :].decode(errors="replace"))
        marker = 0 if constraint.marker_id is not None else len(constraint.marker)
        return self._begin - marker, self._begin
