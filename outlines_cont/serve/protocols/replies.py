"""`ChatWriter` and `CompletionWriter`: whole replies, and chunks of streams, as dicts of OpenAI's protocol."""

from __future__ import annotations

import json
import math
import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from outlines_cont.events.event import Alternatives, OpenCall, StreamEvent
from outlines_cont.serve.protocols.api_error import APIError
from outlines_cont.serve.protocols.choice import Answer, Choice, Echo, all_events
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest

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
        self._ends: frozenset[int] = model.eos_token_ids
        self.id, self._created = f"{self.prefix}{uuid.uuid4().hex}", int(time.time())

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks before any text."""
        yield from ()

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield an event as chunks; none if it has no news for the client."""
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
        """Return the log-probabilities of the tokens of an event, as a chat has them; none if none are asked for."""
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
        self._custom, self._has_functions = request.custom_names, bool(request.functions)
        self._frames: dict[int, list[bytes]] = {}

    def sent(self, choice: Choice, event: StreamEvent) -> bytes:
        """Return the chunk of an event; if it is only text, its other fields are not encoded again."""
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
            delta |= self._called([self._call_delta(choice, event.call)])
        reason = self._reason(choice, event) if event.finish_reason else None
        logprobs = self._logprobs(event)
        if delta or reason is not None or logprobs:
            yield self._delta(choice, delta, reason, logprobs, self._ids(event))

    def _called(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return calls, or parts of them, as a message has them; for older clients the one call of a function."""
        return {"function_call": calls[0]["function"]} if self._has_functions else {"tool_calls": calls}

    def _reason(self, choice: Choice, event: StreamEvent) -> str:
        reason = choice.reason(event)
        return "function_call" if self._has_functions and reason == "tool_calls" else reason

    def _call_delta(self, choice: Choice, call: OpenCall) -> dict[str, Any]:
        kind, is_first = "custom" if call.name in self._custom else "function", call.index not in choice.told
        told = {"input" if kind == "custom" else "arguments": choice.news(call, is_custom=kind == "custom")}
        if is_first:
            return {"index": call.index, "id": choice.id_of(call), "type": kind, kind: {"name": call.name} | told}
        return {"index": call.index, kind: told}

    def _delta(
        self, choice: Choice, delta: Any, reason: str | None = None, logprobs: Any = (), more: Any = None
    ) -> dict[str, Any]:
        found = {"content": logprobs, "refusal": None} if logprobs else None
        one = {"index": choice.index, "delta": delta, "finish_reason": reason, "logprobs": found}
        return self._chunk([one | (more or {})])

    def _choice(self, choice: Choice, events: Sequence[StreamEvent]) -> dict[str, Any]:
        event, calls = all_events(events), self._calls(choice, events)
        message: dict[str, Any] = {"role": "assistant", "content": event.text, "refusal": None}
        if thoughts := "".join(one.text for one in events if one.is_thought):
            message["reasoning_content"] = thoughts
        if calls:
            message |= {"content": event.text or None} | self._called(calls)
        logprobs = None if self._answer.top is None else {"content": self._logprobs(event), "refusal": None}
        one = {"index": choice.index, "message": message, "finish_reason": self._reason(choice, event)}
        return one | {"logprobs": logprobs} | self._ids(event)

    def _calls(self, choice: Choice, events: Sequence[StreamEvent]) -> list[dict[str, Any]]:
        """Return the calls of a reply, as the chunks of a stream make them; the last one may be cut."""
        found: dict[int, dict[str, Any]] = {}
        for call in (event.call for event in events if event.call is not None):
            delta = self._call_delta(choice, call)
            if call.index not in found:
                found[call.index] = {key: value for key, value in delta.items() if key != "index"}
                continue
            kind = found[call.index]["type"]
            name = "input" if kind == "custom" else "arguments"
            found[call.index][kind][name] += delta[kind][name]
        return [*found.values()]


class CompletionWriter(_ChoicesWriter):
    """Replies of Completions."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: Any, name: str, answer: Answer, request: CompletionRequest) -> None:
        super().__init__(model, name, answer, request)
        self._decoders: dict[int, tuple[Any, int]] = {}  # of each choice, with how many characters it has given

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield a chunk with the prompt for each choice, if it is asked for."""
        for choice in self._answer.choices:
            if choice.echo is not None:
                yield self._chunk([self._one(choice, choice.echo.text, None, self._echoed(choice))])

    def chunks(self, choice: Choice, event: StreamEvent) -> Iterator[dict[str, Any]]:
        """Yield an event as a chunk, if it has news for the client."""
        if event.text or event.finish_reason or event.token_ids:
            reason = choice.reason(event) if event.finish_reason else None
            found = [*self._written(event), *self._end(choice, event)]
            yield self._chunk([self._one(choice, event.text, reason, found) | self._ids(event)])

    def _choice(self, choice: Choice, events: Sequence[StreamEvent]) -> dict[str, Any]:
        event, echo = all_events(events), choice.echo
        reason = choice.reason(event) if event.finish_reason else None
        found = [*self._echoed(choice), *self._written(event), *self._end(choice, event)]
        one = self._one(choice, ("" if echo is None else echo.text) + event.text, reason, found) | self._ids(event)
        if echo is not None and echo.is_listed:
            one["prompt_logprobs"] = self._listed(echo)
        return one

    def _one(self, choice: Choice, text: str, reason: str | None, found: list[dict[str, Any]]) -> dict[str, Any]:
        columns = None if self._answer.top is None else self._columns(choice, found)
        return {"index": choice.index, "text": text, "finish_reason": reason, "logprobs": columns}

    def _written(self, event: StreamEvent) -> list[dict[str, Any]]:
        """Return the tokens of an event as a chat has them, with the most probable tokens by their texts."""
        found = self._logprobs(event)
        return [one | {"top_logprobs": {top["token"]: top["logprob"] for top in one["top_logprobs"]}} for one in found]

    def _echoed(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the tokens of a prompt in the same form; the first has no log-probability, as nothing is before it."""
        echo = choice.echo
        if echo is None or not echo.in_columns:
            return []
        text, data = self._spelled(echo.token_ids[0])
        first = {"token": text, "bytes": data, "logprob": None, "top_logprobs": None}
        top = self._answer.top or 0
        rest = [
            self._logprob(token_id, score.logprob)
            | {"top_logprobs": {self._spelled(one)[0]: _finite(value) for one, value in score.top[:top]}}
            for token_id, score in zip(echo.token_ids[1:], echo.scores, strict=True)
        ]
        return [first, *rest]

    def _end(self, choice: Choice, event: StreamEvent) -> list[dict[str, Any]]:
        """Return an end of text that was drawn, as a token: harnesses drop the one token that follows an echoed prompt."""
        if choice.echo is None or not choice.echo.in_columns or event.finish_reason != "stop" or event.stop is not None:
            return []
        (token_id, *_), value = sorted(self._ends), float(choice.stream.state.end_logprobs)
        return [self._logprob(token_id, value) | {"top_logprobs": {self._spelled(token_id)[0]: _finite(value)}}]

    def _listed(self, echo: Echo) -> list[dict[str, Any] | None]:
        """Return the log-probabilities of a prompt as vLLM lists them: for each token itself and the most probable ones, by their ids."""
        return [
            None,
            *(
                {
                    str(one): {"logprob": _finite(value), "decoded_token": self._spelled(one)[0]}
                    for one, value in (*score.top, (token_id, score.logprob))
                }
                for token_id, score in zip(echo.token_ids[1:], echo.scores, strict=True)
            ),
        ]

    def _columns(self, choice: Choice, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "text_offset": self._offsets(choice, found),
            "tokens": [one["token"] for one in found],
            "token_logprobs": [one["logprob"] for one in found],
            "top_logprobs": [one["top_logprobs"] for one in found],
        }

    def _offsets(self, choice: Choice, tokens: Sequence[dict[str, Any]]) -> list[int]:
        """Return the index of the first character of each token in the text of a choice."""
        decoder, at = self._decoders.setdefault(choice.index, (getincrementaldecoder("utf-8")("replace"), 0))
        found = []
        for token in tokens:
            found.append(at)
            at += len(decoder.decode(bytes(token["bytes"])))
        self._decoders[choice.index] = (decoder, at)
        return found


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST
