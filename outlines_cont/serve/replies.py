"""`ChatWriter` and `CompletionWriter`: whole replies, and chunks of streams, as dicts of OpenAI's protocol."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from outlines_cont.events.event import Alternatives, OpenCall, StreamEvent
from outlines_cont.serve.api_error import APIError
from outlines_cont.serve.choice import Answer, Choice, all_events
from outlines_cont.serve.requests import ChatRequest, CompletionRequest

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LEAST = -9999.0  # in place of minus infinity, which JSON lacks


def sent(chunks: Iterable[dict[str, Any]]) -> bytes:
    """Return chunks as server-sent events."""
    heads = ((f"event: {chunk['type']}\n" if "type" in chunk else "", chunk) for chunk in chunks)
    return "".join(f"{head}data: {_json(chunk)}\n\n" for head, chunk in heads).encode()


class Writer:
    """What all kinds of replies share: id, time, and the log-probabilities of tokens."""

    prefix: ClassVar[str]
    end: ClassVar[bytes] = b"data: [DONE]\n\n"  # of a stream

    def __init__(self, model: Any, name: str, answer: Answer) -> None:
        self._tokenizer, self._answer, self._name = model.tokenizer, answer, name
        self.id, self._created = f"{self.prefix}{uuid.uuid4().hex}", int(time.time())

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks before any text."""
        yield from ()

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield an event as chunks; none where it has no news for the client."""
        raise NotImplementedError

    def sent(self, choice: Choice, event: StreamEvent) -> bytes:
        """Return the chunks of an event as server-sent events."""
        return sent(self.chunks(choice, event))

    def last(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks after the last event."""
        raise NotImplementedError

    def failed(self, error: APIError) -> Iterator[dict[str, Any]]:
        """Yield the chunks by which a stream ends that has failed."""
        yield error.body

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        raise NotImplementedError

    def _spelled(self, token_id: int) -> tuple[str, list[int]]:
        data = self._tokenizer.token_bytes[token_id]
        data = self._tokenizer.special_tokens.get(token_id, "").encode() if data is None else data
        return data.decode(errors="replace"), list(data)

    def _logprobs(self, event: StreamEvent) -> list[dict[str, Any]]:
        """Return the log-probabilities of the tokens of an event, as a chat has them; none where none are asked for."""
        if self._answer.top is None or event.is_thought:
            return []
        tops = event.top or ((),) * len(event.token_ids)
        pairs = zip(event.token_ids, event.logprobs, tops, strict=True)
        return [self._logprob(token_id, value) | {"top_logprobs": self._others(top)} for token_id, value, top in pairs]

    def _others(self, top: Alternatives) -> list[dict[str, Any]]:
        return [self._logprob(token_id, value) for token_id, value in top]

    def _logprob(self, token_id: int, value: float) -> dict[str, Any]:
        text, data = self._spelled(token_id)
        return {"token": text, "logprob": _finite(value), "bytes": data}


