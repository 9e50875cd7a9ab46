"""What clients send, as it was recorded: fields that change nothing, in all combinations, and how conversations end."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import httpx
import pytest

from outlines_cont.serve.protocols.anthropic import MessagesRequest, with_pointers
from outlines_cont.serve.protocols.messages import Message, conversation
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest
from outlines_cont.serve.protocols.responses import ResponsesRequest
from tests.examples import first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TEXT = ASKED[0]["content"]
SAID: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 3}
PLAIN: dict[str, Any] = {
    CHAT: SAID,
    COMPLETIONS: {"model": "tiny", "prompt": TEXT, "temperature": 0, "max_tokens": 3},
    RESPONSES: {"model": "tiny", "input": TEXT, "temperature": 0, "max_output_tokens": 3},
    MESSAGES: SAID,
}
KINDS: dict[str, Any] = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest, RESPONSES: ResponsesRequest, MESSAGES: MessagesRequest}

# What changes no reply of a model without thoughts at temperature 0: for each field the values that clients send.
_EVERYWHERE: dict[str, list[Any]] = {
    "metadata": [{}, {"a": "b"}, {"user_id": None}, {"ls_run_depth": 0}],
    "seed": [0, 7, -1, 2**40, -(2**63)],
    "top_p": [0, 0.0, 1, 0.5],
    "top_k": [-1, 0],
    "prompt_cache_key": ["a"],
    "prompt_cache_retention": ["24h", "in_memory"],
    "prompt_cache_options": [{"mode": "auto"}],
    "safety_identifier": ["u"],
    "user": ["", "u"],
    "unknown_here": [None],
    "moderation": [None],
}
_OPENAI: dict[str, list[Any]] = {
    "service_tier": ["auto", "default", "flex", "priority"],
    "store": [True, False],
    "parallel_tool_calls": [True, False],
    "tools": [[]],
    "tool_choice": ["auto", "none"],
    "frequency_penalty": [0, 0.0],
    "presence_penalty": [0, 0.0],
}
_CHAT: dict[str, list[Any]] = {
    "n": [1],
    "stop": [[], "zzzz", ["zzzz"]],
    "logit_bias": [{}],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "include_obfuscation": False}, {}],
    "stream": [False],
}
UNION: dict[str, dict[str, list[Any]]] = {
    CHAT: _EVERYWHERE
    | _OPENAI
    | _CHAT
    | {
        "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", "max"],
        "thinking_token_budget": [1, 100],
        "verbosity": ["low", "medium", "high"],
        "modalities": [["text"]],
        "functions": [[]],
        "function_call": ["auto", "none"],
        "prediction": [{"type": "content", "content": "abc"}],
        "response_format": [{"type": "text"}],
        "add_generation_prompt": [True],
        "continue_final_message": [False],
        "top_logprobs": [0],
        "logprobs": [False],
    },
    COMPLETIONS: _EVERYWHERE | _CHAT | {"best_of": [1], "suffix": [""], "echo": [False]},
    RESPONSES: _EVERYWHERE
    | _OPENAI
    | {
        "truncation": ["auto", "disabled"],
        "include": [["reasoning.encrypted_content"], ["file_search_call.results", "web_search_call.action.sources"], []],
        "reasoning": [{}, {"effort": "low", "summary": "auto"}, {"effort": None, "mode": None}, {"generate_summary": "concise"}],
        "text": [{}, {"verbosity": "low"}, {"format": {"type": "text"}}],
        "tools": [[], [{"type": "web_search"}], [{"type": "code_interpreter", "container": {"type": "auto"}}]],
        "context_management": [[{"type": "compaction", "compact_threshold": 1000}]],
        "client_metadata": [{"originator": "a"}],
        "background": [False],
        "max_tool_calls": [3],
    },
    MESSAGES: _EVERYWHERE
    | {
        "thinking": [{"type": "disabled"}, {"type": "adaptive", "display": "summarized"}, {"type": "enabled", "budget_tokens": 2}],
        "output_config": [{"effort": "max"}, {"effort": "low", "task_budget": {"type": "tokens", "total": 1000}}],
        "context_management": [{"edits": [{"type": "clear_tool_uses_20250919"}]}],
        "cache_control": [{"type": "ephemeral", "ttl": "1h"}],
        "tools": [[], [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]],
        "tool_choice": [{"type": "auto"}, {"type": "none"}],
        "service_tier": ["auto", "standard_only"],
        "stop_sequences": [[], ["zzzz"]],
        "mcp_servers": [[]],
        "fallbacks": [[], [{"model": "b"}]],
        "user_profile_id": ["u"],
    },
}


def _drawn(path: str, rng: random.Random) -> dict[str, Any]:
    union = UNION[path]
    return {name: rng.choice(union[name]) for name in rng.sample(sorted(union), rng.randrange(len(union) + 1))}


def _told(reply: Any) -> Any:
    if "choices" in reply:
        return [(one["finish_reason"], one.get("text", one.get("message", {}).get("content"))) for one in reply["choices"]]
    if "output" in reply:
        return reply["status"], [part["text"] for item in reply["output"] for part in item["content"]]
    return reply["stop_reason"], reply["content"]


@pytest.mark.parametrize("path", KINDS)
def test_each_field_that_clients_send_is_read(path: str) -> None:
    for name, values in UNION[path].items():
        for value in values:
            KINDS[path].model_validate(PLAIN[path] | {name: value})
    rng = random.Random(5)
    for _ in range(100):
        KINDS[path].model_validate(PLAIN[path] | _drawn(path, rng))


@pytest.mark.parametrize("seed", first(3, range(30)))
@pytest.mark.parametrize("path", KINDS)
def test_what_changes_nothing_changes_nothing(served: Running, path: str, seed: int) -> None:
    drawn = _drawn(path, random.Random(seed))
    found = [served.post(path, PLAIN[path] | more) for more in ({}, drawn)]
    assert [one.status_code for one in found] == [200, 200], (drawn, found[1].text)
    assert _told(found[0].json()) == _told(found[1].json()), drawn


@pytest.mark.parametrize("seed", first(3, range(30)))
@pytest.mark.parametrize("path", KINDS)
def test_what_is_refused_is_named(served: Running, path: str, seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice([*sorted(UNION[path].keys() - {"unknown_here", "moderation"}), "odd", "tool"])
    body = PLAIN[path] | _drawn(path, rng) | {name: rng.choice([{"odd": [1]}, [[2]], "\u00e9", -0.5])}
    reply = served.post(path, body)
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert reply.status_code == 400, body
        assert name in f"{error.get('param')} {error['message']}", (body, error)


def test_zero_of_top_p_is_greedy_and_a_seed_may_be_negative(served: Running) -> None:
    asked = SAID | {"max_tokens": 8}
    greedy, zero = (_told(served.post(CHAT, asked | more).json()) for more in ({}, {"temperature": 1, "top_p": 0}))
    assert greedy == zero
    hot = asked | {"temperature": 2}
    same = [_told(served.post(CHAT, hot | {"seed": seed}).json()) for seed in (-1, 2**64 - 1, 1)]
    assert same[0] == same[1] != same[2]


def test_choices_may_be_the_best_of_themselves(served: Running) -> None:
    asked = PLAIN[COMPLETIONS] | {"n": 2}
    assert len(served.post(COMPLETIONS, asked | {"best_of": 2}).json()["choices"]) == 2
    for change, param in (({"best_of": 3}, "best_of"), ({"suffix": "a"}, "suffix")):
        reply = served.post(COMPLETIONS, asked | change)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


# -- how a conversation ends -------------------------------------------------------------------------------------------

CALLS: Any = [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]
ENDS: list[Any] = [
    {"role": "assistant", "content": "Yes."},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "assistant", "content": None, "annotations": [], "audio": None, "function_call": None, "reasoning_content": "Hm."},
]


@pytest.mark.parametrize("end", ENDS, ids=lambda value: str(value)[:60])
def test_another_reply_follows_one_of_the_assistant(served: Running, end: Any) -> None:
    silent = {"role": "user", "content": ""}
    found = [served.post(CHAT, SAID | {"messages": [*ASKED, end, *more]}).json() for more in ((), (silent,))]
    assert _told(found[0]) == _told(found[1])
    assert found[0]["usage"]["prompt_tokens"] == found[1]["usage"]["prompt_tokens"]
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]}
    reply = served.post(RESPONSES, PLAIN[RESPONSES] | {"input": [*ASKED, item]}).json()
    assert reply["output"][0]["type"] == "message"


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER]}, {"continue_final_message": True}])
def test_calls_without_results_are_refused(served: Running, more: Any) -> None:
    messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": CALLS}]
    reply = served.post(CHAT, SAID | more | {"messages": messages})
    assert reply.status_code == 400
    assert "results of its calls" in reply.json()["error"]["message"]


def test_the_prompt_of_a_reply_that_is_continued() -> None:
    told = {"model": "a", "messages": [*ASKED, {"role": "assistant", "content": "Ye"}]}
    going = ChatRequest.model_validate(told | {"continue_final_message": True, "add_generation_prompt": False})
    assert conversation(going.messages) == conversation([Message.model_validate(one) for one in told["messages"]])
    for wrong in ({"continue_final_message": True, "add_generation_prompt": True}, {"add_generation_prompt": False}):
        with pytest.raises(ValueError, match="add_generation_prompt"):
            ChatRequest.model_validate(told | wrong)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_references_without_a_hash_are_pointers(served: Running) -> None:
    """LiteLLM sends such schemas to a server of Anthropic's protocol."""
    item = {"type": "object", "properties": {"name": {"enum": ["lamp"]}}, "required": ["name"], "additionalProperties": False}
    inner = {"item": {"$ref": "/$defs/Item"}, "note": {"const": {"$ref": "/$defs/Item"}}}
    schema: Any = {"type": "object", "$defs": {"Item": item}, "properties": inner, "required": ["item"], "additionalProperties": False}
    assert with_pointers(schema)["properties"] == inner | {"item": {"$ref": "#/$defs/Item"}}
    tools = [{"name": "order", "input_schema": schema}]
    asked = SAID | {"max_tokens": 60, "tools": tools, "tool_choice": {"type": "tool", "name": "order"}}
    (block,) = served.post(MESSAGES, asked).json()["content"]
    assert block["input"]["item"] == {"name": "lamp"}


