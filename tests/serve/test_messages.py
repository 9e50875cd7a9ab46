"""`/v1/messages` by plain HTTP: replies equal to those of Chat Completions for random conversations, events in their order, errors."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

import pytest
from pydantic_core import from_json

from outlines_cont import models
from tests.examples import first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER, Order

PATH, CHAT = "/v1/messages", "/v1/chat/completions"
SAID: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 60}
TOOL: Any = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
ORDER: Any = {"type": "json_schema", "schema": Order.model_json_schema()}


def events_of(served: Running, body: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    *sent, end = served.post(PATH, body | {"stream": True}).text.split("\n\n")
    assert end == ""
    found = []
    for lines in sent:
        kind, data = lines.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def whole_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream make; raises for events that are not in the order of the protocol."""
    start, *rest, delta, stop = [event for event in events if event["type"] != "ping"]
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    blocks, is_open = message["content"], False
    inputs: dict[int, str] = {}
    for event in rest:
        assert is_open == (event["type"] != "content_block_start")
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            is_open = True
        elif event["type"] == "content_block_stop":
            is_open = False
        else:
            kind = event["delta"].pop("type")
            if kind == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
            else:
                ((name, text),) = event["delta"].items()
                assert kind == f"{name}_delta"
                blocks[-1][name] += text
        assert event["index"] == len(blocks) - 1
    assert not is_open
    for index, text in inputs.items():
        blocks[index]["input"] = from_json(text, allow_partial=True) if text else {}  # as the client of Anthropic does
    return message | delta["delta"] | {"usage": delta["usage"]}


def same_parts(message: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one request have in common: all but ids, and which tokens of the prompt were cached."""
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    usage = message["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return message | {"id": "", "content": content, "usage": [prompt, usage["output_tokens"], usage["output_tokens_details"]]}


# -- the same as Chat Completions --------------------------------------------------------------------------------------

WORDS = ["Rain?", "Hello, this is Ana Novak.", "3 lamps", "Oslo\n", " ", "\u00e9t\u00e9", "<|im_end|>", '{"a": 1}']


def random_conversation(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request of Messages, and the one of Chat Completions that says the same."""
    ours: dict[str, Any] = {"model": "tiny", "max_tokens": draw.randint(1, 16)}
    chat: dict[str, Any] = {"model": "tiny", "max_completion_tokens": ours["max_tokens"]}
    told: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []

    def texts() -> tuple[Any, str]:
        found = draw.choices(WORDS, k=draw.randint(1, 3))
        blocks = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in found]
        return ("\n".join(found) if draw.random() < 0.5 else blocks), "\n".join(found)

    if draw.random() < 0.5:
        ours["system"], text = texts()
        said.append({"role": "system", "content": text})
    ids = count()
    for _ in range(draw.randint(0, 2)):
        content, text = texts()
        told.append({"role": "user", "content": content})
        said.append({"role": "user", "content": text})
        reply: dict[str, Any] = {"role": "assistant", "content": draw.choice(["", *WORDS])}
        blocks: list[dict[str, Any]] = [{"type": "text", "text": reply["content"]}] if reply["content"] else []
        if draw.random() < 0.4:
            reply["reasoning_content"] = draw.choice(WORDS)
            blocks.insert(0, {"type": "thinking", "thinking": reply["reasoning_content"], "signature": "x"})
            blocks.insert(0, {"type": "redacted_thinking", "data": "x"})
        results = []
        for _ in range(draw.randint(0, 2)):
            id_, city, (result, shown) = f"toolu_{next(ids)}", draw.choice(["Oslo", "\u00c5lesund"]), texts()
            blocks.append({"type": "tool_use", "id": id_, "name": "weather", "input": {"city": city}})
            arguments = json.dumps({"city": city}, ensure_ascii=False)
            reply.setdefault("tool_calls", []).append(
                {"id": id_, "type": "function", "function": {"name": "weather", "arguments": arguments}}
            )
            results.append(({"type": "tool_result", "tool_use_id": id_, "content": result, "is_error": True}, shown))
        told.append({"role": "assistant", "content": blocks})
        said.append(reply)
        if results:
            told.append({"role": "user", "content": [block for block, _ in results]})
            said += [{"role": "tool", "tool_call_id": block["tool_use_id"], "content": shown} for block, shown in results]
            told.append({"role": "assistant", "content": "Good."})
            said.append({"role": "assistant", "content": "Good."})
    content, text = texts()
    told.append({"role": "user", "content": content})
    said.append({"role": "user", "content": text})
    ours["messages"], chat["messages"] = told, said
    if draw.random() < 0.2:
        told.append({"role": "assistant", "content": "Sure: "})
        said.append({"role": "assistant", "content": "Sure: "})
        chat["continue_final_message"] = True
    if draw.random() < 0.5:
        ours["tools"], chat["tools"] = [TOOL], [WEATHER]
        kinds = [("auto", "auto"), ("any", "required"), ("none", "none"), ("tool", {"type": "function", "function": {"name": "weather"}})]
        name, chat["tool_choice"] = draw.choice(kinds)
        ours["tool_choice"] = {"type": name} | ({"name": "weather"} if name == "tool" else {})
        if name != "none" and draw.random() < 0.5:
            ours["tool_choice"]["disable_parallel_tool_use"] = True
            chat["parallel_tool_calls"] = False
    shared: dict[str, Any] = {"temperature": 0} if draw.random() < 0.5 else {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 3}
    if draw.random() < 0.3:
        ours["stop_sequences"] = chat["stop"] = ["a", "}"]
    return ours | shared, chat | shared


def chat_parts(reply: dict[str, Any]) -> tuple[Any, ...]:
    (choice,) = reply["choices"]
    message, usage = choice["message"], reply["usage"]
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())]
    thoughts = message.get("reasoning_content", "")
    return thoughts, message["content"] or "", calls, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]


def message_parts(reply: dict[str, Any]) -> tuple[Any, ...]:
    blocks, usage = reply["content"], reply["usage"]
    thoughts, text = ("".join(block[kind] for block in blocks if block["type"] == kind) for kind in ("thinking", "text"))
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    reason = {"max_tokens": "length", "tool_use": "tool_calls"}.get(reply["stop_reason"], "stop")
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return thoughts, text, calls, reason, prompt, usage["output_tokens"]


@pytest.mark.parametrize("seed", first(3, range(8)))
def test_a_random_conversation_has_the_reply_of_chat_completions(thinking: Running, served: Running, seed: int) -> None:
    draw = random.Random(seed)
    for server in (served, thinking):
        ours, chat = random_conversation(draw)
        reply, other = server.post(PATH, ours), server.post(CHAT, chat)
        if other.status_code != 200:  # a template may refuse a conversation
            assert (reply.status_code, reply.json()["type"]) == (other.status_code, "error")
            continue
        assert reply.status_code == 200, reply.text
        found, wanted = message_parts(reply.json()), chat_parts(other.json())
        if found[3] == "length" and "tools" in ours:  # a call that was cut is there as far as it goes
            found, wanted = (parts[:2] + parts[3:] for parts in (found, wanted))
        assert found == wanted
        assert same_parts(whole_of(events_of(server, ours))) == same_parts(reply.json())
        counted = {key: value for key, value in ours.items() if key != "max_tokens"}
        assert server.post(f"{PATH}/count_tokens", counted).json() == {"input_tokens": wanted[-2]}


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_reply_ends_for_a_reason(served: Running) -> None:
    done = served.post(PATH, SAID).json()
    assert (done["stop_reason"], done["stop_sequence"], done["type"], done["role"]) == ("end_turn", None, "message", "assistant")
    cut = served.post(PATH, SAID | {"max_tokens": 3}).json()
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 3)
    text = done["content"][0]["text"]
    stopped = served.post(PATH, SAID | {"stop_sequences": ["nothing of it", "Novak"]}).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "Novak")
    assert stopped["content"] == [{"type": "text", "text": text.partition("Novak")[0]}]
    called = served.post(PATH, SAID | {"tools": [TOOL], "tool_choice": {"type": "any"}}).json()
    assert called["stop_reason"] == "tool_use"
    assert whole_of(events_of(served, SAID | {"stop_sequences": ["Novak"]}))["stop_sequence"] == "Novak"


def test_the_cached_tokens_of_a_prompt_are_counted_apart(served: Running) -> None:
    body = SAID | {"messages": [{"role": "user", "content": "Message: No other test has sent this. " * 4}]}
    first, second = (served.post(PATH, body).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] < second["cache_read_input_tokens"]
    assert first["input_tokens"] + first["cache_read_input_tokens"] == second["input_tokens"] + second["cache_read_input_tokens"]


def test_a_call_that_was_cut_is_the_same_in_a_stream(served: Running) -> None:
    tool = {"name": "note", "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
    kinds = set()
    for most in (1, 8, 20, 22, 25, 28):
        body = SAID | {"tools": [tool], "tool_choice": {"type": "tool", "name": "note"}, "max_tokens": most}
        whole, streamed = served.post(PATH, body).json(), whole_of(events_of(served, body))
        assert same_parts(streamed) == same_parts(whole)
        kinds |= {block["type"] for block in whole["content"]} or {""}
        assert whole["stop_reason"] == "max_tokens"
    assert kinds == {"", "tool_use"}


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_an_answer_has_the_form_that_is_asked_for(served: Running, place: str) -> None:
    more = {"output_config": {"format": ORDER}} if place == "output_config" else {"output_format": ORDER}
    (block,) = served.post(PATH, SAID | more).json()["content"]
    assert Order.model_validate_json(block["text"]) == Order(customer="Ana Novak", item="lamps", quantity=3)


@pytest.mark.parametrize("seed", first(4, range(12)))
@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_beside_tools_a_reply_is_calls_or_a_text_of_the_form(served: Running, place: str, seed: int) -> None:
    draw = random.Random(seed)
    more: Any = {"output_config": {"format": ORDER}} if place == "output_config" else {"output_format": ORDER}
    choice = draw.choice([{"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}, {"type": "none"}, {"type": "any"}, None])
    more |= {"tools": [TOOL], "temperature": 2, "seed": seed, "max_tokens": 300} | ({} if choice is None else {"tool_choice": choice})
    whole = served.post(PATH, SAID | more).json()
    assert same_parts(whole_of(events_of(served, SAID | more))) == same_parts(whole)
    kinds = [block["type"] for block in whole["content"]]
    for block in whole["content"]:
        if block["type"] == "tool_use":
            assert block["input"]["city"] in ("Paris", "Oslo")
        elif whole["stop_reason"] == "end_turn":
            assert isinstance(Order.model_validate_json(block["text"]), Order)
    assert kinds == ["text"] or {*kinds} == {"tool_use"}
    if choice is not None:
        assert {*kinds} != {"tool_use"} if choice["type"] == "none" else choice["type"] == "auto" or {*kinds} == {"tool_use"}
    schema = {"name": "output", "schema": ORDER["schema"], "strict": True}
    chat: Any = {"tools": [WEATHER], "response_format": {"type": "json_schema", "json_schema": schema}}
    forms = {"auto": "auto", "none": "none", "any": "required"}
    chat |= {} if choice is None else {"tool_choice": forms[choice["type"]]}
    chat |= {"parallel_tool_calls": False} if choice is not None and "disable_parallel_tool_use" in choice else {}
    message = served.post(CHAT, SAID | {"temperature": 2, "seed": seed, "max_tokens": 300} | chat).json()["choices"][0]["message"]
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert calls == [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
    assert (message["content"] or "") == "".join(block["text"] for block in whole["content"] if block["type"] == "text")


def test_more_tokens_than_the_server_writes_are_as_many_as_it_writes() -> None:
    with Running(models.tiny(), max_tokens=5) as served:
        reply = served.post(PATH, SAID | {"max_tokens": 32_000}).json()
    assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("max_tokens", 5)


def test_a_prompt_too_long_for_the_model_is_counted(served: Running) -> None:
    long = {"model": "tiny", "messages": [{"role": "user", "content": "a b c d " * 1000}]}
    counted = served.post(f"{PATH}/count_tokens", long).json()["input_tokens"]
    assert counted > served.model.context_length
    refused = served.post(PATH, long | {"max_tokens": 4})
    assert refused.status_code == 400
    assert str(counted) in refused.json()["error"]["message"]


def test_documents_and_results_of_searches_are_text(served: Running) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Rain."}
    found = {"type": "search_result", "title": "Oslo", "source": "a.example", "content": [{"type": "text", "text": "Sun."}]}
    parts = {"type": "content", "content": [{"type": "text", "text": "Snow."}]}
    blocks = [{"type": "document", "source": source, "title": "Weather"}, found, {"type": "document", "source": parts}]
    body = SAID | {"messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "Which?"}]}]}
    plain = SAID | {"messages": [{"role": "user", "content": "Weather\nRain.\nOslo\na.example\nSun.\nSnow.\nWhich?"}]}
    assert same_parts(served.post(PATH, body).json()) == same_parts(served.post(PATH, plain).json())


def test_consecutive_messages_of_one_role_are_one(served: Running) -> None:
    apart = [{"role": "user", "content": "Rain"}, {"role": "user", "content": [{"type": "text", "text": "in Oslo?"}]}]
    one = [{"role": "user", "content": "Rain\nin Oslo?"}]
    first, second = (served.post(PATH, SAID | {"messages": messages}).json() for messages in (apart, one))
    assert same_parts(first) == same_parts(second)


# -- thoughts ----------------------------------------------------------------------------------------------------------

RAIN: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}], "seed": 1, "max_tokens": 40}


def test_thoughts_are_a_block_within_their_budget(thinking: Running) -> None:
    body = RAIN | {"thinking": {"type": "enabled", "budget_tokens": 12}}
    reply = thinking.post(PATH, body).json()
    thought, text = reply["content"]
    assert (thought["type"], text["type"], thought["signature"]) == ("thinking", "text", "")
    assert 12 < reply["usage"]["output_tokens"] <= 44  # with the mark between them
    chat = thinking.post(CHAT, RAIN | {"thinking_token_budget": 12}).json()
    assert message_parts(reply) == chat_parts(chat)
    events = events_of(thinking, body)
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert same_parts(whole_of(events)) == same_parts(reply)
    assert kinds == sorted(kinds, key=["thinking_delta", "signature_delta", "text_delta"].index)
    assert kinds.count("signature_delta") == 1
    more = [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "Why?"}]
    assert thinking.post(PATH, body | {"messages": [*RAIN["messages"], *more]}).status_code == 200


def test_the_answer_has_an_eighth_of_the_tokens(thinking: Running) -> None:
    reply = thinking.post(PATH, RAIN | {"thinking": {"type": "enabled", "budget_tokens": 39}}).json()
    _, text = reply["content"]
    assert reply["usage"]["output_tokens_details"]["thinking_tokens"] <= 39  # with the mark at their end
    assert text["text"]


def test_a_model_without_thoughts_decides_to_have_none(served: Running, thinking: Running) -> None:
    adaptive = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}
    assert same_parts(served.post(PATH, SAID | adaptive).json()) == same_parts(served.post(PATH, SAID).json())
    assert same_parts(served.post(PATH, SAID | {"thinking": {"type": "disabled"}}).json()) == same_parts(served.post(PATH, SAID).json())
    assert [block["type"] for block in thinking.post(PATH, RAIN | adaptive).json()["content"]] == ["thinking", "text"]
    chat = thinking.post(CHAT, RAIN | {"reasoning_effort": "medium"}).json()
    assert message_parts(thinking.post(PATH, RAIN | {"thinking": {"type": "adaptive"}}).json()) == chat_parts(chat)


# -- what changes nothing, and errors ----------------------------------------------------------------------------------


def test_what_only_a_service_needs_changes_nothing(served: Running) -> None:
    more = {
        "metadata": {"user_id": "a"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "mcp_servers": [],
        "container": None,
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": [],
        "thinking": None,
        "system": [],
    }
    plain = served.post(PATH, SAID)
    reply = served.post(f"{PATH}?beta=true", SAID | more, **{"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"})
    assert same_parts(reply.json()) == same_parts(plain.json())


def _said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [*blocks]}]}