class _ChoicesWriter(Writer):
    """What replies with choices share: their chunks and the usage."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, model: Any, name: str, answer: Answer, request: ChatRequest | CompletionRequest) -> None:
        super().__init__(model, name, answer)
        self._has_usage, self._has_token_ids = request.has_usage, bool(request.return_token_ids)

    def last(self) -> Iterator[dict[str, Any]]:
        """Yield the chunk with the usage, if it is asked for."""
        if self._has_usage:
            yield self._chunk([]) | {"usage": self._usage}

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        choices = [
            self._choice(choice, [event for other, event in events if other is choice])
            for choice in self._answer.choices
        ]
        return self._chunk(choices) | {"object": self.kind, "usage": self._usage}

    def _choice(self, choice: Choice, events: Sequence[StreamEvent]) -> dict[str, Any]:
        raise NotImplementedError

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        head = {"id": self.id, "object": self.chunk_kind, "created": self._created, "model": self._name}
        return head | {"choices": choices}

    @property
    def _usage(self) -> dict[str, Any]:
        counts = self._answer.counts
        read, written = counts["prompt"], counts["written"]
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": counts["cached"]},
            "completion_tokens_details": {"reasoning_tokens": counts["thoughts"]},
        }

    def _ids(self, event: StreamEvent) -> dict[str, Any]:
        return {"token_ids": [] if event.is_thought else list(event.token_ids)} if self._has_token_ids else {}


class ChatWriter(_ChoicesWriter):
    """Replies of Chat Completions."""

    prefix, kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: Any, name: str, answer: Answer, request: ChatRequest) -> None:
        super().__init__(model, name, answer, request)
        self._custom = request.custom_names
        self._frames: dict[int, list[bytes]] = {}

    def sent(self, choice: Choice, event: StreamEvent) -> bytes:
        """Return the chunk of an event; where that is only text, without its other fields being encoded again."""
        is_more = event.finish_reason or event.is_thought or event.call is not None
        if is_more or not event.text or self._has_token_ids or self._answer.top is not None:
            return super().sent(choice, event)
        frame = self._frames.get(choice.index)
        if frame is None:
            # Nothing after the text is from a request.
            frame = self._frames[choice.index] = sent([self._delta(choice, {"content": ""})]).rsplit(b'""', 1)
        return _json(event.text).encode().join(frame)

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield a chunk with the role for each choice."""
        for choice in self._answer.choices:
            yield self._delta(choice, {"role": "assistant", "content": ""})

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield an event as a chunk, if it has news for the client."""
        delta: dict[str, Any] = {}
        if event.text:
            delta["reasoning_content" if event.is_thought else "content"] = event.text
        if event.call is not None:
            delta["tool_calls"] = [self._call_delta(choice, event.call)]
        reason = choice.reason(event) if event.finish_reason else None
        logprobs = self._logprobs(event)
        if delta or reason is not None or logprobs:
            yield self._delta(choice, delta, reason, logprobs, self._ids(event))

    def _call_delta(self, choice: Choice, call: OpenCall) -> dict[str, Any]:
        kind, is_first = "custom" if call.name in self._custom else "function", call.index not in choice.told
        told = {"input" if kind == "custom" else "arguments": choice.news(call, is_custom=kind == "custom")}
        if is_first:
            return {"index": call.index, "id": call.id, "type": kind, kind: {"name": call.name} | told}
        return {"index": call.index, kind: told}

    def _delta(
        self, choice: Choice, delta: Any, reason: str | None = None, logprobs: Any = (), more: Any = None
    ) -> dict[str, Any]:
        found = {"content": logprobs, "refusal": None} if logprobs else None
        one = {"index": choice.index, "delta": delta, "finish_reason": reason, "logprobs": found}
        return self._chunk([one | (more or {})])

    def _choice(self, choice: Choice, events: Sequence[StreamEvent]) -> dict[str, Any]:
        event, calls = all_events(events), self._whole_calls(events)
        message: dict[str, Any] = {"role": "assistant", "content": event.text, "refusal": None}
        if thoughts := "".join(one.text for one in events if one.is_thought):
            message["reasoning_content"] = thoughts
        if calls:
            message |= {"content": event.text or None, "tool_calls": calls}
        logprobs = None if self._answer.top is None else {"content": self._logprobs(event), "refusal": None}
        one = {"index": choice.index, "message": message, "finish_reason": choice.reason(event), "logprobs": logprobs}
        return one | self._ids(event)

    def _whole_calls(self, events: Sequence[StreamEvent]) -> list[dict[str, Any]]:
        """Return the complete calls of a reply."""
        texts: dict[int, str] = {}
        found: list[dict[str, Any]] = []
        for call in (event.call for event in events if event.call is not None):
            texts[call.index] = texts.get(call.index, "") + call.text
            if call.is_whole and call.name in self._custom:
                custom = {"name": call.name, "input": call.arguments["input"]}
                found.append({"id": call.id, "type": "custom", "custom": custom})
            elif call.is_whole:
                function = {"name": call.name, "arguments": texts[call.index]}
                found.append({"id": call.id, "type": "function", "function": function})
        return found


class CompletionWriter(_ChoicesWriter):
    """Replies of Completions."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield an event as a chunk, if it has news for the client."""
        if event.text or event.finish_reason or event.token_ids:
            yield self._chunk([self._choice(choice, [event])])

    def _choice(self, choice: Choice, events: Sequence[StreamEvent]) -> dict[str, Any]:
        event = all_events(events)
        reason = choice.reason(event) if event.finish_reason else None
        one = {"index": choice.index, "text": event.text, "finish_reason": reason, "logprobs": self._columns(event)}
        return one | self._ids(event)

    def _columns(self, event: StreamEvent) -> dict[str, Any] | None:
        if self._answer.top is None:
            return None
        found = self._logprobs(event)
        return {
            "tokens": [one["token"] for one in found],
            "token_logprobs": [one["logprob"] for one in found],
            "top_logprobs": [{other["token"]: other["logprob"] for other in one["top_logprobs"]} for one in found],
        }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST
