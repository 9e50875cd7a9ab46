"""`ResponseWriter`: the replies of `/v1/responses`: items of output (thoughts, a message, calls) that grow by events with sequence numbers.
A whole reply is the response in the last of them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlines_cont.events.event import OpenCall, StreamEvent
from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.choice import Answer, Choice
from outlines_cont.serve.protocols.replies import Writer
from outlines_cont.serve.protocols.responses import ResponsesRequest

# For each type of item: the prefix of its id, the name of its text, and the name of its events.
_TYPES = {
    "reasoning": ("rs_", "text", "response.reasoning_text"),
    "message": ("msg_", "text", "response.output_text"),
    "function_call": ("fc_", "arguments", "response.function_call_arguments"),
    "custom_tool_call": ("ctc_", "input", "response.custom_tool_call_input"),
}


@dataclass(slots=True)
class _Item:
    """An item of the output that is being written."""

    type: str
    index: int
    fields: dict[str, Any]
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = _TYPES[self.type][0] + uuid.uuid4().hex

    @property
    def place(self) -> dict[str, Any]:
        """Where its events belong."""
        found = {"item_id": self.id, "output_index": self.index}
        return found if self.is_call else found | {"content_index": 0}

    @property
    def is_call(self) -> bool:
        """Whether it is a call."""
        return self.type.endswith("call")

    @property
    def part(self) -> dict[str, Any]:
        """The text as a part of the item."""
        if self.type == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self.logprobs]}

    def shown(self, status: str) -> dict[str, Any]:
        """Return the item as it is."""
        found = {"id": self.id, "type": self.type, "status": status, **self.fields}
        if self.is_call:
            return found | {_TYPES[self.type][1]: self.text}
        return found | {"content": [] if status == "in_progress" else [self.part]}


class ResponseWriter(Writer):
    """Replies of Responses."""

    prefix = "resp_"

    def __init__(self, model: Any, name: str, answer: Answer, request: ResponsesRequest) -> None:
        super().__init__(model, name, answer)
        self._request, self._number = request, 0
        self._custom = {tool.name for tool in request.own_tools if tool.type == "custom"}
        self._output: list[dict[str, Any]] = []
        self._item: _Item | None = None
        self._is_cut = False

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the events before any text."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield the events of new text, and of items that begin and end."""
        logprobs = self._logprobs(event)
        if event.text or logprobs:
            yield from self._grown("reasoning" if event.is_thought else "message", event.text, logprobs)
        if event.call is not None:
            is_custom = event.call.name in self._custom
            kind, text = (
                "custom_tool_call" if is_custom else "function_call",
                choice.news(event.call, is_custom=is_custom),
            )
            yield from self._grown(kind, text, call=event.call, call_id=choice.id_of(event.call))
        if event.finish_reason:
            self._is_cut = choice.reason(event) == "length"

    def last(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the last item, and the whole response."""
        if self._item is None:
            yield from self._grown("message", "")
        status = "incomplete" if self._is_cut else "completed"
        yield from self._ended(status)
        yield self._event(f"response.{status}", response=self._response(status))

    def failed(self, error: APIError) -> Iterator[dict[str, Any]]:
        """Yield the error, and the response so far."""
        yield self._event("error", code=error.code, message=str(error), param=error.param)
        found = self._response("failed") | {"error": {"code": "server_error", "message": str(error)}}
        yield self._event("response.failed", response=found)

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        for choice, event in events:
            for _ in self.chunks(choice, event):
                pass
        *_, last = self.last()
        found: dict[str, Any] = last["response"]
        return found

    def _grown(
        self, kind: str, text: str, logprobs: Sequence[Any] = (), *, call: OpenCall | None = None, call_id: str = ""
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of more text of an item, which begins if another one is open."""
        item = self._item
        if item is None or item.type != kind or (call is not None and item.fields["call_id"] != call_id):
            yield from self._ended("completed")
            fields: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
            if call is not None:
                fields = {"call_id": call_id, "name": call.name}
            item = self._item = _Item(kind, len(self._output), fields)
            yield self._event("response.output_item.added", output_index=item.index, item=item.shown("in_progress"))
            if not item.is_call:
                yield self._event("response.content_part.added", **item.place, part=item.part)
        item.text += text
        item.logprobs += logprobs
        if text or logprobs:
            more = {"logprobs": [*logprobs]} if kind == "message" else {}
            yield self._event(f"{_TYPES[kind][2]}.delta", **item.place, delta=text, **more)

    def _ended(self, status: str) -> Iterator[dict[str, Any]]:
        """Yield the events of the end of the open item."""
        item, self._item = self._item, None
        if item is None:
            return
        _, name, kind = _TYPES[item.type]
        more: dict[str, Any] = {"logprobs": item.logprobs} if item.type == "message" else {}
        if item.type == "function_call":
            more = {"name": item.fields["name"]}
        yield self._event(f"{kind}.done", **item.place, **{name: item.text}, **more)
        if not item.is_call:
            yield self._event("response.content_part.done", **item.place, part=item.part)
        self._output.append(item.shown(status))
        yield self._event("response.output_item.done", output_index=item.index, item=self._output[-1])

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _response(self, status: str) -> dict[str, Any]:
        request, is_over = self._request, status not in ("in_progress", "failed")
        given = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        reasoning = {"effort": None, "summary": None} | given.get("reasoning", {})
        return (
            {
                "id": self.id,
                "object": "response",
                "created_at": self._created,
                "completed_at": int(time.time()) if is_over else None,
                "status": status,
                "error": None,
                "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
                "instructions": request.instructions,
                "max_output_tokens": request.max_output_tokens,
                "model": self._name,
                "output": [*self._output],
                "parallel_tool_calls": request.parallel_tool_calls is not False,
                "reasoning": reasoning,
                "temperature": given.get("temperature", 1.0),
                "text": given.get("text", {}) | {"format": request.format.as_told()},
                "tool_choice": given.get("tool_choice", "auto"),
                "tools": [tool.as_told() for tool in request.own_tools],
                "top_p": given.get("top_p", 1.0),
                "top_logprobs": given.get("top_logprobs", 0),
                "metadata": given.get("metadata", {}),
                "usage": self._usage if is_over else None,
                "presence_penalty": given.get("presence_penalty", 0.0),
                "frequency_penalty": given.get("frequency_penalty", 0.0),
                "max_tool_calls": request.max_tool_calls,
            }
            | _FIXED
            | {name: given.get(name) for name in ("prompt_cache_key", "safety_identifier", "user")}
        )

    @property
    def _usage(self) -> dict[str, Any]:
        counts = self._answer.counts
        read, written = counts["prompt"], counts["written"]
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": counts["cached"], "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": counts["thoughts"]},
            "total_tokens": read + written,
        }


_FIXED = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}
"""What is the same in each response."""
