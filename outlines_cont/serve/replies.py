"""`ChatWriter` and `CompletionWriter`: whole replies and chunks of streams, made with the types of the `openai` package."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionTokenLogprob

from outlines_cont.events.event import Alternatives, StreamEvent
from outlines_cont.serve.choice import Answer, Choice, all_events

_LEAST = -9999.0  # in place of minus infinity, which JSON lacks


class _Writer:
    """What both kinds of replies share: id, time, and the bytes of tokens."""

    prefix = ""

    def __init__(self, model: Any, name: str, answer: Answer, *, token_ids: bool) -> None:
        self._tokenizer, self._answer, self._has_token_ids = model.tokenizer, answer, token_ids
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head: dict[str, Any] = {"id": self.id, "created": int(time.time()), "model": name}

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens that were read and written."""
        answer = self._answer
        read, written = answer.num_prompt, answer.num_written
        usage = CompletionUsage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
        return usage.model_dump(exclude_unset=True)

    def _spelled(self, token_id: int) -> tuple[str, list[int]]:
        data = self._tokenizer.token_bytes[token_id]
        data = self._tokenizer.special_tokens.get(token_id, "").encode() if data is None else data
        return data.decode(errors="replace"), list(data)

    def _ids(self, event: StreamEvent) -> dict[str, Any]:
        return {"token_ids": list(event.token_ids)} if self._has_token_ids else {}


class ChatWriter(_Writer):
    """Replies of Chat Completions."""

    prefix = "chatcmpl"

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        choices = []
        for choice in self._answer.choices:
            own = [event for other, event in events if other is choice]
            event, calls = all_events(own), _whole_calls(own)
            message: dict[str, Any] = {"role": "assistant", "content": event.text, "refusal": None}
            if calls:
                message |= {"content": event.text or None, "tool_calls": calls}
            one = {
                "index": choice.index,
                "message": message,
                "finish_reason": choice.reason(event),
                "logprobs": self._logprobs(event),
            }
            choices.append(one | self._ids(event))
        found = ChatCompletion.model_validate(
            {**self._head, "object": "chat.completion", "choices": choices, "usage": self.usage}
        )
        return found.model_dump(exclude_unset=True)

    def first(self) -> list[dict[str, Any]]:
        """Return the chunks before any text: one with the role for each choice."""
        return [self._chunk(choice, {"role": "assistant", "content": ""}, None) for choice in self._answer.choices]

    def chunk(self, choice: Choice, event: StreamEvent) -> dict[str, Any] | None:
        """Return an event as a chunk; None where it has no news for the client."""
        delta: dict[str, Any] = {"content": event.text} if event.text else {}
        if event.call is not None:
            call, is_first = event.call, event.call.index not in self._begun(choice)
            function: dict[str, Any] = {"arguments": call.text}
            one: dict[str, Any] = {"index": call.index, "function": function}
            if is_first:
                self._begun(choice).add(call.index)
                one |= {"id": call.id, "type": "function"}
                function["name"] = call.name
            delta["tool_calls"] = [one]
        reason = choice.reason(event) if event.finish_reason else None
        logprobs = self._logprobs(event) if event.token_ids else None
        if not delta and reason is None and not logprobs:
            return None
        return self._chunk(choice, delta, reason, logprobs, self._ids(event))

    def last(self) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return self._dumped([], usage=self.usage)

    def _begun(self, choice: Choice) -> set[int]:
        begun: dict[int, set[int]] = self.__dict__.setdefault("_calls", {})
        return begun.setdefault(choice.index, set())

    def _chunk(
        self, choice: Choice, delta: Any, reason: str | None, logprobs: Any = None, more: Any = None
    ) -> dict[str, Any]:
        one = {"index": choice.index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return self._dumped([one | (more or {})])

    def _dumped(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        found = ChatCompletionChunk.model_validate(
            {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        )
        return found.model_dump(exclude_unset=True)

    def _logprobs(self, event: StreamEvent) -> dict[str, Any] | None:
        if self._answer.top is None:
            return None
        tops = event.top or ((),) * len(event.token_ids)
        pairs = zip(event.token_ids, event.logprobs, tops, strict=True)
        return {"content": [self._logprob(token_id, value, top) for token_id, value, top in pairs], "refusal": None}

    def _logprob(self, token_id: int, value: float, top: Alternatives) -> dict[str, Any]:
        text, data = self._spelled(token_id)
        others = [
            {"token": other, "logprob": _finite(chance), "bytes": spelled}
            for other_id, chance in top
            for other, spelled in [self._spelled(other_id)]
        ]
        one = {"token": text, "logprob": _finite(value), "bytes": data, "top_logprobs": others}
        return ChatCompletionTokenLogprob.model_validate(one).model_dump()


class CompletionWriter(_Writer):
    """Replies of Completions."""

    prefix = "cmpl"

    def whole(self, events: Sequence[tuple[Choice, StreamEvent]]) -> dict[str, Any]:
        """Return the whole reply."""
        choices = []
        for choice in self._answer.choices:
            event = all_events([event for other, event in events if other is choice])
            choices.append(self._one(choice, event))
        return self._dumped(choices, usage=self.usage)

    def first(self) -> list[dict[str, Any]]:
        """Return no chunk: the first one has text."""
        return []

    def chunk(self, choice: Choice, event: StreamEvent) -> dict[str, Any] | None:
        """Return an event as a chunk; None where it has no news for the client."""
        if not event.text and not event.finish_reason and not event.token_ids:
            return None
        return self._dumped([self._one(choice, event)])

    def last(self) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return self._dumped([], usage=self.usage)

    def _one(self, choice: Choice, event: StreamEvent) -> dict[str, Any]:
        reason = choice.reason(event) if event.finish_reason else None
        one: dict[str, Any] = {
            "index": choice.index,
            "text": event.text,
            "finish_reason": reason,
            "logprobs": self._logprobs(event),
        }
        return one | self._ids(event)

    def _dumped(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        # A chunk has no reason yet, which the type does not allow.
        given = {**self._head, "object": "text_completion", **more}
        built = [CompletionChoice.model_construct(None, **choice) for choice in choices]
        return Completion.model_construct(None, choices=built, **given).model_dump(exclude_unset=True)

    def _logprobs(self, event: StreamEvent) -> dict[str, Any] | None:
        if self._answer.top is None:
            return None
        tops = event.top or ((),) * len(event.token_ids)
        return {
            "tokens": [self._spelled(token_id)[0] for token_id in event.token_ids],
            "token_logprobs": [_finite(value) for value in event.logprobs],
            "top_logprobs": [{self._spelled(token_id)[0]: _finite(value) for token_id, value in top} for top in tops],
        }


def _whole_calls(events: Sequence[StreamEvent]) -> list[dict[str, Any]]:
    """Return the complete calls of a reply."""
    calls: dict[int, dict[str, Any]] = {}
    whole: set[int] = set()
    for call in (event.call for event in events if event.call is not None):
        one = calls.setdefault(
            call.index, {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        )
        one["function"]["arguments"] += call.text
        whole |= {call.index} if call.is_whole else set()
    return [one for index, one in calls.items() if index in whole]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST
