"""Requests with images to the server: `data:` URLs and named hosts, by three protocols, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from outlines_cont import Chat, generate, models
from tests.image_models import parts, picture
from tests.images.test_chat import template
from tests.serve.running import Running
from tests.serve.test_image_urls import peer


def url(seed: int) -> str:
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def asked(*seeds: int) -> list[Any]:
    images = [{"type": "image_url", "image_url": {"url": url(seed), "detail": "low"}} for seed in seeds]
    return [{"role": "user", "content": [{"type": "text", "text": "What?"}, *images]}]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    model = models.from_transformers(*parts("llava"))
    before, model.tokenizer.hugging_face.chat_template = model.tokenizer.hugging_face.chat_template, template("<image>")
    try:
        with Running(model) as running:
            yield running
    finally:
        model.tokenizer.hugging_face.chat_template = before


def test_a_request_with_images_has_the_reply_of_a_chat(served: Running) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 4, "logprobs": True}
    for seeds in ((1,), (2,), (1, 2)):
        reply = served.client.chat.completions.create(messages=asked(*seeds), **options)
        chat = Chat(served.model).user(["What?", *map(picture, seeds)]).assistant(generate.text(served.model), max_tokens=4)
        assert reply.choices[0].message.content == chat.messages[-1]["content"]
        assert reply.usage.prompt_tokens == chat[:1].state.shape[2]
        found = [one.logprob for one in reply.choices[0].logprobs.content]
        wanted = chat.state.logprobs[0, 0, -len(found) :].tolist()
        assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.com/a.png", "this server fetches nothing"),
        ("/etc/hostname", "`data:` URL"),
        ("data:image/png;base64,AAAA", "the file of an image"),
    ],
)
def test_urls_and_paths_are_refused(served: Running, source: str, message: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": source}}]}]
    with pytest.raises(openai.BadRequestError, match=message):
        served.client.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]


def test_responses_and_messages_have_images(served: Running) -> None:
    chat = Chat(served.model).user(["What?", picture(1)]).assistant(generate.text(served.model), max_tokens=4)
    wanted, num_prompt = chat.messages[-1]["content"], chat[:1].state.shape[2]
    parts: list[Any] = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url(1), "detail": "auto"}]
    body = {"model": "tiny", "temperature": 0, "max_output_tokens": 4, "input": [{"role": "user", "content": parts}]}
    found = httpx.post(f"{served.url}/v1/responses", json=body, timeout=60).json()
    assert found["output"][0]["content"][0]["text"] == wanted
    assert found["usage"]["input_tokens"] == num_prompt
    source = {"type": "base64", "media_type": "image/png", "data": url(1).partition(",")[2]}
    blocks: list[Any] = [{"type": "text", "text": "What?"}, {"type": "image", "source": source}]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": blocks}]}
    told = httpx.post(f"{served.url}/v1/messages", json={**asked, "max_tokens": 4, "temperature": 0}, timeout=60).json()
    assert told["content"][0]["text"] == wanted
    assert told["usage"]["input_tokens"] + told["usage"].get("cache_read_input_tokens", 0) == num_prompt
    counted = httpx.post(f"{served.url}/v1/messages/count_tokens", json=asked, timeout=60).json()
    assert counted == {"input_tokens": num_prompt}
    both = [*asked["messages"], {"role": "user", "content": "And now?"}]  # one message of two parts
    assert httpx.post(f"{served.url}/v1/messages", json={**asked, "messages": both, "max_tokens": 1}, timeout=60).status_code == 200


def test_results_of_tools_have_images_by_all_protocols(served: Running) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "scan", "arguments": "{}"}}
    asked = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "a", "name": "scan", "content": ["See", picture(1)]}
    chat = Chat(served.model).add([*asked, result]).assistant(generate.text(served.model), max_tokens=4)
    wanted, num_prompt = chat.messages[-1]["content"], chat[:3].state.shape[2]
    shown = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": url(1)}}]
    source = {"type": "base64", "media_type": "image/png", "data": url(1).partition(",")[2]}
    blocks = [{"type": "text", "text": "See"}, {"type": "image", "source": source}]
    items = [
        {"role": "user", "content": "What?"},
        {"type": "function_call", "call_id": "a", "name": "scan", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": url(1)}],
        },
    ]
    said = [
        asked[0],
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "scan", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": blocks}]},
    ]
    body: dict[str, Any] = {"model": "tiny", "temperature": 0}
    with httpx.Client(base_url=served.url, timeout=60) as client:
        plain = client.post("/v1/chat/completions", json={**body, "messages": [*asked, {**result, "content": shown}], "max_tokens": 4})
        assert plain.json()["choices"][0]["message"]["content"] == wanted
        assert plain.json()["usage"]["prompt_tokens"] == num_prompt
        other = client.post("/v1/responses", json={**body, "input": items, "max_output_tokens": 4}).json()
        assert other["output"][0]["content"][0]["text"] == wanted
        assert other["usage"]["input_tokens"] == num_prompt
        told = client.post("/v1/messages", json={**body, "messages": said, "max_tokens": 4}).json()
        assert told["content"][0]["text"] == wanted
        for role in ("system", "developer", "assistant"):
            reply = client.post("/v1/chat/completions", json={**body, "messages": [{"role": role, "content": shown}, asked[0]]})
            assert reply.status_code == 400
            assert f"this one is of the {role}" in reply.json()["error"]["message"]
        for kind, match in (("image", "'image_url'"), ("input_image", "'image_url'"), ("video_url", "of a video"), ("file", "of a file")):
            reply = client.post("/v1/chat/completions", json={**body, "messages": [{"role": "user", "content": [{"type": kind}]}]})
            assert match in reply.json()["error"]["message"]


def bomb() -> str:
    """A PNG of some hundred bytes that says it has 12,000 x 12,000 pixels."""
    data = b"\x89PNG\r\n\x1a\n"
    for kind, part in ((b"IHDR", struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(9999)))):
        data += struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


HOSTILE: list[Any] = [
    *(
        "",
        "data:",
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64,\u00e9",
        "data:;base64,AAAA",
        bomb(),
        "data:image/svg+xml,<svg/>",
    ),
    *(
        "file:///etc/hostname",
        "http://127.0.0.1/a",
        "https://[::1",
        "http://a b/",
        "javascript:1",
        "x" * 20_000,
        "\ud800",
        "data:\x00,\x00",
    ),
    *(None, 3, [], {}, {"url": 3}, {"url": None}, {"url": "data:,x", "detail": {"a": []}}, [[]], True),
]


def test_hostile_images_are_errors_of_the_request(served: Running) -> None:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        for value in HOSTILE:
            shown = value.get("url") if isinstance(value, dict) else value
            kinds: list[tuple[str, Any]] = [
                ("/v1/chat/completions", {"type": "image_url", "image_url": value}),
                ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": value}}),
                ("/v1/responses", {"type": "input_image", "image_url": value}),
                ("/v1/responses", {"type": "input_image", "file_id": "f", "image_url": shown}),
                ("/v1/messages", {"type": "image", "source": value}),
                ("/v1/messages", {"type": "image", "source": {"type": "url", "url": value}}),
                ("/v1/messages", {"type": "image", "source": {"type": "base64", "media_type": value, "data": "AAAA"}}),
                ("/v1/messages", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": value}}),
                ("/v1/messages", {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": value}]}),
            ]
            for path, part in kinds:
                name = "input" if path.endswith("responses") else "messages"
                body = {"model": "tiny", name: [{"role": "user", "content": [part]}]} | ({"max_tokens": 1} if name == "messages" else {})
                text = json.dumps(body)
                reply = client.post(path, content=text, headers={"Content-Type": "application/json"})
                assert 400 <= reply.status_code < 500, (path, part, reply.text[:300])
                assert len(reply.text) < 3000
    with pytest.raises(openai.BadRequestError, match="pixels, got 12000 x 12000"):
        part = {"type": "image_url", "image_url": {"url": bomb()}}
        served.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [part]}])  # type: ignore[list-item]


def test_images_are_fetched_from_named_hosts_within_limits() -> None:
    model = models.from_transformers(*parts("llava"))
    before, model.tokenizer.hugging_face.chat_template = model.tokenizer.hugging_face.chat_template, template("<image>")
    file = base64.b64decode(url(1).partition(",")[2])
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(file)}\r\n\r\n".encode()
    try:
        with peer(head + file) as host:
            limits: dict[str, Any] = {"max_images": 2, "max_image_bytes": len(file), "max_image_pixels": 20 * 28}
            there = f"http://127.0.0.1:{host.port}/scan.png"
            with Running(model, image_hosts=[f"127.0.0.1:{host.port}"], **limits) as running:
                create: Any = partial(running.client.chat.completions.create, model="tiny", temperature=0, max_tokens=3)
                replies = [
                    create(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": one}}]}])
                    for one in (there, url(1))
                ]
                assert replies[0].choices[0].message.content == replies[1].choices[0].message.content
                three = [{"type": "image_url", "image_url": {"url": there}}] * 3
                with pytest.raises(openai.BadRequestError, match="at most 2 images"):
                    create(messages=[{"role": "user", "content": three}])
                elsewhere = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
                with pytest.raises(openai.BadRequestError, match="--allow-image-urls"):
                    create(messages=[{"role": "user", "content": [elsewhere]}])
            with Running(model, image_hosts=[f"127.0.0.1:{host.port}"], max_image_pixels=20 * 28 - 1) as running:
                for one, match in ((there, "at most 559 pixels"), (url(1), "at most 559 pixels")):
                    with pytest.raises(openai.BadRequestError, match=match):
                        part = {"type": "image_url", "image_url": {"url": one}}
                        running.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [part]}])  # type: ignore[list-item]
    finally:
        model.tokenizer.hugging_face.chat_template = before


def test_images_are_counted_and_need_a_model_that_takes_them(served: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 16 images"):
        served.client.chat.completions.create(model="tiny", messages=asked(*[1] * 17))
    with Running(models.tiny()) as text, pytest.raises(openai.BadRequestError, match="takes no images"):
        text.client.chat.completions.create(model="tiny", messages=asked(1))
