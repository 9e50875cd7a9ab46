"""Responses by the real client of OpenAI, and by plain HTTP: replies equal to those of Chat Completions, events in their order, errors."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

import fsm
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER, Order

PATH = "/v1/responses"
SAID: Any = {"model": "tiny", "input": ASKED[0]["content"], "temperature": 0}
SUM = 'start: DIGIT ("+" DIGIT)~1..3\nDIGIT: /[0-9]/'
FLAT: Any = {"type": "function", **WEATHER["function"]}
CALC: Any = {"type": "custom", "name": "calc", "format": {"type": "grammar", "syntax": "lark", "definition": SUM}}
ONE: Any = {"parallel_tool_calls": False, "max_output_tokens": 80, "tools": [FLAT, CALC]}
CHOICES: list[Any] = [
    {"type": "function", "name": "weather"},
    {"type": "custom", "name": "calc"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "calc"}]},
]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def _events(served: Running, body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of which has the form that the client knows."""
    *sent, done, end = served.post(PATH, body | {"stream": True}).text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    found = []
    for lines in sent:
        kind, data = lines.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def _without_time(response: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one request have in common: all but ids, times and what was cached."""
    output = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    usage = response["usage"] | {"input_tokens_details": None}
    return response | {"id": "", "created_at": 0, "completed_at": 0, "output": output, "usage": usage}


# -- the client --------------------------------------------------------------------------------------------------------


def test_a_reply_is_that_of_chat_completions(served: Running) -> None:
    reply = served.client.responses.create(**SAID, max_output_tokens=60)
    alone = served.client.chat.completions.create(model="tiny", messages=ASKED, temperature=0, max_tokens=60)
    assert reply.output_text == alone.choices[0].message.content
    assert reply.status == "completed"
    assert reply.usage is not None
    assert alone.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (alone.usage.prompt_tokens, alone.usage.completion_tokens)


def test_a_pydantic_model_is_parsed(served: Running) -> None:
    reply = served.client.responses.parse(**SAID, text_format=Order, max_output_tokens=100)
    assert reply.output_parsed == Order(customer="Ana Novak", item="lamps", quantity=3)


def test_a_stream_is_parsed_as_it_grows(served: Running) -> None:
    with served.client.responses.stream(**SAID, text_format=Order, max_output_tokens=100) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_response()
    assert kinds.count("response.output_text.delta") > 5
    assert found.output_parsed == Order(customer="Ana Novak", item="lamps", quantity=3)


def test_the_asynchronous_client(served: Running) -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        whole = await client.responses.create(**SAID, max_output_tokens=90)
        parsed = await client.responses.parse(**SAID, text_format=Order, max_output_tokens=100)
        async with client.responses.stream(**SAID, max_output_tokens=90) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            last = await stream.get_final_response()
        return [whole.output_text, last.output_text, "".join(texts), parsed.output_parsed]

    async def ask_all() -> list[Any]:
        async with served.async_client() as client:
            return await ask(client)

    first, second, third, order = asyncio.run(ask_all())
    assert first == second == third
    assert order == Order(customer="Ana Novak", item="lamps", quantity=3)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_calls_are_items_and_their_results_go_back(served: Running, choice: Any) -> None:
    reply = served.client.responses.create(**SAID, **ONE, tool_choice=choice)
    (call,) = reply.output
    if call.type == "function_call":
        assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    else:
        assert call.type == "custom_tool_call"
        assert fsm.grammar(SUM).accepts(call.input)
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "3"}]}
    told: Any = [{"role": "user", "content": SAID["input"]}, *reply.output, result]
    answer = served.client.responses.create(**SAID | {"input": told}, **ONE, tool_choice="none")
    assert [item.type for item in answer.output] == ["message"]
    with served.client.responses.stream(**SAID, **ONE, tool_choice=choice) as stream:
        kinds = {event.type for event in stream}
        again = stream.get_final_response().output[0]
    assert again.model_dump(exclude={"id", "call_id", "parsed_arguments"}) == call.model_dump(exclude={"id", "call_id"})
    assert f"response.{'function_call_arguments' if call.type == 'function_call' else 'custom_tool_call_input'}.done" in kinds


def test_items_of_an_input_are_the_messages_of_a_chat(served: Running) -> None:
    call = {"type": "function_call", "call_id": "call00000", "name": "weather", "arguments": '{"city": "Oslo"}'}
    items: Any = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rain"}, {"type": "input_text", "text": "?"}]},
        call,
        {"type": "function_call_output", "call_id": "call00000", "output": "Yes."},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "It rains.", "annotations": []}],
        },
        {"role": "user", "content": "Thanks."},
    ]
    messages: Any = [
        {"role": "system", "content": "Speak."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Rain?"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
        },
        {"role": "tool", "tool_call_id": "call00000", "content": "Yes."},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks."},
    ]
    reply = served.client.responses.create(**SAID | {"input": items}, instructions="Speak.", max_output_tokens=20)
    alone = served.client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=20)
    assert reply.output_text == alone.choices[0].message.content
    assert reply.usage is not None
    assert alone.usage is not None
    assert reply.usage.input_tokens == alone.usage.prompt_tokens


# -- events ------------------------------------------------------------------------------------------------------------

_TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
_THOUGHTS = [name.replace("output_text", "reasoning_text") for name in _TEXT]
_CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
_CUSTOM = [name.replace("function_call_arguments", "custom_tool_call_input") for name in _CALL]


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({"max_output_tokens": 90}, [*_TEXT, "completed"]),
        ({"max_output_tokens": 3, "top_logprobs": 2}, [*_TEXT, "incomplete"]),
        (ONE | {"tool_choice": CHOICES[0]}, [*_CALL, "completed"]),
        (ONE | {"tool_choice": CHOICES[1]}, [*_CUSTOM, "completed"]),
        (ONE | {"tool_choice": CHOICES[0], "max_output_tokens": 12}, None),
    ],
    ids=str,
)
def test_events_come_in_their_order_and_make_the_whole_reply(served: Running, more: Any, kinds: list[str] | None) -> None:
    events = _events(served, SAID | more)
    names = [name.removeprefix("response.") for name, _ in groupby(event["type"] for event in events)]
    assert names[:2] == ["created", "in_progress"]
    assert kinds is None or names[2:] == kinds
    last = events[-1]["response"]
    whole = served.post(PATH, SAID | more).json()
    Response.model_validate(whole)
    assert _without_time(last) == _without_time(whole)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    if kinds is None:
        assert (last["status"], last["output"][-1]["status"]) == ("incomplete", "incomplete")
    texts = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    (item,) = last["output"]
    assert texts == (item["content"][0]["text"] if item["type"] == "message" else item.get("arguments", item.get("input")))
    if "top_logprobs" in more:
        told = [one for event in events if event["type"] == "response.output_text.delta" for one in event["logprobs"]]
        assert told == item["content"][0]["logprobs"]
        assert [len(one["top_logprobs"]) for one in told] == [2] * 3


def test_thoughts_are_an_item_of_their_own(thinking: Running) -> None:
    asked = {"model": "tiny", "input": "Rain?", "seed": 1, "reasoning": {"effort": "low"}, "max_output_tokens": 40}
    events = _events(thinking, asked)
    names = [name.removeprefix("response.") for name, _ in groupby(event["type"] for event in events)]
    assert names == ["created", "in_progress", *_THOUGHTS, *_TEXT, "incomplete"]
    reply = events[-1]["response"]
    thought, message = reply["output"]
    alone = thinking.post(
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}], "seed": 1, "reasoning_effort": "low", "max_tokens": 40},
    )
    told = alone.json()["choices"][0]["message"]
    assert (thought["content"][0]["text"], message["content"][0]["text"]) == (told["reasoning_content"], told["content"])
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    again = thinking.post(
        PATH, asked | {"input": [{"role": "user", "content": "Rain?"}, thought, message, {"role": "user", "content": "Why?"}]}
    )
    assert again.json()["status"] == "incomplete"


# -- errors ------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "stores nothing"),
    ({"background": True}, "background", "stores nothing"),
    ({"foo": 1}, "foo", "foo"),
    ({"input": []}, "input", "a list of 1 or more"),
    ({"input": [{"type": "item_reference", "id": "a"}]}, "input/0", "item_reference"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "{}"}]}, "input", "ends with"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input", "a message"),
    ({"prompt": {"id": "a"}}, "prompt", "keeps no prompts"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", "runs no tools"),
    ({"input": [{"role": "king", "content": "a"}]}, "input/0/role", "'user'"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}, "input/0/content/0/image_url", "`data:` URL"),
    ({"max_output_tokens": 10_000}, "max_output_tokens", "4096"),
    ({"tools": [CALC], "tool_choice": {"type": "custom", "name": "other"}}, "tool_choice", "other"),
    ({"tool_choice": "required"}, "tool_choice", "tools"),
    (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"properties": {"b": {"type": "odd"}}}}}},
        "text/format/schema#/properties/b/type",
        "odd",
    ),
    ({"text": {"verbosity": "huge"}}, "text/verbosity", "medium"),
    ({"reasoning": {"effort": "huge"}}, "reasoning/effort", "'low'"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs/regex", "("),
]


@pytest.mark.parametrize(("change", "param", "said"), WRONG, ids=str)
def test_a_wrong_request_is_refused_by_name(served: Running, change: Any, param: str, said: str) -> None:
    found = served.post(PATH, SAID | {"max_output_tokens": 4} | change)
    error = found.json()["error"]
    assert (found.status_code, error["param"] or "") == (400, param)
    assert said in error["message"]


def test_tools_of_a_service_are_not_told_to_the_model(served: Running) -> None:
    plain = served.client.responses.create(**SAID, max_output_tokens=20)
    reply = served.client.responses.create(**SAID, max_output_tokens=20, tools=[{"type": "web_search"}], parallel_tool_calls=True)
    assert (reply.output_text, reply.tools) == (plain.output_text, [])


def test_constraints_of_this_server_apply(served: Running) -> None:
    reply = served.client.responses.create(**SAID, extra_body={"structured_outputs": {"regex": "[a-z]{7}"}})
    assert len(reply.output_text) == 7


def test_a_schema_of_structured_outputs_is_taken_here_too(served: Running) -> None:
    for wanted, read in (({"json": {"type": "boolean"}}, json.loads), ({"regex": "[ab]{3}"}, len), ({"choice": ["red", "blue"]}, str)):
        reply = served.post("/v1/responses", {"model": "tiny", "input": "a", "structured_outputs": wanted})
        assert reply.status_code == 200, reply.text
        assert read(reply.json()["output"][-1]["content"][0]["text"]) in (True, False, 3, "red", "blue")
