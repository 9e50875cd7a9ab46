"""Chunks of a stream as they are sent: those that are joined from parts are equal to those that are encoded whole."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from outlines_cont import OpenCall, StreamEvent, models
from outlines_cont.serve.protocols.choice import Answer, Choice
from outlines_cont.serve.protocols.replies import ChatWriter, sent
from outlines_cont.serve.protocols.requests import ChatRequest

TEXTS = ["", " hello", '"', '""', "\\", "\n\r\t\x00", "\u2028é漢🙂", '{"content":""}', "data: [DONE]\n\n"]


def _event(drawn: random.Random) -> StreamEvent:
    text, is_thought = drawn.choice(TEXTS), drawn.random() < 0.2
    reason = drawn.choice(["", "", "", "stop", "length"])
    call = OpenCall(0, "call_1", "weather", text, {}, False) if drawn.random() < 0.2 else None
    return StreamEvent(text=text, token_ids=(70,), logprobs=(-0.5,), finish_reason=reason, is_thought=is_thought, call=call)


@pytest.mark.parametrize("name", ["it", '"" {"content":""}'])
@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"return_token_ids": True}], ids=str)
def test_what_is_sent_is_the_chunks(name: str, more: dict[str, Any]) -> None:
    drawn = random.Random(0)
    request = ChatRequest(model=name, messages=[{"role": "user", "content": "a"}], stream=True, n=2, **more)
    choices, others = ([Choice(i, 3, None) for i in range(2)] for _ in range(2))
    writer = ChatWriter(models.tiny(), name, Answer(choices, request.top), request)
    for _ in range(300):
        event, index = _event(drawn), drawn.randrange(2)
        others[index].ids = choices[index].ids  # which are random
        data = writer.sent(choices[index], event)
        assert data == sent(writer.chunks(others[index], event))
        if data:
            chunk = json.loads(data.removeprefix(b"data: "))
            ChatCompletionChunk.model_validate(chunk)
            assert chunk["model"] == name
            assert chunk["choices"][0]["index"] == index