CALL: Any = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"foo": 1}, "foo"),
    ({"max_token": 1}, "Did you mean 'max_tokens'?"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages/0/role"),
    (_said({"type": "image", "source": {"type": "url", "url": "a"}}), "expected a URL of http or https"),
    (_said({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}), "Send its text"),
    (_said({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}), "source"),
    (_said({"type": "server_tool_use", "id": "a"}), "'server_tool_use'"),
    (_said({"type": ["a"]}), "messages/0/content/0"),
    (_said({}), "messages/0/content/0/type"),
    (_said(CALL), "belongs to no message of the role 'user'"),
    (_said({"type": "tool_result", "tool_use_id": "a"}, role="assistant"), "belongs to no message of the role 'assistant'"),
    (_said({"type": "text", "text": "Sure"}, role="assistant"), "one of the user"),
    ({"messages": [*ASKED, {"role": "assistant", "content": [CALL]}]}, "`tool_result` after the last `tool_use`"),
    (_said(CALL, role="system"), "belongs to no message of the role 'system'"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "Describe it as a custom tool"),
    ({"tools": [{"name": "a"}]}, "tools/0/input_schema"),
    ({"tools": [{"name": "a", "input_schema": {"properties": {"b": {"type": "odd"}}}}]}, "tools/0"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "other"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "`name`"),
    ({"tool_choice": {"type": "any"}}, "expected `tools`"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 60}}, "below `max_tokens`"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}}, "output_config/format/schema"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"stop_sequences": [""]}, "stop"),
    ({"stop_sequences": ["a"] * 2_000}, "stop_sequences"),
    ({"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=str)
def test_a_wrong_request_is_refused(served: Running, change: Any, said: str) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        found = served.post(path, SAID | change)
        assert found.status_code == 400
        assert found.json().keys() == {"type", "error"}
        assert (found.json()["type"], found.json()["error"]["type"]) == ("error", "invalid_request_error")
        assert said in found.json()["error"]["message"]


def test_a_thread_is_refused_so_that_clients_send_all_of_it(served: Running) -> None:
    found = served.post(PATH, SAID | {"thread": {"type": "create"}})
    assert found.status_code == 400
    assert found.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_a_request_needs_its_most_tokens(served: Running) -> None:
    found = served.post(PATH, {"model": "tiny", "messages": ASKED})
    assert (found.status_code, found.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "max_tokens" in found.json()["error"]["message"]


def test_errors_have_the_form_of_the_protocol_wherever_they_arise() -> None:
    with Running(models.tiny(), key="secret", max_body_bytes=2_000, max_requests=1) as served:

        def kind(path: str, body: Any, **headers: str) -> tuple[int, str]:
            found = served.post(path, body, **headers)
            assert found.json()["type"] == "error"
            return found.status_code, found.json()["error"]["type"]

        no_key = {"Authorization": "none"}
        assert kind(PATH, SAID, Authorization="Bearer other") == (401, "authentication_error")
        assert kind(PATH, SAID, **no_key, **{"x-api-key": "other"}) == (401, "authentication_error")
        assert served.post(PATH, SAID, **no_key, **{"x-api-key": "secret"}).status_code == 200
        assert kind(PATH, SAID | {"model": "other"}) == (404, "not_found_error")
        assert kind(PATH, SAID | {"system": "a" * 3_000}) == (413, "request_too_large")
        assert kind(f"{PATH}/batches", {}) == (404, "not_found_error")
        assert served.send(PATH, "{").json()["type"] == "error"
        assert served.post(CHAT, {}, **no_key).json().keys() == {"error"}
        door = served._server.config.app.state.server.door  # type: ignore[union-attr]
        with door.entered(1):
            assert kind(PATH, SAID) == (429, "rate_limit_error")


def test_a_stream_that_fails_ends_with_an_error(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlines_cont.serve.protocols.anthropic_writer import MessageWriter

    def fail(*_: Any) -> Any:
        raise RuntimeError("of the test")

    monkeypatch.setattr(MessageWriter, "_note_end", fail)
    events = events_of(served, SAID)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert "of the test" not in events[-1]["error"]["message"]
