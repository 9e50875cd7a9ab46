"""`ChatStream`: iterates once over the events of a reply, with or without tool calls, in a `for` or `async for` loop; at every moment
`chat` is the conversation with the reply so far. Leaving the loop ends the reply there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, Protocol, TypeVar

from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.state.sequence_state import SequenceState

ChatT = TypeVar("ChatT")


class _ReplyEvents(Protocol):
    """Events of a generated span or of a reply with tool calls, and its state: a `StateStream` or a `ToolStream`."""

    @property
    def state(self) -> SequenceState: ...
    def __iter__(self) -> Iterator[StreamEvent]: ...
    def __aiter__(self) -> AsyncIterator[StreamEvent]: ...
    def close(self) -> None: ...


class ChatStream(Closing, Generic[ChatT]):
    """Events of a reply, to be iterated once: `for event in stream`, or `async for event in stream`.

    Leaving the loop ends the reply where it is; `chat` has what was written. Nothing is computed before iteration begins.
    """

    def __init__(self, stream: _ReplyEvents, replied: Callable[[SequenceState], ChatT]) -> None:
        self._stream = stream
        self._replied = replied

    @property
    def chat(self) -> ChatT:
        """The conversation with the reply as far as it was written; a reply that was cut has no value where it is constrained.

        Raises:
            Exception: the error of the row.
        """
        return self._replied(self._stream.state)

    def __iter__(self) -> Iterator[StreamEvent]:
        """Run, and yield what is new after each step. A stream can be iterated once."""
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The asynchronous form, which does not block the event loop."""
        return aiter(self._stream)

    def close(self) -> None:
        """End the work, wherever it is."""
        self._stream.close()
