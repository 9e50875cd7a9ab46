"""The real client of Anthropic against the server: replies, streams, calls and their results, thoughts, counts, errors, the key."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_cont import models
from tests.examples import examples
from tests.serve.running import Running
from tests.serve.test_messages import CHAT, RAIN, TOOL
from tests.serve.test_server import ASKED, SAID, Order

anthropic = pytest.importorskip("anthropic", reason="the client of Anthropic is not installed: pip install '.[clients]'")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

# `temperature` is no argument of later versions of the client.
MESSAGE: Any = {"model": "tiny", "messages": ASKED, "max_tokens": 60, "extra_body": {"temperature": 0}}
THOUGHT: Any = {name: RAIN[name] for name in ("model", "messages", "max_tokens")} | {
    "extra_body": {"seed": 1},
    "thinking": {"type": "enabled", "budget_tokens": 12},
}


def client_of(served: Running, **more: Any) -> Any:
    return anthropic.Anthropic(base_url=served.url, max_retries=0, **{"api_key": "none", **more})


@pytest.fixture
def client(served: Running) -> Iterator[Any]:
    with client_of(served) as found:
        yield found


def test_a_reply_and_its_stream_are_the_reply_of_chat_completions(served: Running, client: Any) -> None:
    chat = served.post(CHAT, SAID | {"max_tokens": 60}).json()
    reply = client.messages.create(**MESSAGE, system=[{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}])
    assert reply.content[0].text == chat["choices"][0]["message"]["content"]
    assert (reply.stop_reason, reply.usage.output_tokens) == ("end_turn", chat["usage"]["completion_tokens"])
    assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    with client.messages.stream(**MESSAGE) as stream:
        texts = [*stream.text_stream]
        last = stream.get_final_message()
    assert len(texts) > 5
    assert "".join(texts) == last.content[0].text == reply.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == (reply.stop_reason, reply.usage.output_tokens)
    raw = [event.type for event in client.messages.create(**MESSAGE, stream=True)]
    assert raw[:2] + raw[-3:] == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    tokens = client.messages.count_tokens(model="tiny", messages=ASKED).input_tokens
    assert tokens == chat["usage"]["prompt_tokens"]


def test_the_asynchronous_client(served: Running) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as client:
            replies = await asyncio.gather(*[client.messages.create(**MESSAGE) for _ in range(3)])
            async with client.messages.stream(**MESSAGE) as stream:
                text = "".join([text async for text in stream.text_stream])
        return [text, *(reply.content[0].text for reply in replies)]

    assert len({*asyncio.run(ask())}) == 1


def test_a_call_is_answered_and_the_conversation_goes_on(client: Any) -> None:
    asked: Any = MESSAGE | {"tools": [TOOL | {"cache_control": {"type": "ephemeral"}}]}
    reply = client.messages.create(**asked, tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True})
    (call,) = reply.content
    assert (reply.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["city"] in ("Paris", "Oslo")
    with client.messages.stream(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message().content[0]
    assert streamed.input == json.loads("".join(parts)) == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain."}]}
    for content in (reply.content, [block.model_dump() for block in reply.content]):
        messages = [*ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        answer = client.messages.create(**asked | {"messages": messages}, tool_choice={"type": "none"})
        assert [block.type for block in answer.content] == ["text"]


def test_thoughts_go_back_as_they_came(thinking: Running) -> None:
    with client_of(thinking) as client:
        reply = client.messages.create(**THOUGHT)
        with client.messages.stream(**THOUGHT) as stream:
            kinds = [event.type for event in stream]
            last = stream.get_final_message()
        assert [block.type for block in last.content] == ["thinking", "text"]
        streamed, whole = ([block.model_dump(exclude={"parsed_output"}) for block in one.content] for one in (last, reply))
        assert streamed == whole
        assert kinds.count("signature") == 1
        messages = [*RAIN["messages"], {"role": "assistant", "content": reply.content}, {"role": "user", "content": "Why?"}]
        assert client.messages.create(**THOUGHT | {"messages": messages}).stop_reason == "max_tokens"


def test_an_answer_of_a_pydantic_model(client: Any) -> None:
    if not hasattr(client.messages, "parse"):
        pytest.skip("this version of the client parses no answers")
    reply = client.messages.parse(**MESSAGE, output_format=Order)
    assert reply.parsed_output == Order(customer="Ana Novak", item="lamps", quantity=3)
    messages = [*ASKED, {"role": "assistant", "content": reply.content}, *ASKED]
    assert client.messages.create(**MESSAGE | {"messages": messages}).content


def test_an_answer_of_a_pydantic_model_beside_tools(client: Any) -> None:
    if not hasattr(client.messages, "parse"):
        pytest.skip("this version of the client parses no answers")
    kinds = set()
    for seed in range(examples(8)):
        more: Any = {"max_tokens": 300, "extra_body": {"temperature": 2, "seed": seed}, "tools": [TOOL]}
        reply = client.messages.parse(**MESSAGE | more, output_format=Order)
        kinds.add(reply.stop_reason)
        assert (reply.parsed_output is None) == (reply.stop_reason != "end_turn")
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."} for block in reply.content if block.type == "tool_use"
        ]
        messages = [*ASKED, {"role": "assistant", "content": reply.content}, {"role": "user", "content": results or "Again."}]
        last = client.messages.parse(**MESSAGE | {"messages": messages, "max_tokens": 100}, output_format=Order)
        assert last.stop_reason == "max_tokens" or isinstance(last.parsed_output, Order)
    assert kinds <= {"tool_use", "end_turn", "max_tokens"}


def test_the_runner_of_tools(client: Any) -> None:
    tool = getattr(anthropic, "beta_tool", None)
    if tool is None:
        pytest.skip("this version of the client runs no tools")
    cities = []

    @tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name.
        """
        cities.append(city)
        return "Rain."

    asked: Any = MESSAGE | {"max_tokens": 100, "tools": [weather], "max_iterations": 2, "tool_choice": {"type": "any"}}
    *_, last = client.beta.messages.tool_runner(**asked)
    assert last.role == "assistant"
    assert all(isinstance(city, str) for city in cities)


def test_errors_are_those_of_the_client(client: Any) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    with pytest.raises(anthropic.BadRequestError, match="takes images"):
        client.messages.create(**MESSAGE | {"messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.NotFoundError, match="tiny"):
        client.messages.create(**MESSAGE | {"model": "claude"})
    with pytest.raises(anthropic.BadRequestError) as found:
        client.messages.create(**MESSAGE | {"tools": [{"name": "a", "input_schema": {"type": "odd"}}]})
    assert found.value.body["error"]["type"] == "invalid_request_error"


def test_the_page_runs(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(import anthropic.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(compile(code.replace("http://127.0.0.1:8000", served.url), "page", "exec"), {})
    assert '"customer":"Ana Novak"' in capsys.readouterr().out


def test_the_key_of_the_server() -> None:
    with Running(models.tiny(), key="secret") as served:
        for key in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}, {"default_headers": {"x-api-key": "secret"}}):
            with client_of(served, **key) as client:
                assert client.messages.create(**MESSAGE).content
        with client_of(served, api_key="other") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**MESSAGE)
