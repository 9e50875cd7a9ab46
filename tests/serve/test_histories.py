"""What clients send back: their messages of earlier replies, with all that they add, calls that were cut, and the ids of calls."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from outlines_cont import Chat
from outlines_cont.serve.protocols.messages import Message, conversation
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest
from outlines_cont.serve.protocols.responses import ResponsesRequest
from tests.chat_models import LLAMA3, MISTRAL, QWEN3, chat_model
from tests.examples import first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER, Order, _chunks

pytestmark = [pytest.mark.filterwarnings("ignore::fsm.SchemaWarning"), pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]
PATH = "/v1/chat/completions"
SAID: Any = {"model": "tiny", "temperature": 0, "max_tokens": 60}
CALL: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}


# -- messages of the client --------------------------------------------------------------------------------------------

DUMPS: dict[str, Callable[[Any], Any]] = {
    "the object": lambda message: message,
    "model_dump": lambda message: message.model_dump(),
    "to_dict": lambda message: message.to_dict(),
    "json": lambda message: json.loads(message.model_dump_json(exclude_none=True)),
}


def _parsed(served: Running, more: Any) -> Any:
    return served.client.chat.completions.parse(messages=ASKED, **SAID, **more).choices[0].message


def _streamed(served: Running, more: Any) -> Any:
    with served.client.chat.completions.stream(messages=ASKED, **SAID, **more) as stream:
        return stream.get_final_completion().choices[0].message


STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize("asked", [{"response_format": Order}, CALL | {"tools": [STRICT]}], ids=["format", "call"])
@pytest.mark.parametrize("ask", [_parsed, _streamed])
def test_a_message_of_the_client_goes_back_as_it_is(served: Running, ask: Any, asked: Any, dump: Callable[[Any], Any]) -> None:
    message = ask(served, asked)
    calls = message.tool_calls or []
    plain: Any = {"role": "assistant", "content": message.content}
    if calls:
        told = [{"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}} for c in calls]
        plain["tool_calls"] = told
    last = [{"role": "tool", "tool_call_id": call.id, "content": "Rain."} for call in calls] or [{"role": "user", "content": "Again."}]
    found = [
        served.client.chat.completions.create(messages=[*ASKED, one, *last], **SAID | {"max_tokens": 8}) for one in (dump(message), plain)
    ]
    assert found[0].choices[0].message.content == found[1].choices[0].message.content
    assert found[0].usage.prompt_tokens == found[1].usage.prompt_tokens


def _noise(rng: random.Random) -> Any:
    return rng.choice([None, True, 3, -1.5, "", "a", [], [None, {"a": 1}], {}, {"b": ["\u00e9", 0]}])


KNOWN = {*Message.model_fields, "function_call"}
ADDED = ["parsed", "annotations", "audio", "cache_control", "index", "parsed_arguments", "reasoning_details", "provider", "x", "Content"]
CALLED: Any = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def _message(rng: random.Random) -> dict[str, Any]:
    role = rng.choice(["system", "user", "assistant", "tool", "developer"])
    parts: Any = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]
    found: dict[str, Any] = {"role": role, "content": rng.choice(["Hello", parts])}
    if role == "assistant" and rng.random() < 0.5:
        found |= {"content": None, "tool_calls": [copy.deepcopy(CALLED)]}
    if role == "tool":
        found["tool_call_id"] = "a"
    return found


def _with_noise(given: dict[str, Any], known: set[str], rng: random.Random, is_part: bool = False) -> dict[str, Any]:
    found = {key: value for key, value in given.items() if value is not None}
    names = [name for name in ADDED if name not in known]
    found |= {name: _noise(rng) for name in rng.sample(names, rng.randrange(len(names)))}
    optional = known - {"role", "type"} - given.keys()
    found |= dict.fromkeys(rng.sample(sorted(optional), rng.randrange(len(optional) + 1)) if not is_part else ())
    return found


@pytest.mark.parametrize("seed", first(16, range(40)))
def test_what_is_added_to_messages_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    plain = [_message(rng) for _ in range(rng.randrange(1, 6))]
    noisy = []
    for message in plain:
        one = _with_noise(copy.deepcopy(message), KNOWN, rng)
        if isinstance(one.get("content"), list):
            one["content"] = [_with_noise(part, {"type", "text", "refusal"}, rng, True) for part in one["content"]]
        for index, call in enumerate(one.get("tool_calls") or ()):
            function = _with_noise(call["function"], {"name", "arguments"}, rng, True)
            one["tool_calls"][index] = _with_noise({**call, "function": function}, {"id", "type", "function"}, rng, True)
        noisy.append(one)
    first, second = (conversation([Message.model_validate(one) for one in messages]) for messages in (plain, noisy))
    assert first == second


BODIES: list[tuple[Any, dict[str, Any]]] = [
    (ChatRequest, {"model": "a", "messages": ASKED}),
    (ChatRequest, {"model": "a", "messages": ASKED, "tools": [WEATHER], "response_format": {"type": "json_object"}}),
    (CompletionRequest, {"model": "a", "prompt": "b"}),
    (ResponsesRequest, {"model": "a", "input": "b"}),
]


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_field_that_is_null_is_absent(kind: Any, body: dict[str, Any]) -> None:
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    names = [field.alias or name for name, field in kind.model_fields.items() if name not in required | body.keys()]
    assert len(names) > 25
    plain = kind.model_validate(body)
    assert kind.model_validate(body | dict.fromkeys(names)) == plain
    rng = random.Random(1)
    for _ in range(30):
        assert kind.model_validate(body | dict.fromkeys(rng.sample(names, rng.randrange(len(names))))) == plain


def test_requests_whose_optional_fields_are_all_null_are_answered(served: Running) -> None:
    for path, kind, body in ((PATH, *BODIES[0]), ("/v1/completions", *BODIES[2]), ("/v1/responses", *BODIES[3])):
        most = {"max_output_tokens" if path.endswith("responses") else "max_tokens": 4}
        body = body | {"model": "tiny", "temperature": 0} | most
        nulls = {field.alias or name: None for name, field in kind.model_fields.items() if name not in body}
        found = [served.post(path, one).json() for one in (body, body | nulls)]
        told = [one["output"][0]["content"] if "output" in one else one["choices"] for one in found]
        assert told[0] == told[1]


# -- ids ---------------------------------------------------------------------------------------------------------------


def _ids(reply: Any) -> list[str]:
    return [call["id"] for choice in reply["choices"] for call in choice["message"]["tool_calls"]]


def test_no_two_calls_have_one_id(served: Running) -> None:
    body = SAID | CALL | {"messages": ASKED, "seed": 3}
    found = [one for _ in range(3) for one in _ids(served.post(PATH, body | {"n": 3, "temperature": 1}).json())]
    history = [*ASKED]
    for _ in range(3):
        message = served.post(PATH, body | {"messages": history[-4:]}).json()["choices"][0]["message"]
        call = message["tool_calls"][0]
        history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}, *ASKED]
        found.append(call["id"])
    assert len(found) == len({*found}) == 12
    assert all(len(one) == 9 and one.isalnum() for one in found)


def test_ids_of_a_chat_are_those_of_its_seed() -> None:
    model = chat_model("Qwen3")

    def ids(chat: Chat) -> list[str]:
        return [call.id for call in chat.assistant(tools=[WEATHER], tool_choice="weather", max_tokens=60).tool_calls]

    chat = Chat(model, rng=1).user("Rain?")
    first = ids(chat)
    assert first == ids(chat) != ids(Chat(model, rng=2).user("Rain?"))
    forks = [one for fork in chat.fork(3) for one in ids(fork)]
    assert len({*first, *forks}) == 4
    called = chat.assistant(tools=[WEATHER], tool_choice="weather", max_tokens=60).tool("Rain.")
    later = ids(called.user("And now?"))
    trimmed = ids(called.user("And now?")[1:])
    assert later != first != trimmed


# -- arguments of earlier calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [QWEN3, LLAMA3, MISTRAL, None], ids=["Qwen3", "Llama 3", "Mistral", "none"])
@pytest.mark.parametrize(
    ("arguments", "shown"), [("", "{}"), (None, "{}"), ("null", "{}"), ('{"city": "Oslo"}', None), ("{", "{"), ("[1", "[1")]
)
def test_arguments_of_a_history_may_be_empty_or_cut(template: str | None, arguments: Any, shown: str | None) -> None:
    kind = {QWEN3: "Qwen3", LLAMA3: "Llama 3", MISTRAL: "Mistral", None: "plain"}[template]
    call = {"id": "a" * 9, "type": "function", "function": {"name": "weather", "arguments": arguments}}
    chat = Chat(chat_model(kind), tools=[WEATHER]).user("Rain?").message({"role": "assistant", "content": "", "tool_calls": [call]})
    text = str(chat.message({"role": "tool", "tool_call_id": "a" * 9, "content": "7"}).state)
    assert (shown or '{"city": "Oslo"}') in text
    assert '"{\\"city' not in text  # an object, not the text of one
    if shown not in (None, "{}"):
        (called,) = chat.tool_calls
        assert (called.arguments, called.unread) == ({}, shown)


@pytest.mark.parametrize("arguments", ["", "{", '{"city": "Par', None, {"city": "Oslo"}, "null"])
def test_a_call_that_was_cut_goes_back(served: Running, arguments: Any) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    told = [*ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "7"}]
    assert "choices" in served.post(PATH, SAID | {"messages": told, "max_tokens": 3, "tools": [WEATHER]}).json()
    item = {"type": "function_call", "id": "fc_1", "status": "incomplete", "call_id": "a", "name": "weather", "arguments": arguments}
    items = [{"role": "user", "content": "Rain?"}, item, {"type": "function_call_output", "call_id": "a", "output": "7"}]
    assert served.post("/v1/responses", {"model": "tiny", "input": items, "max_output_tokens": 3}).json()["output"]


@pytest.mark.parametrize("most", [6, 12, 16])
@pytest.mark.parametrize("tool", ["weather", "note"])
def test_a_call_that_is_cut_is_the_same_everywhere(served: Running, most: int, tool: str) -> None:
    note: Any = {
        "type": "custom",
        "custom": {"name": "note", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]{50}"}}},
    }
    kind = "function" if tool == "weather" else "custom"
    asked = SAID | {"messages": ASKED, "tools": [WEATHER, note], "tool_choice": {"type": kind, kind: {"name": tool}}, "max_tokens": most}
    whole = served.post(PATH, asked).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    calls: dict[int, str] = {}
    name = "arguments" if kind == "function" else "input"
    for chunk in _chunks(served, asked):
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            calls[call["index"]] = calls.get(call["index"], "") + call[kind][name]
    assert [call[kind][name] for call in whole["message"].get("tool_calls") or ()] == [*calls.values()]
    flat: Any = [
        {"type": "function", **WEATHER["function"]},
        {"type": "custom", "name": "note", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{50}"}},
    ]
    body = {"model": "tiny", "input": ASKED[0]["content"], "temperature": 0, "max_output_tokens": most, "tools": flat}
    reply = served.post("/v1/responses", body | {"tool_choice": {"type": kind, "name": tool}}).json()
    assert [item[name] for item in reply["output"] if item["type"].endswith("call")] == [*calls.values()]
    assert [item["status"] for item in reply["output"]] == ["incomplete"] * len(reply["output"])


def test_thoughts_go_back_by_any_of_their_names(thinking: Running) -> None:
    counts = []
    for name in ("reasoning_content", "reasoning", "reasoning_details"):
        said = {"role": "assistant", "content": "No.", name: "It is dry and it will be."}
        told = [{"role": "user", "content": "Rain?"}, said, {"role": "tool", "content": "7"}]
        counts.append(served_tokens(thinking, told))
    assert counts[0] == counts[1]


def served_tokens(served: Running, messages: Any) -> int:
    """How many tokens a prompt of messages has."""
    return int(served.post(PATH, {"model": "tiny", "messages": messages, "max_tokens": 1}).json()["usage"]["prompt_tokens"])