def test_what_tools_have_besides_changes_nothing(served: Running) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    marked = {**WEATHER, **cached, "function": WEATHER["function"] | cached}
    called = SAID | {"max_tokens": 40, "tool_choice": "required", "parallel_tool_calls": False}
    found = [served.post(CHAT, called | {"tools": [tool]}).json() for tool in (WEATHER, marked)]
    assert found[0]["usage"]["prompt_tokens"] == found[1]["usage"]["prompt_tokens"]
    flat = {"type": "function", **WEATHER["function"]}
    more = {"defer_loading": False, "allowed_callers": ["direct"], "output_schema": {"type": "string"}}
    told = [served.post(RESPONSES, PLAIN[RESPONSES] | {"tools": [tool]}).json() for tool in (flat, flat | more)]
    assert told[0]["tools"] == told[1]["tools"]
    assert told[0]["usage"]["input_tokens"] == told[1]["usage"]["input_tokens"]


# -- other requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outputs", [{"regex": "a|b"}, {"grammar": 'start: "a" | "b"'}, None, {"structural_tag": {"structures": [], "triggers": []}}]
)
def test_only_options_are_compared_with_what_is_probable_anyway(served: Running, outputs: Any) -> None:
    if outputs is not None and "structural_tag" in outputs:
        outputs = {"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}}
    for path in (CHAT, COMPLETIONS):
        reply = served.post(path, PLAIN[path] | {"structured_outputs": outputs, "against": ["N/A"]})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "against")
        assert "expected a choice or JSON" in error["message"]
        assert outputs is None or f"structured_outputs/{next(iter(outputs))}" in error["message"]


def test_tokens_of_an_input_are_counted(served: Running) -> None:
    for more in ({}, {"instructions": "Be kind."}, {"tools": [{"type": "function", **WEATHER["function"]}]}):
        told = served.post(f"{RESPONSES}/input_tokens", {"model": "tiny", "input": TEXT} | more).json()
        usage = served.post(RESPONSES, PLAIN[RESPONSES] | more).json()["usage"]
        assert told == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    wrong = served.post(f"{RESPONSES}/input_tokens", {"model": "tiny", "input": []})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input")


def test_models_are_told_in_the_words_of_both_protocols(served: Running) -> None:
    told = httpx.get(f"{served.url}/v1/models").json()
    (card,) = told["data"]
    assert (told["first_id"], told["last_id"], told["has_more"]) == (card["id"], card["id"], False)
    assert (card["type"], card["display_name"]) == ("model", card["id"])
    assert datetime.fromisoformat(card["created_at"]).timestamp() == card["created"]
