"""Whatever JSON a client sends, the status is not 500, and the server answers the next request as before."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outlines_cont import models
from outlines_cont.serve.app import _BODIES, make_app
from outlines_cont.serve.live import RunRequest
from tests.serve.hostile import spoiled
from tests.serve.running import Running

# The server ignores what is only a warning.
pytestmark = pytest.mark.filterwarnings("ignore::fsm.SchemaWarning")
ROUNDS = 40
CHAT, TEXT, RESPONSES, INSPECT = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/inspect/run"
ANTHROPIC, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODIES: dict[str, Any] = {**_BODIES, INSPECT: RunRequest}
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1]}}, "required": ["a"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": False}},
    {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}}},
]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
MESSAGES: Any = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "3"},
]
TAGS = {"structures": [{"begin": "<a>", "schema": {"enum": [1]}, "end": "</a>"}], "triggers": ["<a"]}
WHOLE: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True, "max_tokens": 2, "seed": 1, "n": 2},
        {"messages": MESSAGES[:2], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"messages": MESSAGES[:2], "stop": ["x"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2, "ban": ["z"], "top_k": 3},
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": "a", "parsed": {"b": 1}, "annotations": []}, MESSAGES[1]],
            "tools": TOOLS[:1],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            "min_tokens": 1,
            "max_tokens": 2,
            "stop_token_ids": [3],
            "ignore_eos": True,
        },
        {"messages": MESSAGES[:2], "chat_template_kwargs": {}, "metadata": {"a": "b"}, "stream_options": None, "reasoning_effort": None},
    ],
    TEXT: [
        {"prompt": "Hi", "structured_outputs": {"json": SCHEMA}, "temperature": 1, "top_p": 0.5, "min_p": 0.1, "max_tokens": 2},
        {"prompt": [5, 6], "structured_outputs": {"structural_tag": TAGS}, "guidance": {"negative_prompt": "No", "scale": 2.0}},
        {"prompt": ["a", "b"], "structured_outputs": {"grammar": 'start: "a" start | "b"'}, "draft": "lookup", "logprobs": 1},
        {"prompt": "Hi", "structured_outputs": {"grammar": 'root ::= "a" root | "b"'}, "service_tier": "a", "best_of": 1},
        {"prompt": "Hi", "structured_outputs": {"choice": ["a", "b"]}, "presence_penalty": 1, "repetition_penalty": 1.5},
    ],
    RESPONSES: [
        {"input": "Hi", "instructions": "Be kind.", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "3"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}, {"type": "custom", "name": "c"}],
            "tool_choice": "auto",
            "max_output_tokens": 2,
        },
    ],
    ANTHROPIC: [
        {
            "system": [{"type": "text", "text": "Be kind."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": "b"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "3"}]}]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "max_tokens": 2,
        },
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "temperature": 1,
            "top_k": 3,
            "max_tokens": 2,
        },
        {"messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}, "metadata": {"user_id": "a"}, "max_tokens": 2},
    ],
    COUNT: [{"messages": [{"role": "user", "content": "Hi"}], "system": "Be kind."}],
    INSPECT: [
        {
            "prompt": "Hi",
            "is_chat": True,
            "steps": [
                {"kind": "regex", "source": "[a-c]{2}", "stops": ["x"], "bans": ["b"]},
                {"kind": "json", "source": json.dumps({"enum": [1]})},
                {"kind": "write", "source": "x"},
            ],
        },
        {"ids": [5, 6], "token": 7, "state": "none", "steps": [{"kind": "choice", "source": "a\nb"}]},
    ],
}


_NAMED: dict[str, dict[str, Any]] = {path: {} if path == INSPECT else {"model": "tiny"} for path in WHOLE}


def _hostile(path: str, rng: random.Random) -> str:
    fields = [field.alias or name for name, field in BODIES[path].model_fields.items()]
    return spoiled({**_NAMED[path], **rng.choice(WHOLE[path])}, fields, rng)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with Running(models.tiny(), max_tokens=3) as running:
        yield running


@pytest.mark.parametrize("path", WHOLE)
def test_whatever_json_a_client_sends_the_status_is_not_500(served: Running, path: str, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(5)
    with caplog.at_level(logging.ERROR):
        for _ in range(ROUNDS):
            text = _hostile(path, rng)
            found = served.send(path, text)
            assert found.status_code < 500, (found.text, text[:2_000])
            assert not caplog.records, (caplog.text, text[:2_000])
    served.wait_until(lambda: served.num_running == 0)
    assert served.send(TEXT, json.dumps({"model": "tiny", "prompt": "Hi", "max_tokens": 2})).status_code == 200


@pytest.mark.parametrize("path", WHOLE)
def test_every_whole_request_is_answered(served: Running, path: str) -> None:
    for body in WHOLE[path]:
        found = served.send(path, json.dumps(body | _NAMED[path]))
        assert (found.status_code, "error" in found.text[:20]) == (200, False), (found.text, body)


_DEEP = '{"items": ' * 5_000 + "{}" + "}" * 5_000
_RAW: list[tuple[str, str, str]] = [
    (CHAT, f'{{"model": "tiny", "messages": [{{"role": "user", "content": "a"}}], "logit_bias": {{"{"9" * 5_000}": 1}}}}', "ids of tokens"),
    (CHAT, '{"model": "tiny", "messages": [{"role": "user", "content": "a\\ud800"}]}', "surrogates"),
    (CHAT, '{"model": "tiny", "\\ud800": 3, "messages": []}', "surrogates"),
    (TEXT, f'{{"model": "tiny", "prompt": "a", "structured_outputs": {{"json": {_DEEP}}}}}', ""),
    (TEXT, f'{{"model": "tiny", "prompt": "a", "structured_outputs": {{"json": {json.dumps(_DEEP)}}}}}', ""),
    (TEXT, f'{{"model": "tiny", "prompt": "a", "seed": {"9" * 5_000}}}', ""),
    (TEXT, "[" * 200_000, ""),
    (TEXT, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), ""),
    (TEXT, "", ""),
    (TEXT, "3", ""),
    (INSPECT, json.dumps({"prompt": "a", "steps": [{"kind": "json", "source": _DEEP}]}), ""),
    (INSPECT, json.dumps({"ids": [10**9, -1], "steps": []}), ""),
]


@pytest.mark.parametrize(("path", "text", "said"), _RAW, ids=[str(number) for number in range(len(_RAW))])
def test_a_text_that_is_no_request_is_refused(served: Running, path: str, text: str, said: str) -> None:
    found = served.send(path, text)
    assert found.status_code in ([400] if path != INSPECT else [200, 400]), found.text
    assert "internal_error" not in found.text
    assert said in found.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/json; charset=latin-1", "multipart/form-data", "", "x" * 3_000])
def test_a_body_of_another_type_is_refused(served: Running, content_type: str) -> None:
    found = httpx.post(f"{served.url}{CHAT}", content=b"\xff{}", headers={"Content-Type": content_type})
    assert found.status_code == 400, found.text


@pytest.mark.parametrize("length", ["9" * 5_000, "9" * 19, "4000001", "00000000000000000000000000000004000001"])
def test_a_length_of_many_digits_is_refused(length: str) -> None:
    sent: list[Any] = []

    async def ask() -> None:
        headers = [(b"content-length", length.encode()), (b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": TEXT,
            "raw_path": TEXT.encode(),
            "query_string": b"",
            "headers": headers,
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await make_app(models.tiny(), "tiny")(
            {**scope, "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80)}, receive, send
        )

    asyncio.run(ask())
    assert sent[0]["status"] == 413


@pytest.mark.parametrize("path", ["/", "/health"])
def test_head_is_answered_as_get_without_a_body(served: Running, path: str) -> None:
    found, got = httpx.head(served.url + path), httpx.get(served.url + path)
    assert (found.status_code, found.content, found.headers["content-length"]) == (200, b"", str(len(got.content)))


_BYTES = [
    b"",
    b"\xff",
    b"\xc3",
    b"a\x80b",
    b"Bearer",
    b"Bearer \xe2\x82\xac",
    b"bearer" * 300,
    b"[::1",
    b"http://[",
    b"null",
    b"//",
    b"a" * 9_000,
]
_HEADERS = ["Authorization", "Origin", "Host", "Content-Type", "Accept", "Access-Control-Request-Method", "X-Forwarded-For", "Cookie"]
_METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"]
_URLS = [
    CHAT,
    TEXT,
    RESPONSES,
    INSPECT,
    "/",
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/%ff",
    "/v1/models/" + "x" * 3_000,
    "//",
    "/%00",
    "/v1",
]


@pytest.mark.parametrize("hosts", [None, ["127.0.0.1"]])
def test_whatever_a_request_has_in_front_of_its_body_the_status_is_not_500(hosts: Any, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(7)
    with (
        Running(models.tiny(), max_tokens=3, key="k", hosts=hosts, cors_origins=["https://app.example"]) as served,
        httpx.Client() as client,
    ):
        with caplog.at_level(logging.ERROR):
            for _ in range(150):
                headers = {
                    b"Authorization": b"Bearer k",
                    **{name.encode(): rng.choice(_BYTES) for name in rng.sample(_HEADERS, rng.randrange(3))},
                }
                method, url = rng.choice(_METHODS), rng.choice(_URLS)
                found = client.request(method, served.url + url, headers=headers, content=rng.choice([b"", b"{}", b"\xff", b"[1"]))
                assert found.status_code < 500, (method, url, headers, found.text)
                assert method != "HEAD" or found.content == b""
        assert not caplog.records, caplog.text
        assert served.post(TEXT, {"model": "tiny", "prompt": "Hi", "max_tokens": 2}).status_code == 200
