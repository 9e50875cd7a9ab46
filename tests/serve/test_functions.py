"""`functions` and `function_call`, which older clients send in place of tools: the real client of OpenAI still has them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from outlines_cont.serve.protocols.messages import Message, as_tools, conversation
from outlines_cont.serve.protocols.requests import ChatRequest
from tests.examples import first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER

FUNCTION: Any = WEATHER["function"]
OLD: Any = {"model": "tiny", "max_tokens": 60, "temperature": 1.5, "functions": [FUNCTION]}


@pytest.mark.parametrize("seed", first(2, range(4)))
@pytest.mark.parametrize("choice", ["auto", {"name": "weather"}, None])
def test_a_reply_is_that_of_tools_in_the_older_form(served: Running, choice: Any, seed: int) -> None:
    given = {} if choice is None else {"function_call": choice}
    reply = served.client.chat.completions.create(messages=ASKED, seed=seed, **OLD, **given)
    wanted = choice if isinstance(choice, str | None) else {"type": "function", "function": choice}
    tools: Any = {key: value for key, value in OLD.items() if key != "functions"}
    tools |= {"tools": [WEATHER], "parallel_tool_calls": False} | ({} if wanted is None else {"tool_choice": wanted})
    same = served.client.chat.completions.create(messages=ASKED, seed=seed, **tools)
    one, other = reply.choices[0], same.choices[0]
    assert one.message.tool_calls is None
    assert one.message.content == other.message.content
    if other.message.tool_calls:
        function = other.message.tool_calls[0].function  # type: ignore[union-attr]
        assert one.message.function_call is not None
        assert (one.message.function_call.name, one.message.function_call.arguments) == (function.name, function.arguments)
        assert one.finish_reason == other.finish_reason.replace("tool_calls", "function_call")
    else:
        assert (one.message.function_call, one.finish_reason) == (None, other.finish_reason)
    if isinstance(choice, dict):
        assert one.finish_reason == "function_call"
    streamed = [*served.client.chat.completions.create(messages=ASKED, seed=seed, stream=True, **OLD, **given)]
    deltas = [chunk.choices[0].delta for chunk in streamed]
    calls = [delta.function_call for delta in deltas if delta.function_call is not None]
    assert "".join(delta.content or "" for delta in deltas) == (one.message.content or "")
    assert streamed[-1].choices[0].finish_reason == one.finish_reason
    if one.message.function_call is not None:
        assert [call.name for call in calls if call.name] == [one.message.function_call.name]
        assert "".join(call.arguments or "" for call in calls) == one.message.function_call.arguments
    else:
        assert calls == []


def test_the_whole_round_of_an_older_client(served: Running) -> None:
    messages: list[Any] = [*ASKED]
    for city in ("Paris", "Oslo"):
        reply = served.client.chat.completions.create(messages=messages, function_call={"name": "weather"}, **OLD | {"temperature": 0})
        message = reply.choices[0].message
        assert message.function_call is not None
        assert json.loads(message.function_call.arguments)["city"] in ("Paris", "Oslo")
        messages += [message, {"role": "function", "name": "weather", "content": f"Rain in {city}."}]
    last = served.client.chat.completions.create(messages=messages, function_call="none", **OLD)
    assert last.choices[0].message.function_call is None
    without = {key: value for key, value in OLD.items() if key != "functions"}
    assert served.client.chat.completions.create(messages=messages, **without).choices[0].message.content is not None


@pytest.mark.parametrize("seed", first(8, range(20)))
def test_older_messages_are_those_of_tools(seed: int) -> None:
    """Random conversations in both forms: templates read the same."""
    rng, old, new = random.Random(seed), list[Any](), list[Any]()
    number = 0
    for _ in range(rng.randrange(1, 8)):
        if rng.random() < 0.5:
            said = {"role": rng.choice(["user", "system", "assistant"]), "content": "Hi"}
            old.append(said)
            new.append(said)
            continue
        number += 1
        call = {"name": rng.choice("ab"), "arguments": rng.choice(["{}", '{"x": 1}', ""])}
        result = {"name": call["name"], "content": str(number)}
        name = f"call{number:05d}"
        old += [{"role": "assistant", "content": None, "function_call": call}, {"role": "function", **result}]
        new.append({"role": "assistant", "content": None, "tool_calls": [{"id": name, "type": "function", "function": call}]})
        new.append({"role": "tool", "tool_call_id": name, **result})
    found, wanted = ([Message.model_validate(one) for one in form] for form in (old, new))
    assert conversation(as_tools(found)) == conversation(wanted)


def test_a_history_may_have_both_forms_and_odd_values() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    odd: list[Any] = [None, "", 3, {"name": "weather", "arguments": None}]
    for value in odd:
        Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call], "function_call": value})
    alone = as_tools([Message.model_validate({"role": "function", "name": "weather", "content": "Rain."})])
    assert conversation(alone) == [{"role": "tool", "content": "Rain.", "name": "weather"}]
    request = ChatRequest.model_validate({"model": "a", "messages": ASKED, "functions": [], "function_call": "none"})
    assert request.calls == {}
