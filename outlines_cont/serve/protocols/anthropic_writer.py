"""`MessageWriter`: the replies of `/v1/messages`: blocks of content (thoughts, a text, calls) that grow by events. A whole reply has the
blocks that the events of a stream make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from outlines_cont.events.event import OpenCall, StreamEvent
from outlines_cont.serve.protocols.anthropic import MessagesRequest, error_body
from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.choice import Answer, Choice
from outlines_cont.serve.protocols.replies import Writer

# Of each type of block: the type of its deltas, and their field.
_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class MessageWriter(Writer):
    """Replies of Messages.

    Tokens of the prompt that were cached are known at the first token: `message_start` counts all of them as `input_tokens`, and
    `message_delta` has the counts of the whole reply.
    """

    prefix, end = "msg_", b""

    def __init__(self, model: Any, name: str, answer: Answer, request: MessagesRequest) -> None:
        super().__init__(model, name, answer)
        self._stops = request.stop_sequences or []
        self._blocks: list[dict[str, Any]] = []
        self._text: list[str] = []  # of the open block
        self._is_open = False
        self._reason = "end_turn"
        self._stop: str | int | None = None

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the events before any text."""
        usage = self._usage | {"input_tokens": self._answer.counts["prompt"], "cache_read_input_tokens": 0}
        yield {"type": "message_start", "message": self._message([], None, None, usage)}
        yield {"type": "ping"}

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield the events of new text, and of blocks that begin and end."""
        if event.text and event.is_thought:
            yield from self._grown({"type": "thinking", "thinking": "", "signature": ""}, event.text)
        elif event.text:
            yield from self._grown({"type": "text", "text": ""}, event.text)
        if event.call is not None:
            yield from self._grown(_call_block(event.call), event.call.text)
        if event.finish_reason:
            self._note_end(choice, event)

    def last(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the last block, and why the reply has ended."""
        yield from self._ended()
        delta = {"stop_reason": self._reason, "stop_sequence": self._stop}
        yield {"type": "message_delta", "delta": delta, "usage": self._usage}
        yield {"type": "message_stop"}

    def failed(self, error: APIError) -> Iterator[dict[str, Any]]:
        """Yield the error, which ends a stream."""
        yield error_body(error)

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        for choice, event in events:
            for _ in self.chunks(choice, event):
                pass
        for _ in self._ended():
            pass
        return self._message(self._blocks, self._reason, self._stop, self._usage)

    def _grown(self, block: dict[str, Any], text: str) -> Iterator[dict[str, Any]]:
        """Yield the events of more text of a block, which begins if another one is open."""
        last = self._blocks[-1] if self._is_open else {}
        if (last.get("type"), last.get("id")) != (block["type"], block.get("id")):
            yield from self._ended()
            self._blocks.append(block)
            self._is_open = True
            yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}
        self._text.append(text)
        if text:
            yield self._delta({_DELTAS[block["type"]][1]: text}, _DELTAS[block["type"]][0])

    def _ended(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the open block, and keep it whole; the input of a call that was cut has what is known of it."""
        if not self._is_open:
            return
        block, text = self._blocks[-1], "".join(self._text)
        if block["type"] == "tool_use":
            block["input"] = from_json(text, allow_partial=True) if text.strip() else {}
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            yield self._delta({"signature": block["signature"]}, "signature_delta")
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}
        self._text, self._is_open = [], False

    def _delta(self, fields: dict[str, Any], kind: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": {"type": kind, **fields}}

    def _note_end(self, choice: Choice, event: StreamEvent) -> None:
        self._reason = _REASONS[choice.reason(event)]
        if self._reason == "end_turn" and event.stop in self._stops:
            self._reason, self._stop = "stop_sequence", event.stop

    def _message(
        self, blocks: Sequence[dict[str, Any]], reason: str | None, stop: Any, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._name,
            "content": [*blocks],
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    @property
    def _usage(self) -> dict[str, Any]:
        """The tokens so far; `input_tokens` are those of the prompt that were not cached."""
        counts = self._answer.counts
        return {
            "input_tokens": counts["prompt"] - counts["cached"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts["cached"],
            "output_tokens": counts["written"],
            "output_tokens_details": {"thinking_tokens": counts["thoughts"]},
        }


def _call_block(call: OpenCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
