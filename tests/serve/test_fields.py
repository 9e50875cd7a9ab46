"""Fields of a request by HTTP: tools beside a format, how many calls, tools without parameters, where a text ends, doors, errors."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

import fsm
from outlines_cont import Chat, continuous, generate, models
from outlines_cont.chat import answering
from outlines_cont.serve.protocols.api_error import in_words_of_http
from tests.chat_models import PLAIN, chat_model
from tests.examples import examples, first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, OTHER, WEATHER, Order, _chunks

pytestmark = pytest.mark.filterwarnings("ignore::fsm.SchemaWarning")
PATH = "/v1/chat/completions"
SAID: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 60}
DUE: Any = {"model": "tiny", "prompt": "Due: ", "temperature": 0, "max_tokens": 12}


class Mood(BaseModel):
    mood: str


def _format(form: type[BaseModel]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": form.model_json_schema(), "strict": True}}


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, "/v1/responses"])
def test_a_reply_is_calls_or_a_text_of_the_format(served: Running, path: str) -> None:
    kinds = set()
    schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"], "additionalProperties": False}
    for seed in range(examples(8)):
        asked: Any = {"model": "tiny", "seed": seed, "temperature": 2}
        if path == PATH:
            asked |= {"messages": ASKED, "tools": [WEATHER], "max_tokens": 80}
            asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            choice = served.post(path, asked).json()["choices"][0]
            text, calls = choice["message"]["content"], [call["function"] for call in choice["message"].get("tool_calls", ())]
            assert calls or choice["finish_reason"] == "stop"
            deltas = [chunk["choices"][0]["delta"] for chunk in _chunks(served, asked)]
            assert "".join(delta.get("content") or "" for delta in deltas) == (text or "")
            told = "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))
            assert told == "".join(call["arguments"] for call in calls)
        else:
            asked |= {"input": ASKED[0]["content"], "tools": [{"type": "function", **WEATHER["function"]}], "max_output_tokens": 80}
            asked["text"] = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
            output = served.post(path, asked).json()["output"]
            calls = [item for item in output if item["type"] == "function_call"]
            text = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
        kinds.add(bool(calls))
        assert bool(calls) != bool(text)
        assert all(json.loads(call["arguments"])["city"] in ("Paris", "Oslo") for call in calls)
        assert not text or json.loads(text)["mood"] in ("good", "bad")
    assert kinds  # which of both is the model's choice


@pytest.mark.parametrize("more", [{"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}])
def test_a_format_says_nothing_where_a_call_is_required(served: Running, more: Any) -> None:
    choice = served.post(PATH, SAID | {"tools": [WEATHER], "response_format": _format(Mood), "parallel_tool_calls": False} | more).json()
    (call,) = choice["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Oslo")
    text = served.post(PATH, SAID | {"tools": [WEATHER], "response_format": _format(Order), "tool_choice": "none"}).json()
    assert Order.model_validate_json(text["choices"][0]["message"]["content"])


@pytest.mark.parametrize("seed", first(2, range(4)))
def test_a_named_tool_is_called_once_and_required_ones_are_bounded(served: Running, seed: int) -> None:
    body = SAID | {"tools": [WEATHER, OTHER], "max_tokens": 400, "temperature": 1, "seed": seed}
    named = {"type": "function", "function": {"name": "weather"}}
    assert len(served.post(PATH, body | {"tool_choice": named}).json()["choices"][0]["message"]["tool_calls"]) == 1
    assert (
        len(served.post(PATH, body | {"tool_choice": named, "parallel_tool_calls": True}).json()["choices"][0]["message"]["tool_calls"])
        == 1
    )
    many = served.post(PATH, body | {"tool_choice": "required", "max_tool_calls": 2}).json()["choices"][0]
    assert 1 <= len(many["message"]["tool_calls"]) <= 2
    assert many["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "parameters",
    [
        ...,
        None,
        {},
        {"type": "object"},
        {"properties": {}},
        {"type": "object", "properties": {}, "required": []},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ],
    ids=str,
)
def test_a_tool_without_parameters_has_no_arguments(served: Running, parameters: Any) -> None:
    function = {"name": "now"} | ({} if parameters is ... else {"parameters": parameters})
    for strict in (None, False, True):
        tool = {"type": "function", "function": function | ({} if strict is None else {"strict": strict})}
        body = SAID | {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 2, "seed": 1}
        (call,) = served.post(PATH, body).json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "now", "arguments": "{}"}
    flat = {"type": "function", **function}
    body = {"model": "tiny", "input": "a", "tools": [flat], "tool_choice": "required", "parallel_tool_calls": False}
    assert served.post("/v1/responses", body).json()["output"][0]["arguments"] == "{}"


def test_a_strict_tool_gets_no_members_that_it_does_not_name(served: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    named = {"type": "function", "function": {"name": "f"}}
    for seed in range(4):
        body = SAID | {"tools": [tool], "tool_choice": named, "temperature": 2, "seed": seed}
        (call,) = served.post(PATH, body).json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        wanted = {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": schema}}
        text = served.post(PATH, SAID | {"response_format": wanted, "temperature": 2, "seed": seed}).json()
        assert json.loads(text["choices"][0]["message"]["content"]) == {"a": 1}


REFUSES = PLAIN.replace(
    "{%- for m in messages -%}",
    "{%- for m in messages -%}{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}",
    1,
)


def test_tools_are_described_to_the_user_where_a_template_knows_no_system() -> None:
    model = chat_model("plain")
    own = model.tokenizer.hugging_face.chat_template
    model.tokenizer.hugging_face.chat_template = REFUSES
    try:
        with Running(model) as served:
            body = SAID | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100}
            assert served.post(PATH, body).json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
            told = [{"role": "system", "content": "Be kind."}, *ASKED]
            assert "rejects: System role not supported" in served.post(PATH, SAID | {"messages": told}).json()["error"]["message"]
    finally:
        model.tokenizer.hugging_face.chat_template = own


# -- what is accepted --------------------------------------------------------------------------------------------------

WITHOUT_EFFECT: dict[str, Any] = {
    "service_tier": "flex",
    "prompt_cache_key": "a",
    "prompt_cache_retention": "24h",
    "safety_identifier": "b",
    "store": True,
    "metadata": {"a": "b"},
    "user": "c",
}
OF_CHATS: dict[str, Any] = {"verbosity": "low", "modalities": ["text"], "max_tool_calls": 3}


def test_some_fields_change_nothing(served: Running) -> None:
    plain = served.client.chat.completions.create(**SAID)
    full = served.client.chat.completions.create(**SAID, **WITHOUT_EFFECT, **{k: v for k, v in OF_CHATS.items() if k != "max_tool_calls"})
    assert full.choices[0].message.content == plain.choices[0].message.content
    text = {key: value for key, value in WITHOUT_EFFECT.items() if key != "store"}
    found = [served.post("/v1/completions", DUE | more).json()["choices"] for more in ({}, text | {"best_of": 1, "suffix": None})]
    assert found[0] == found[1]
    asked = {"model": "tiny", "input": "Due: ", "temperature": 0, "max_output_tokens": 9}
    more = WITHOUT_EFFECT | {"text": {"verbosity": "high"}, "max_tool_calls": 3}
    first, second = (served.post("/v1/responses", asked | one).json() for one in ({}, more))
    assert first["output"][0]["content"] == second["output"][0]["content"]
    assert (second["store"], second["max_tool_calls"]) == (False, 3)


def test_penalties_of_responses_are_those_of_chats(served: Running) -> None:
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 1.0}
    reply = served.post(
        "/v1/responses", {"model": "tiny", "input": ASKED[0]["content"], "temperature": 0, "max_output_tokens": 40} | penalties
    )
    chat = served.post(PATH, SAID | {"max_tokens": 40} | penalties).json()
    assert reply.json()["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert {name: reply.json()[name] for name in penalties} == penalties


# -- where a text ends -------------------------------------------------------------------------------------------------


def test_a_text_has_as_many_tokens_as_are_demanded(served: Running) -> None:
    short = served.post(PATH, SAID).json()
    count = short["usage"]["completion_tokens"]
    assert short["choices"][0]["finish_reason"] == "stop"
    for more, expected in (({"min_tokens": count + 5}, range(count + 5, 61)), ({"ignore_eos": True}, range(60, 61))):
        found = served.post(PATH, SAID | more).json()
        assert found["usage"]["completion_tokens"] in expected
        assert found["choices"][0]["message"]["content"].startswith(short["choices"][0]["message"]["content"])
    forced = served.post(PATH, SAID | {"min_tokens": 40, "structured_outputs": {"choice": ["a", "b"]}}).json()["choices"][0]
    assert (forced["finish_reason"], len(forced["message"]["content"])) == ("stop", 1)  # the constraint wins
    error = served.post(PATH, SAID | {"min_tokens": 61}).json()["error"]
    assert (error["param"], "60" in error["message"]) == ("min_tokens", True)


def test_stop_tokens_and_kept_stop_texts(served: Running) -> None:
    body = {"model": "tiny", "prompt": "Due: ", "temperature": 0, "max_tokens": 30, "return_token_ids": True}
    whole = served.post("/v1/completions", body).json()["choices"][0]
    ids, table = whole["token_ids"], served.model.tokenizer
    chosen = ids[4]
    cut = served.post("/v1/completions", body | {"stop_token_ids": [chosen]}).json()["choices"][0]
    assert (cut["token_ids"], cut["finish_reason"]) == (ids[: ids.index(chosen)], "stop")
    stop = table.text_bytes(ids[4:6]).decode()
    found = [
        served.post("/v1/completions", body | {"stop": stop, "include_stop_str_in_output": kept}).json()["choices"][0]
        for kept in (False, True)
    ]
    assert found[1]["text"] == found[0]["text"] + stop
    assert served.post("/v1/completions", body | {"include_stop_str_in_output": True}).json()["choices"][0]["text"] == whole["text"]
    error = served.post("/v1/completions", body | {"stop_token_ids": [10**9]}).json()["error"]
    assert error["param"] == "stop_token_ids"


def test_offsets_are_those_of_the_tokens_in_the_text(served: Running) -> None:
    body = {"model": "tiny", "prompt": ["Due: ", "Total: "], "temperature": 2, "seed": 4, "max_tokens": 20, "logprobs": 1}
    for index, choice in enumerate(served.post("/v1/completions", body).json()["choices"]):
        logprobs = choice["logprobs"]
        assert len(logprobs["text_offset"]) == len(logprobs["tokens"])
        assert all(
            choice["text"][at:].startswith(token)
            for at, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
            if "\ufffd" not in token
        )
        chunks = [chunk["choices"][0] for chunk in _chunks(served, body, "/v1/completions")]
        own = [chunk["logprobs"]["text_offset"] for chunk in chunks if chunk["index"] == index]
        assert [*itertools.chain.from_iterable(own)] == logprobs["text_offset"]


# -- grammars and names of others --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "accepts"),
    [
        ('root ::= "a" root | "b"', fsm.gbnf('root ::= "a" root | "b"')),
        ("root  ::= x+\n# a comment\nx ::=\n [0-9]\n", fsm.regex("[0-9]+")),
        ('start: "a" start | "b"', fsm.grammar('start: "a" start | "b"')),
        ('start: X\nX: "::=" | "x ::= y"', fsm.choice(["::=", "x ::= y"])),
    ],
)
def test_a_grammar_is_read_in_either_notation(served: Running, grammar: str, accepts: fsm.Expression) -> None:
    for seed in range(3):
        body = SAID | {"structured_outputs": {"grammar": grammar}, "temperature": 2, "seed": seed, "max_tokens": 40}
        choice = served.post(PATH, body).json()["choices"][0]
        assert choice["finish_reason"] == "length" or accepts.accepts(choice["message"]["content"])


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        (PATH, "guided_regex", 'structured_outputs: {"regex": ...}'),
        (PATH, "guided_grammar", 'structured_outputs: {"grammar": ...}'),
        (PATH, "guided_json", 'structured_outputs: {"json": ...}'),
        ("/v1/completions", "guided_choice", 'structured_outputs: {"choice": ...}'),
        (PATH, "grammar", 'structured_outputs: {"grammar": ...}'),
        ("/v1/completions", "ebnf", 'structured_outputs: {"grammar": ...}'),
        (PATH, "format", 'response_format: {"type": "json_schema"'),
        ("/v1/responses", "response_format", ""),
        ("/v1/responses", "format", "`text`"),
        (PATH, "n_predict", "`max_tokens`"),
        ("/v1/responses", "n_predict", "`max_output_tokens`"),
        ("/v1/responses", "functions", "`tools`"),
        (PATH, "repeat_penalty", "`repetition_penalty`"),
        (PATH, "enable_thinking", 'chat_template_kwargs: {"enable_thinking": ...}'),
    ],
)
def test_a_field_of_another_server_is_answered_with_ours(served: Running, path: str, name: str, said: str) -> None:
    body = {"model": "tiny", **{"/v1/responses": {"input": "a"}, "/v1/completions": {"prompt": "a"}, PATH: {"messages": ASKED}}[path]}
    found = served.post(path, body | {name: "a"})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, name)
    assert said in error["message"]


# -- doors -------------------------------------------------------------------------------------------------------------


def test_head_and_options(served: Running) -> None:
    for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/health", "/"):
        found = httpx.head(served.url + path)
        assert (found.status_code, found.content) == (200, b"")
        assert int(found.headers["content-length"]) > 0
        assert httpx.options(served.url + path).headers["allow"] == "GET, HEAD, OPTIONS"
    found = httpx.options(served.url + PATH)
    assert (found.status_code, found.headers["allow"]) == (204, "OPTIONS, POST")
    refused = httpx.get(served.url + PATH)
    assert (refused.status_code, refused.headers["allow"], refused.json()["error"]["code"]) == (405, "POST", "method_not_allowed")
    assert httpx.head(served.url + PATH).status_code == 405
    for method in ("GET", "HEAD", "OPTIONS", "POST"):
        assert httpx.request(method, served.url + "/v1/nothing", json={}).status_code == 404


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
def test_a_key_by_a_scheme_in_any_case(scheme: str) -> None:
    with Running(models.tiny(), key="secret") as served:
        found = [httpx.get(f"{served.url}/v1/models", headers={"Authorization": scheme + key}) for key in ("secret", "other")]
        assert [one.status_code for one in found] == [200, 401]
        assert found[1].headers["www-authenticate"] == "Bearer"
        assert httpx.get(f"{served.url}/v1/models", headers={"Authorization": "Basic secret"}).status_code == 401


def test_pages_of_other_sites_that_are_allowed() -> None:
    with Running(models.tiny(), key="secret", hosts=["127.0.0.1"], cors_origins=["https://app.example"]) as served:
        asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        found = httpx.options(served.url + PATH, headers=asks)
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, "https://app.example")
        reply = served.post(PATH, SAID | {"max_tokens": 2}, Origin="https://app.example")
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "https://app.example")
        other = served.post(PATH, SAID | {"max_tokens": 2}, Origin="https://other.example")
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)
        without_key = httpx.get(f"{served.url}/v1/models", headers={"Origin": "https://app.example"})
        assert (without_key.status_code, "access-control-allow-origin" in without_key.headers) == (401, True)


@pytest.mark.parametrize(("limits", "expected"), [({"prefix_cache_bytes": 5_000_000}, 5_000_000), ({"prefix_cache_bytes": 0}, 0)])
def test_the_prefix_cache_has_a_size_of_its_own(limits: Any, expected: int) -> None:
    with Running(models.tiny(), **limits) as served:
        assert served.model.prefix_cache.max_bytes == expected
        found = [served.post(PATH, SAID | {"max_tokens": 2}).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
        assert bool(found[1]) == bool(expected)


# -- errors ------------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image_url", "image_url": {"url": "a"}}
WRONG: list[tuple[str, Any, str | None, str, str]] = [
    (PATH, {"seed": 2**64}, "seed", "invalid_value", "up to 2 ** 64 - 1"),
    (PATH, {"top_logprobs": 3}, "top_logprobs", "invalid_value", "logprobs"),
    (PATH, {"audio": {"voice": "a"}}, "audio", "invalid_value", "writes no sound"),
    (PATH, {"tool_choice": "required"}, "tool_choice", "invalid_value", "tools"),
    (PATH, {"max_completion_tokens": 10_000}, "max_completion_tokens", "invalid_value", "4096"),
    (PATH, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages/0/content/0/image_url", "invalid_value", "`data:` URL"),
    (
        PATH,
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages/0/content/0/type",
        "invalid_value",
        "of a sound",
    ),
    (
        PATH,
        {"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]},
        "messages/0/function_call/name",
        "missing_required_parameter",
        "got none",
    ),
    (PATH, {"function_call": {"name": "f"}}, "function_call", "invalid_value", "functions"),
    (PATH, {"functions": [{"name": "f"}], "tools": []}, "tools", "invalid_value", "got both"),
    (PATH, {"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice", "invalid_value", "got both"),
    (PATH, {"functions": [{"name": "f", "parameters": {"type": "a"}}]}, "functions/0#/parameters/type", "schema_error", "type"),
    (PATH, {"functions": [{"nam": "f"}]}, "functions/0/name", "missing_required_parameter", "got none"),
    (PATH, {"n": 17}, "n", "invalid_value", "16"),
    (PATH, {"logit_bias": {"a": 1}}, "logit_bias", "invalid_value", "ids"),
    (PATH, {"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value", "999999"),
    (PATH, {"stop": ["", "a"]}, "stop", "invalid_value", "stop"),
    (PATH, {"messages": [{"role": "user", "content": "lamp " * 20_000}]}, "messages", "context_length_exceeded", "characters of a prompt"),
    (PATH, {"messages": [{"role": "user", "content": "lamp " * 3_000}]}, "messages", "context_length_exceeded", "context"),
    (
        PATH,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strange"}}}},
        None,
        "schema_error",
        "strange",
    ),
    (PATH, {"structured_outputs": {"regex": "("}}, "structured_outputs/regex", "regex_syntax_error", "("),
    (PATH, {"structured_outputs": {"grammar": "start: ("}}, "structured_outputs/grammar", "grammar_error", "start"),
    (PATH, {"ban": [""]}, "ban", "invalid_value", "phrases"),
    (PATH, {"guidance": {"negative_prompt": "", "scale": 2}}, "guidance/negative_prompt", "empty_prompt", "negative prompt"),
    (PATH, {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "invalid_value", "x"),
    (PATH, {"tools": [WEATHER, WEATHER]}, "tools", "invalid_value", "different"),
]
_PYTHON = re.compile(r"Model '|/home|/work|/tmp|\b(?:fsm|generate|samplers|policies|models)\.|\w=\w*\(|Thinking|Chat\(|`\w+\(|`\w+=")


@pytest.mark.parametrize(("path", "change", "param", "code", "said"), WRONG, ids=lambda value: str(value)[:50])
def test_errors_speak_of_the_request(served: Running, path: str, change: Any, param: str | None, code: str, said: str) -> None:
    found = served.post(path, SAID | {"max_tokens": 4} | change)
    error = found.json()["error"]
    assert found.status_code == 400
    assert said in error["message"]
    assert param is None or error["param"] == param
    assert error["code"] == code or not code
    assert error["code"]
    assert not _PYTHON.search(error["message"]), error["message"]


@pytest.mark.parametrize(
    ("content", "headers", "code"),
    [
        (b"{", {"Content-Type": "application/json"}, "invalid_value"),
        (b"\xff{}", {"Content-Type": "application/json"}, "invalid_body"),
        (b"{}", {}, "unsupported_content_type"),
        (b"{}", {"Content-Type": "text/plain"}, "unsupported_content_type"),
        (b"[1]", {"Content-Type": "application/json"}, "invalid_value"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(served: Running, content: bytes, headers: Any, code: str) -> None:
    found = httpx.post(served.url + PATH, content=content, headers=headers)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)
    assert "Content-Type" in found.text or code != "unsupported_content_type"


def test_a_message_keeps_what_is_for_who_asks() -> None:
    told = "expected a model that thinks, got <HuggingFaceModel '/home/x/y' on cpu>. Use another. Pass `thinking=Thinking(begin=...)`."
    assert in_words_of_http(told) == "expected a model that thinks, got this model. Use another."


def test_the_client_tells_errors_apart(served: Running) -> None:
    long = [{"role": "user", "content": "lamp " * 20_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.chat.completions.create(**SAID | {"messages": long})
    assert caught.value.code == "context_length_exceeded"


_WORDS = ["good", "very good", "bad"]
_MOOD = {"type": "object", "properties": {"mood": {"enum": _WORDS}}, "required": ["mood"], "additionalProperties": False}


@pytest.mark.filterwarnings("ignore::outlines_cont.errors.CalibrationWarning")
@pytest.mark.parametrize("constraint", ["choice", "json"])
def test_options_are_calibrated_by_texts_without_content(served: Running, constraint: str) -> None:
    model = models.tiny()
    given = {"structured_outputs": {"choice": _WORDS} if constraint == "choice" else {"json": _MOOD}, "against": ["N/A", "..."]}
    make = generate.choice(model, _WORDS) if constraint == "choice" else generate.json(model, _MOOD, exact_fields=True)
    expected = str(continuous(make)(DUE["prompt"], against=["N/A", "..."], max_tokens=12)).removeprefix(DUE["prompt"])
    assert expected == served.post("/v1/completions", DUE | given).json()["choices"][0]["text"]
    begun = [Chat(model).add([{"role": "user", "content": text}]) for text in ("N/A", "...")]
    chat = Chat(model).add(ASKED).assistant(make, against=[answering(one) for one in begun], max_tokens=60)
    assert chat.messages[-1]["content"] == served.post(PATH, SAID | given).json()["choices"][0]["message"]["content"]


def test_what_no_text_calibrates_is_refused(served: Running) -> None:
    for given, param in (({}, "against"), ({"structured_outputs": {"choice": _WORDS}, "top_k": 2}, "against")):
        answer = served.post(PATH, SAID | {"temperature": 1, "against": ["N/A"]} | given)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in (param, "sampler", "top_k")
    assert served.post(PATH, SAID | {"against": []}).status_code == 400
    choice = DUE | {"structured_outputs": {"choice": _WORDS}}
    for given in ({"against": [""]}, {"against": ["a" * 9_000]}, {"against": ["N/A"], "temperature": 1, "top_p": 0.5}):
        answer = served.post("/v1/completions", choice | given)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "against")
