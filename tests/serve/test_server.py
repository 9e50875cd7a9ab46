"""The server by the real client of OpenAI, and by plain HTTP: replies equal to the engine's, chunks, errors, limits, lost clients."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ConfigDict

import fsm
from fsm.terms import work
from outlines_cont import Chat, Guidance, Thinking, continuous, generate, models, policies, samplers
from outlines_cont.serve import constraints
from tests.chat_models import chat_model
from tests.serve.running import Running


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    customer: str
    item: str
    quantity: int


ASKED: Any = [{"role": "user", "content": "Message: Hello, this is Ana Novak. Please send 3 lamps by 2026-05-04."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
OTHER: Any = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "maxProperties": 0}}}
LOOSE_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "a",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "format": "strange"}}},
    },
}
SUM = 'start: sum\nsum: DIGIT | "(" sum "+" sum ")"\nDIGIT: /[0-9]/'
LONG = {"regex": "[a-z]{3000}"}
# The server ignores what is only a warning; a request that wants an error writes `strict`.
pytestmark = pytest.mark.filterwarnings("ignore::fsm.SchemaWarning")


def _grammar(syntax: str, definition: str, name: str = "calc") -> Any:
    return {
        "type": "custom",
        "custom": {"name": name, "format": {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}},
    }


def _allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "custom", "custom": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


SAID = {"model": "tiny", "messages": ASKED, "temperature": 0}


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_reply_is_that_of_the_engine_alone(served: Running) -> None:
    alone = Chat(served.model).message(ASKED[0]).assistant(generate.text(served.model), max_tokens=60)
    reply = served.client.chat.completions.create(**SAID, max_completion_tokens=60)
    assert reply.choices[0].message.content == alone.messages[-1]["content"]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    num_prompt = Chat(served.model).message(ASKED[0]).state.shape[2]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (num_prompt, alone.state.shape[2] - num_prompt)


def test_a_drawn_reply_is_that_of_its_seed(served: Running) -> None:
    options = {"temperature": 1.5, "top_p": 0.95, "seed": 7, "max_tokens": 12}
    sampler = samplers.multinomial(temperature=1.5, top_p=0.95)
    one = Chat(served.model, rng=7).message(ASKED[0])
    alone = [one, *one.fork(3)[1:]]  # the first choice is what one choice would be
    texts = [chat.assistant(generate.text(served.model, sampler=sampler), max_tokens=12).messages[-1]["content"] for chat in alone]
    reply = served.client.chat.completions.create(model="tiny", messages=ASKED, n=3, **options)  # type: ignore[call-overload]
    assert [choice.message.content for choice in reply.choices] == texts
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


HELLO = "Message: Hello, this is"
NEGATIVE = "Message: Good morning.\n"
DRAWN: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"top_k": 2}, {"top_k": 2}, {}),
    ({"min_p": 0.3}, {"min_p": 0.3}, {}),
    ({"top_p": 0.5}, {"top_p": 0.5}, {}),
    ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}, {}),
    ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}, {}),
    ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}, {}),
    ({"logit_bias": {"65": 30.0}}, {"logit_bias": {65: 30.0}}, {}),
    ({"guidance": {"negative_prompt": NEGATIVE, "scale": 3.0}}, {}, {"guidance": Guidance(NEGATIVE, 3.0)}),
    ({"ban": ["e"]}, {}, {"policies": [policies.ban(["e"])]}),
    ({"stop": ["e"]}, {}, {"stop_at": ["e"]}),
]
"""Fields of a request, and the options of a sampler and of a call that are the same."""


@pytest.mark.parametrize(("fields", "drawn", "options"), DRAWN, ids=lambda value: "".join([*value][-1:]))
def test_a_field_does_what_the_option_does(served: Running, fields: dict[str, Any], drawn: dict[str, Any], options: dict[str, Any]) -> None:
    write = continuous(generate.regex(served.model, "[a-z ]{20}", sampler=samplers.multinomial(temperature=2.0, **drawn)))
    state = write(HELLO, rng=5, max_tokens=20, **options)
    form = {"structured_outputs": {"regex": "[a-z ]{20}"}}
    asked = {"model": "tiny", "prompt": HELLO, "seed": 5, "temperature": 2, "max_tokens": 20, **form}
    reply = httpx.post(f"{served.url}/v1/completions", json=asked | fields).json()
    assert reply["choices"][0]["text"] == state.generated
    assert httpx.post(f"{served.url}/v1/completions", json=asked).json()["choices"][0]["text"] != state.generated


@pytest.mark.parametrize("top_k", [0, -1])
def test_no_top_k_has_the_numbers_of_vllm(served: Running, top_k: int) -> None:
    asked = {"model": "tiny", "prompt": HELLO, "seed": 5, "max_tokens": 20}
    texts = [httpx.post(f"{served.url}/v1/completions", json=asked | more).json()["choices"][0]["text"] for more in ({"top_k": top_k}, {})]
    assert texts[0] == texts[1]


def test_a_pydantic_model_is_parsed(served: Running) -> None:
    reply = served.client.chat.completions.parse(**SAID, response_format=Order, max_tokens=100)
    assert reply.choices[0].message.parsed == Order(customer="Ana Novak", item="lamps", quantity=3)


def test_a_stream_is_parsed_as_it_grows(served: Running) -> None:
    with served.client.chat.completions.stream(**SAID, response_format=Order, max_tokens=100) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_completion()
    assert kinds.count("content.delta") > 5
    assert found.choices[0].message.parsed == Order(customer="Ana Novak", item="lamps", quantity=3)
    whole = served.client.chat.completions.create(**SAID, max_tokens=100, response_format=_format(Order))
    assert found.choices[0].message.content == whole.choices[0].message.content


def _format(form: type[BaseModel]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": form.model_json_schema(), "strict": True}}


def test_the_asynchronous_client_asks_many_at_once(served: Running) -> None:
    async def ask(client: openai.AsyncOpenAI, n: int) -> str | None:
        options: Any = {"structured_outputs": {"regex": f"[a-z]{{{n}}}"}}
        reply = await client.chat.completions.create(**SAID, extra_body=options)
        return reply.choices[0].message.content

    async def ask_all() -> list[str | None]:
        async with served.async_client() as client:
            return await asyncio.gather(*(ask(client, n) for n in range(1, 13)))

    texts = asyncio.run(ask_all())
    assert [len(text or "") for text in texts] == list(range(1, 13))


def test_completions_of_several_prompts(served: Running) -> None:
    prompts = ["Message: Send 2 lamps.\nKind: ", "Message: The invoice of May.\nKind: "]
    generator = generate.choice(served.model, ["order", "invoice"])
    alone = generator(prompts, max_tokens=8)
    outputs = {"structured_outputs": {"choice": ["order", "invoice"]}}
    reply = served.client.completions.create(model="tiny", prompt=prompts, temperature=0, extra_body=outputs, logprobs=1)
    assert [choice.text for choice in reply.choices] == alone
    ids = served.model.tokenizer.encode(prompts[0])
    again = served.client.completions.create(model="tiny", prompt=ids, temperature=0, n=2, extra_body=outputs)
    assert [choice.text for choice in again.choices] == [alone[0]] * 2
    assert again.usage is not None
    assert again.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("is_text", [False, True])
def test_a_trigger_obliges_a_structure(served: Running, is_text: bool) -> None:
    structure = {"begin": '{"customer":', "schema": {"enum": ["hats"]}, "end": "}!"}
    wanted: Any = {"structures": [structure], "triggers": ["{"]}
    outputs = {"structured_outputs": {"structural_tag": json.dumps(wanted) if is_text else wanted}}
    asked: Any = {"model": "tiny", "prompt": "Message: Send 2 lamps.\nRecord: ", "temperature": 0, "max_tokens": 30}
    assert served.client.completions.create(**asked).choices[0].text.startswith("{")
    reply = served.client.completions.create(**asked, extra_body=outputs)
    assert reply.choices[0].text.startswith('{"customer":"hats"}!')


def test_log_probabilities_are_the_models_own(served: Running) -> None:
    state = continuous(generate.regex(served.model, "[0-9]{4}"))("Due: ", max_tokens=9)
    body: Any = {"model": "tiny", "prompt": "Due: ", "temperature": 0, "logprobs": 2, "structured_outputs": {"regex": "[0-9]{4}"}}
    found = served.post("/v1/completions", body | {"return_token_ids": True}).json()["choices"][0]
    count = len(found["token_ids"])
    assert found["text"] == state.text[len("Due: ") :] if hasattr(state, "text") else str(state)[len("Due: ") :]
    assert found["token_ids"] == state.token_ids[0, 0, -count:].tolist()
    assert found["logprobs"]["token_logprobs"] == pytest.approx(state.logprobs[0, 0, -count:].tolist(), abs=1e-4)


def test_an_impossible_token_has_a_finite_log_probability(served: Running) -> None:
    reply = served.client.chat.completions.create(**SAID, max_tokens=4, logprobs=True, top_logprobs=20)
    content = reply.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert b"".join(bytes(one.bytes or []) for one in content).decode() == reply.choices[0].message.content
    values = [top.logprob for one in content for top in one.top_logprobs]
    assert all(map(math.isfinite, values))
    assert len(values) == 20 * len(content)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[ab]{5}"}, "[ab]{5}"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
        ({"json": '{"enum": ["x"]}'}, '"x"'),
        ({"grammar": 'start: "a" start "b" | "ab"'}, "a+b+"),
    ],
)
def test_a_structured_output_conforms(served: Running, outputs: Any, pattern: str) -> None:
    found = served.post("/v1/chat/completions", SAID | {"structured_outputs": outputs, "max_tokens": 40}).json()
    text, reason = found["choices"][0]["message"]["content"], found["choices"][0]["finish_reason"]
    assert reason == "length" or re.fullmatch(pattern, text)


def test_stops_bans_and_cuts(served: Running) -> None:
    whole = served.client.chat.completions.create(**SAID, max_tokens=60).choices[0].message.content or ""
    word = whole.split()[1]
    stopped = served.client.chat.completions.create(**SAID, max_tokens=60, stop=[word]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (whole[: whole.index(word)], "stop")
    cut = served.client.chat.completions.create(**SAID, max_tokens=2).choices[0]
    assert cut.finish_reason == "length"
    banned = served.client.chat.completions.create(**SAID, max_tokens=60, extra_body={"ban": [word]}).choices[0]
    assert word not in (banned.message.content or "")
    drafted = served.client.chat.completions.create(**SAID, max_tokens=60, extra_body={"draft": "lookup"}).choices[0]
    assert drafted.message.content == whole


def test_the_last_message_is_continued_where_this_is_said(served: Running) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "Good"}]
    chat = Chat(served.model)
    for message in begun:
        chat = chat.message(message)
    alone = chat.assistant(generate.text(served.model), max_tokens=20).messages[-1]["content"]
    found = served.post("/v1/chat/completions", SAID | {"messages": begun, "continue_final_message": True, "max_tokens": 20}).json()
    assert "Good" + found["choices"][0]["message"]["content"] == alone


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_conforms(served: Running, choice: Any) -> None:
    asked: Any = {"tools": [WEATHER, OTHER], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 80}
    reply = served.client.chat.completions.create(**SAID, **asked).choices[0]
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls or ()
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    if choice != "required":
        assert arguments["city"] in ("Paris", "Oslo")
    told = [*ASKED, reply.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    answer = served.client.chat.completions.create(**SAID | {"messages": told}, tools=[WEATHER], tool_choice="none", max_tokens=5)
    assert answer.choices[0].message.tool_calls is None


def test_deltas_of_a_call_name_it_once_and_first(served: Running) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}
    whole = served.client.chat.completions.create(**SAID, **asked).choices[0].message.tool_calls[0]  # type: ignore[call-overload]
    deltas = [chunk["choices"][0]["delta"] for chunk in _chunks(served, SAID | asked)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0] * len(calls)
    assert [("id" in call, "name" in call["function"]) for call in calls] == [(True, True)] + [(False, False)] * (len(calls) - 1)
    assert "".join(call["function"]["arguments"] for call in calls) == whole.function.arguments


def test_a_reply_that_may_call_can_be_text(served: Running) -> None:
    reply = served.client.chat.completions.create(**SAID, tools=[WEATHER], max_tokens=60).choices[0]
    assert reply.message.content
    assert reply.finish_reason == "stop"


CALC, NOTE = _grammar("lark", SUM), _grammar("regex", "[a-c]{1,5}", "note")
ONE: Any = {"tools": [WEATHER, CALC, NOTE], "parallel_tool_calls": False, "max_tokens": 80}


@pytest.mark.parametrize(
    "choice", [{"type": "custom", "custom": {"name": "calc"}}, _allowed("required", "calc"), _allowed("required", "calc", "note")]
)
def test_the_input_of_a_custom_tool_is_a_text_of_its_grammar(served: Running, choice: Any) -> None:
    reply = served.client.chat.completions.create(**SAID, **ONE, tool_choice=choice).choices[0]
    (call,) = reply.message.tool_calls or ()
    assert call.type == "custom"
    language = fsm.grammar(SUM) if call.custom.name == "calc" else fsm.regex("[a-c]{1,5}")
    assert language.accepts(call.custom.input)
    chunks = [chunk["choices"][0] for chunk in _chunks(served, SAID | ONE | {"tool_choice": choice})]
    calls = [one for chunk in chunks for one in chunk["delta"].get("tool_calls", ())]
    assert [sorted(one) for one in calls] == [["custom", "id", "index", "type"]] + [["custom", "index"]] * (len(calls) - 1)
    assert calls[0]["custom"]["name"] == call.custom.name
    assert "".join(one["custom"]["input"] for one in calls) == call.custom.input
    assert chunks[-1]["finish_reason"] == "tool_calls"
    told: Any = [*ASKED, reply.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    answer = served.client.chat.completions.create(**SAID | {"messages": told}, **ONE | {"max_tokens": 4}, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None


def test_allowed_tools_leave_the_prompt_as_it_is(served: Running) -> None:
    long = SAID | {"messages": [{"role": "user", "content": f"{ASKED[0]['content']} Thank you. Please do."}]}
    found = [served.client.chat.completions.create(**long, **ONE, tool_choice=_allowed("auto", name)) for name in ("calc", "note")]
    first, second = (one.usage for one in found)
    assert first is not None
    assert second is not None
    assert first.prompt_tokens == second.prompt_tokens
    assert second.prompt_tokens_details is not None
    assert (second.prompt_tokens_details.cached_tokens or 0) > 0.9 * second.prompt_tokens


def test_thoughts_come_before_the_answer() -> None:
    model = chat_model("Qwen3")
    with Running(model) as served:
        options: Any = {"model": "tiny", "messages": ASKED, "seed": 3, "reasoning_effort": "low", "max_tokens": 40}
        alone = (
            Chat(model, rng=3)
            .message(ASKED[0])
            .assistant(generate.text(model, sampler=samplers.multinomial(temperature=1.0)), thinking=Thinking(max_tokens=10), max_tokens=30)
        )
        whole = served.post("/v1/chat/completions", options | {"logprobs": True}).json()
        message = whole["choices"][0]["message"]
        assert (message["reasoning_content"].strip(), message["content"]) == (alone.thoughts, alone.messages[-1]["content"])
        usage = whole["usage"]
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        chunks = [chunk["choices"][0] for chunk in _chunks(served, options | {"logprobs": True})]
        for name in ("reasoning_content", "content"):
            assert "".join(chunk["delta"].get(name, "") for chunk in chunks) == message[name]
        tokens = [one for chunk in chunks for one in (chunk["logprobs"] or {"content": []})["content"]]
        assert tokens == whole["choices"][0]["logprobs"]["content"]
        again = [*ASKED, message, {"role": "user", "content": "Why?"}]
        assert "error" not in served.post("/v1/chat/completions", options | {"messages": again}).json()
        quiet = served.post("/v1/chat/completions", options | {"reasoning_effort": "none"}).json()
        assert "reasoning_content" not in quiet["choices"][0]["message"]


# -- chunks ------------------------------------------------------------------------------------------------------------


def _chunks(served: Running, body: Any, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
    lines = served.post(path, body | {"stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    for chunk in chunks:
        _check_form(chunk)
    return chunks


def _check_form(reply: Any) -> None:
    """Validate a reply or a chunk by the types of the client, which know no custom calls in chunks."""
    if reply["object"] == "chat.completion.chunk":
        custom = any(call.get("custom") for one in reply["choices"] for call in one["delta"].get("tool_calls", ()))
        assert custom or ChatCompletionChunk.model_validate(reply)
    elif reply["object"] == "chat.completion":
        ChatCompletion.model_validate(reply)
    else:
        for one in reply["choices"]:
            one["finish_reason"] = one["finish_reason"] or "stop"  # a chunk has none yet
        Completion.model_validate(reply)


def test_whole_replies_have_the_form_of_the_client(served: Running) -> None:
    asked: list[dict[str, Any]] = [
        {"n": 2, "logprobs": True, "top_logprobs": 2},
        ONE | {"tool_choice": "required"},
        ONE | {"tool_choice": "auto"},
    ]
    for one in asked:
        _check_form(served.post("/v1/chat/completions", SAID | {"max_tokens": 30} | one).json())
    _check_form(served.post("/v1/completions", {"model": "tiny", "prompt": "Due: ", "logprobs": 2}).json())


def test_cached_tokens_are_those_that_were_not_fed() -> None:
    with Running(models.tiny()) as served:
        asked = SAID | {"max_tokens": 3}
        with served.model.meter() as meter:
            first = served.post("/v1/chat/completions", asked).json()["usage"]
            fed = meter.fed_tokens
            again = served.post("/v1/chat/completions", asked | {"n": 3}).json()["usage"]
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        assert again["prompt_tokens_details"] == {"cached_tokens": first["prompt_tokens"] - 1}
        assert meter.fed_tokens - fed < first["prompt_tokens"]


@pytest.mark.parametrize("with_usage", [False, True])
def test_only_a_requested_usage_has_no_choices(served: Running, with_usage: bool) -> None:
    chunks = _chunks(served, SAID | {"n": 2, "max_tokens": 90} | ({"stream_options": {"include_usage": True}} if with_usage else {}))
    empty = [chunk for chunk in chunks if not chunk["choices"]]
    assert [chunk["usage"]["completion_tokens"] > 0 for chunk in empty] == [True] * with_usage
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_joined_chunks_are_the_whole_reply(served: Running) -> None:
    whole = served.client.chat.completions.create(**SAID, max_tokens=30, logprobs=True).choices[0]
    chunks = [chunk["choices"][0] for chunk in _chunks(served, SAID | {"max_tokens": 30, "logprobs": True})]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == whole.message.content
    tokens = [one["token"] for chunk in chunks for one in (chunk["logprobs"] or {"content": []})["content"]]
    assert tokens == [one.token for one in whole.logprobs.content]  # type: ignore[union-attr]
    body = {"model": "tiny", "prompt": "Message: Send 2 lamps.\nKind: ", "temperature": 0}
    texts = [chunk["choices"][0]["text"] for chunk in _chunks(served, body, "/v1/completions")]
    assert "".join(texts) == served.post("/v1/completions", body).json()["choices"][0]["text"]


# -- errors ------------------------------------------------------------------------------------------------------------

_PATH = "/v1/chat/completions"
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"b": {"type": "strange"}}}}}
_LOOSE = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"type": "string", "format": "strange"}}}
TAG = {"begin": "<a>", "schema": {}, "end": "</a>"}
WRONG: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"foo": 1}, 400, "foo", "foo"),
    ({"messages": []}, 400, "messages", "a list of 1 or more"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "messages/0/role", "'user'"),
    ({"continue_final_message": True}, 400, "continue_final_message", "last message of the assistant"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}, 400, None, "`data:` URL"),
    ({"temperature": 3}, 400, "temperature", "2"),
    ({"top_logprobs": 3}, 400, None, "logprobs"),
    ({"n": 17}, 400, "n", "16"),
    ({"max_tokens": 10_000}, 400, "max_tokens", "4096"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias", "ids"),
    ({"logit_bias": {"999999": 1}}, 400, None, "999999"),
    ({"model": "other"}, 404, "model", "other"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format", "json_schema"),
    ({"response_format": _SCHEMA}, 400, "response_format/json_schema/schema#/properties/b/type", "strange"),
    ({"response_format": _LOOSE}, 400, "response_format/json_schema/schema#/format", "strict"),
    ({"structured_outputs": {"regex": "("}}, 400, "structured_outputs/regex", "("),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, 400, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"structural_tag": {"structures": [TAG], "triggers": ["<b"]}}}, 400, "structured_outputs/structural_tag", "<a"),
    ({"structured_outputs": {"structural_tag": "{"}}, 400, None, "JSON"),
    ({"structured_outputs": {"json": "{"}}, 400, "structured_outputs/json", "JSON"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, 400, None, "both"),
    ({"web_search_options": {}}, 400, "web_search_options", "searches no web: leave it out"),
    ({"tool_choice": "required"}, 400, None, "tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, 400, "tool_choice", "other"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools/0", "custom"),
    ({"tools": [{"type": "custom", "custom": {"name": "a", "strict": True}}]}, 400, "tools/0/custom/strict", "strict"),
    ({"tools": [_grammar("lark", "start: (")]}, 400, "tools/0", "start"),
    ({"tools": [_grammar("regex", "(")]}, 400, "tools/0", "("),
    ({"tools": [WEATHER], "tool_choice": _allowed("auto", "other")}, 400, "tool_choice", "weather"),
    ({"tools": [LOOSE_TOOL]}, 400, "tools/0#/properties/a/format", "strict"),
    ({"tools": [WEATHER], "tool_choice": "required", "stream": True, "stop": ["", "a"]}, 400, "stop", "stop"),
    ({"reasoning_effort": "huge"}, 400, "reasoning_effort", "'low'"),
    ({"chat_template_kwargs": {"no_such": 1}}, 400, "chat_template_kwargs", "no_such"),
    ({"stop": ["", "a"]}, 400, None, "stop"),
]


@pytest.mark.parametrize(("change", "status", "param", "said"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_request_is_refused_by_name(served: Running, change: Any, status: int, param: str | None, said: str) -> None:
    found = served.post(_PATH, SAID | {"max_tokens": 4} | change)
    error = found.json()["error"]
    assert (found.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert said in error["message"]
    if param is not None:
        assert error["param"] == param
    assert served.num_running == 0


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("chat/completions", "temprature", ". Did you mean 'temperature'?"),
        ("completions", "max_token", ". Did you mean 'max_tokens'?"),
        ("responses", "max_output_token", ". Did you mean 'max_output_tokens'?"),
        ("completions", "reasoning_effort", ""),  # of another request
        ("chat/completions", "foo", ""),
    ],
)
def test_a_field_of_a_similar_name_is_suggested(served: Running, path: str, name: str, said: str) -> None:
    asked = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path]
    body = {"model": "tiny", asked: ASKED if asked == "messages" else "a", name: 1}
    error = served.post(f"/v1/{path}", body).json()["error"]
    assert error["message"] == f"unknown field `{name}`{said}"
    assert (error["param"], error["code"]) == (name, "unknown_parameter")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"a"', b"null"])
def test_a_body_that_is_no_object_is_refused(served: Running, content: bytes) -> None:
    found = httpx.post(served.url + _PATH, content=content, headers={"Content-Type": "application/json"})
    assert found.status_code == 400
    assert found.json()["error"]["type"] == "invalid_request_error"


def test_unknown_paths_and_methods_have_the_same_form(served: Running) -> None:
    for found, status in ((httpx.get(served.url + "/v1/nothing"), 404), (httpx.get(served.url + _PATH), 405)):
        assert found.status_code == status
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    with pytest.raises(openai.NotFoundError, match="other"):
        served.client.models.retrieve("other")
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert httpx.get(served.url + "/health").json() == {"status": "ok"}


def test_key_size_and_room_are_checked() -> None:
    with Running(models.tiny(), key="secret", max_requests=1, max_body_bytes=2_000) as served:
        assert httpx.get(served.url + "/health").status_code == 200
        assert httpx.get(served.url + "/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert served.post(_PATH, SAID, Authorization="Bearer other").status_code == 401
        assert served.client.chat.completions.create(**SAID, max_tokens=2).choices
        large = SAID | {"messages": [{"role": "user", "content": "a" * 3_000}]}
        assert served.post(_PATH, large).status_code == 413
        long = SAID | {"structured_outputs": LONG, "stream": True}
        key = {"Authorization": "Bearer secret"}
        with httpx.stream("POST", served.url + _PATH, json=long, headers=key, timeout=60) as stream:
            chunks = stream.iter_bytes()
            assert next(chunks)
            refused = served.post(_PATH, SAID)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        # Its place is free a moment after its row has left.
        served.wait_until(lambda: served.post(_PATH, SAID | {"max_tokens": 2}).status_code == 200)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [WEATHER]}, "tools/0"),
        ({"tools": [_grammar("lark", "start: /[a-z]/")]}, "tools/0"),
        ({"structured_outputs": {"grammar": "start: /[a-z]/"}}, "structured_outputs/grammar"),
        ({"structured_outputs": {"json": WEATHER["function"]["parameters"]}}, "structured_outputs/json"),
    ],
)
def test_the_limits_of_the_server_bound_all_that_it_compiles(asked: Any, param: str) -> None:
    small = fsm.Limits(max_subschemas=1, max_grammar_characters=9)
    with Running(models.tiny(), schema=small) as served:
        error = served.post(_PATH, SAID | {"max_tokens": 4} | asked).json()["error"]
    assert error["code"] == "budget_exceeded"
    assert error["param"].startswith(param)


# -- clients that go away, and slow constraints ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_rows(served: Running, stream: bool) -> None:
    body = SAID | {"structured_outputs": LONG, "n": 3, "stream": stream}
    sent = json.dumps(body).encode()
    head = f"POST {_PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + sent)
        served.wait_until(lambda: served.num_running == 3)
    served.wait_until(lambda: served.num_running == 0)
    metrics = httpx.get(served.url + "/metrics").text
    assert float(re.findall(r'^outlines_cont_cancelled_requests_total{model="tiny"} (\S+)', metrics, re.M)[0]) >= 1


class Endless:
    """A compilation that only ends when it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, schema: Any, **options: Any) -> fsm.Expression:
        self.begun.set()
        try:
            while True:
                work.check()
                time.sleep(0.001)
        finally:
            self.ended.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_compilation_ends_when_its_client_goes_away(served: Running, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    endless = Endless()
    monkeypatch.setattr(constraints, "json_schema", endless)
    body = SAID | {"stream": stream, "structured_outputs": {"json": {"const": f"endless {stream}"}}}
    sent = json.dumps(body).encode()
    head = f"POST {_PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + sent)
        assert endless.begun.wait(60)
    assert endless.ended.wait(60)
    assert served.post(_PATH, SAID | {"max_tokens": 2}).status_code == 200


def test_a_compilation_goes_on_while_one_of_two_requests_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(constraints, "json_schema", endless)

    async def ask() -> None:
        compiled = constraints.Constraints(models.tiny(), fsm.Limits())
        wanted = constraints.Wanted("json", {"const": "endless"})
        first, second = (asyncio.ensure_future(compiled.generator(wanted)) for _ in range(2))
        await asyncio.to_thread(endless.begun.wait, 60)
        first.cancel()
        await asyncio.wait((first,))
        assert not await asyncio.to_thread(endless.ended.wait, 0.1)
        second.cancel()
        await asyncio.wait((second,))
        assert await asyncio.to_thread(endless.ended.wait, 60)
        monkeypatch.setattr(constraints, "json_schema", fsm.json_schema)
        await compiled.generator(wanted)  # compiled anew

    asyncio.run(ask())


def test_a_slow_schema_delays_no_other_request(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles until all others have their replies."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"slow": {"type": "string"}}}}}
    bodies = [{}, {"response_format": {"type": "json_object"}}, {"structured_outputs": {"json": {"type": "integer", "maximum": 7}}}]
    have_ended, ended = threading.Event(), list[str]()

    def compiled(schema: Any, **options: Any) -> fsm.Expression:
        assert "slow" not in str(schema) or have_ended.wait(60)
        return fsm.json_schema(schema, **options)

    def ask(name: str, body: Any) -> None:
        assert served.post(_PATH, SAID | {"max_tokens": 2} | body).status_code == 200
        ended.append(name)

    monkeypatch.setattr(constraints, "json_schema", compiled)
    slow = threading.Thread(target=ask, args=("slow", {"response_format": form}))
    others = [threading.Thread(target=ask, args=(f"quick {i}", body)) for i, body in enumerate(bodies)]
    for thread in (slow, *others):
        thread.start()
    for thread in others:
        thread.join()
    have_ended.set()
    slow.join()
    assert sorted(ended[:3]) == ["quick 0", "quick 1", "quick 2"]
    assert ended[3:] == ["slow"]


def test_tokens_and_requests_are_counted() -> None:
    with Running(models.tiny()) as served:
        reply = served.client.chat.completions.create(**SAID, max_tokens=5)
        served.post(_PATH, {})
        text = httpx.get(served.url + "/metrics").text
    counted = dict(re.findall(r'^outlines_cont_tokens_total{kind="(\w+)",model="tiny"} (\S+)', text, re.M))
    assert reply.usage is not None
    assert {kind: float(value) for kind, value in counted.items()} == {
        "prompt": reply.usage.prompt_tokens,
        "cached": 0,
        "written": reply.usage.completion_tokens,
        "thoughts": 0,
    }
    statuses = re.findall(r'^outlines_cont_requests_total{model="(.*)",path="/v1/chat/completions",status="(\d+)"} 1.0', text, re.M)
    assert sorted(statuses) == [("", "400"), ("tiny", "200")]  # the first has named no model
