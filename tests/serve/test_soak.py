"""Clients at random: texts are those of the engine alone, some clients go away, some requests are wrong, and nothing is left behind.

Ten minutes of it, with the memory curve: `SOAK_SECONDS=600 SOAK_CLIENTS=64 pytest -s --timeout 1800 tests/serve/test_soak.py`.

Memory is flat over requests that are all different, 5,000 with `SOAK_REQUESTS=5000`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.machine import resident_mb
from outlines_cont import Chat, continuous, generate, models, samplers
from outlines_cont.batches.batch_run import BatchRun
from outlines_cont.batches.doors import server_door
from outlines_cont.policies.constraint import KeptConstraints
from tests.serve.running import Running

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
REQUESTS = int(os.environ.get("SOAK_REQUESTS", "80"))
CLIENTS = int(os.environ.get("SOAK_CLIENTS", "12"))
PARTS = 4 if SECONDS < 60 else 10
_PROMPTS = ("Message: Send 2 lamps.\nKind: ", "Due: ", "Ana ")
_PATTERNS = ("[a-z]{1,12}", "[0-9]{4}-[0-9]{2}", "(yes|no), (sir|madam)")


def _expected(model: Any, prompt: str, pattern: str, seed: int) -> str:
    """The text of the engine alone."""
    generator = generate.regex(model, pattern, sampler=samplers.multinomial(top_p=0.9))
    state = continuous(generator)(prompt, rng=seed, max_tokens=20)
    return str(state)[len(prompt) :]


def _expected_message(model: Any, prompt: str, pattern: str, seed: int) -> str:
    """The reply of the engine alone."""
    generator = generate.regex(model, pattern, sampler=samplers.multinomial(top_p=0.9))
    return str(Chat(model, rng=seed).user(prompt).assistant(generator, max_tokens=20).messages[-1]["content"])


_WAYS = ("whole", "stream", "leave", "wrong", "message", "response", "batch")


async def _ask_message(client: httpx.AsyncClient, url: str, body: Any, wanted: str, rng: random.Random) -> None:
    """Ask by the protocol of Anthropic, whole or as a stream, of which some clients go away."""
    asked = {key: value for key, value in body.items() if key != "prompt"}
    asked["messages"] = [{"role": "user", "content": body["prompt"]}]
    url = url.replace("completions", "messages")
    if rng.random() < 0.5:
        found = (await client.post(url, json=asked)).json()
        assert found["content"][0]["text"] == wanted
    else:
        async with client.stream("POST", url, json=asked | {"stream": True}) as stream:
            lines = [line async for line in stream.aiter_lines()] if rng.random() < 0.5 else []
        assert not lines or lines[-3] == "event: message_stop"


async def _ask_response(client: httpx.AsyncClient, url: str, body: Any, wanted: str, rng: random.Random) -> None:
    """Ask by Responses, whole or as a stream, of which some clients go away."""
    asked = {key: value for key, value in body.items() if key not in ("prompt", "max_tokens")}
    asked |= {"input": body["prompt"], "max_output_tokens": body["max_tokens"]}
    url = url.replace("completions", "responses")
    if rng.random() < 0.5:
        found = (await client.post(url, json=asked)).json()
        assert found["output"][0]["content"][0]["text"] == wanted
    else:
        async with client.stream("POST", url, json=asked | {"stream": True}) as stream:
            lines = [line async for line in stream.aiter_lines()] if rng.random() < 0.5 else []
        assert not lines or "event: response.completed" in lines


def _ask_batch(folder: Path, url: str, body: Any, text: str, wanted: str) -> None:
    """Ask by a batch file, which has a request of each protocol, and one that is wrong."""
    asked = {key: value for key, value in body.items() if key != "prompt"}
    message = {"messages": [{"role": "user", "content": body["prompt"]}]}
    response = {key: value for key, value in asked.items() if key != "max_tokens"} | {"input": body["prompt"], "max_output_tokens": 20}
    lines = {"/v1/completions": body, "/v1/chat/completions": asked | message, "/v1/messages": asked | message, "/v1/responses": response}
    source, output, errors = (folder / f"{uuid4().hex}.jsonl" for _ in range(3))
    requests = [{"custom_id": path, "method": "POST", "url": path, "body": line} for path, line in lines.items()]
    requests.append({"custom_id": "wrong", "method": "POST", "url": "/v1/completions", "body": body | {"foo": 1}})
    source.write_text("".join(f"{json.dumps(line)}\n" for line in requests))
    BatchRun(source, output, errors).run(server_door(url.partition("/v1")[0], None), lambda tally: None)
    found = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, output.read_text().splitlines())}
    assert found["/v1/completions"]["choices"][0]["text"] == text
    assert found["/v1/chat/completions"]["choices"][0]["message"]["content"] == wanted
    assert found["/v1/messages"]["content"][0]["text"] == wanted
    assert found["/v1/responses"]["output"][0]["content"][0]["text"] == wanted
    assert [json.loads(line)["custom_id"] for line in errors.read_text().splitlines()] == ["wrong"]


async def _ask(client: httpx.AsyncClient, url: str, expected: dict[Any, str], rng: random.Random, way: str, folder: Path) -> None:
    """Ask once, in one way."""
    key = rng.choice([key for key in expected if len(key) == 3])
    prompt, pattern, seed = key
    body = {"model": "tiny", "prompt": prompt, "seed": seed, "top_p": 0.9, "max_tokens": 20}
    body |= {"structured_outputs": {"regex": pattern}}
    if way == "message":
        await _ask_message(client, url, body, expected[(*key, "chat")], rng)
    elif way == "response":
        await _ask_response(client, url, body, expected[(*key, "chat")], rng)
    elif way == "batch":
        await asyncio.to_thread(_ask_batch, folder, url, body, expected[key], expected[(*key, "chat")])
    elif way == "whole":
        found = await client.post(url, json=body)
        assert found.json()["choices"][0]["text"] == expected[key]
    elif way == "wrong":
        found = await client.post(url, json=body | rng.choice(({"foo": 1}, {"model": "b"}, {"structured_outputs": {"regex": "["}})))
        assert found.status_code in (400, 404)
    else:
        async with client.stream("POST", url, json=body | {"stream": True}) as stream:
            lines = [line async for line in stream.aiter_lines() if way == "stream"]
        assert way == "leave" or lines[-2] == "data: [DONE]"


def settled_mb() -> float:
    """The memory in use: without garbage, and without what the C library keeps for later allocations."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return resident_mb()


_ENDPOINTS = ("completions", "chat/completions", "messages", "responses", "messages/count_tokens")


def _different(number: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request that is like no other: its prompt, and its schema, tool, pattern or choices."""
    path, kind = f"/v1/{_ENDPOINTS[number % len(_ENDPOINTS)]}", number // len(_ENDPOINTS) % 4
    schema = {"type": "object", "properties": {f"p{number}": {"enum": [number, "a"]}}, "required": [f"p{number}"]}
    constraints: tuple[dict[str, Any], ...] = (
        {"structured_outputs": {"regex": f"[a-z]{{1,5}}{number}"}},
        {"structured_outputs": {"choice": [f"v{number}x{i}" for i in range(200)]}},
        {"structured_outputs": {"json": schema}},
        {"ban": [f"e{number}"]},
    )
    text = f"{number} Message: Send {number} lamps.\n" * 6
    body: dict[str, Any] = {"model": "tiny", **constraints[kind]}
    if path.endswith("/completions") and "chat" not in path:
        return path, body | {"prompt": text, "max_tokens": 8}
    most = {"max_output_tokens" if "responses" in path else "max_tokens": 8}
    if kind == 2:  # a tool in place of the schema
        del body["structured_outputs"]
        body["tools"] = [_tool(path, f"t{number}", schema)]
    return path, body | most | {"input" if "responses" in path else "messages": [{"role": "user", "content": text}]}


def _tool(path: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A tool as the protocol of a path has it."""
    if "messages" in path:
        return {"name": name, "input_schema": schema}
    function = {"name": name, "parameters": schema}
    return {"type": "function", **({"function": function} if "chat" in path else function)}


def test_memory_is_flat_over_requests_that_are_all_different() -> None:
    model, curve = models.tiny(), list[float]()
    with Running(model, cache_bytes=8 << 20) as served, httpx.Client(base_url=served.url, timeout=120) as client:
        for number in range(REQUESTS):
            path, body = _different(number)
            reply = client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            if (number + 1) % (REQUESTS // 4) == 0:
                curve.append(round(settled_mb(), 1))
    print("MB after each quarter:", *curve)
    assert model.prefix_cache.nbytes <= 4 << 20
    assert KeptConstraints.of(model).nbytes <= 1 << 20
    assert curve[-1] - curve[0] < 60, curve


def test_clients_at_random(tmp_path: Path) -> None:
    model = models.tiny()
    rng = random.Random(5)
    keys = [(prompt, pattern, seed) for prompt in _PROMPTS for pattern in _PATTERNS for seed in (1, 2)]
    expected: dict[Any, str] = {key: _expected(model, *key) for key in keys}
    expected |= {(*key, "chat"): _expected_message(model, *key) for key in keys}
    ways: dict[str, int] = {}

    async def one(client: httpx.AsyncClient, url: str, end: float, own: random.Random, way: str) -> None:
        while time.monotonic() < end:
            await _ask(client, url, expected, own, way, tmp_path)
            ways[way] = ways.get(way, 0) + 1
            way = own.choice(("whole", *_WAYS))

    async def many(url: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # the server closes idle ones
        async with httpx.AsyncClient(timeout=120, limits=unbounded) as client, asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(one(client, url, end, random.Random(rng.random()), _WAYS[number % len(_WAYS)]))

    curve: list[tuple[int, float, int]] = []
    with Running(model) as served:
        url = f"{served.url}/v1/completions"
        for part in range(1, PARTS + 1):
            asyncio.run(many(url, SECONDS / PARTS))
            served.wait_until(lambda: served.num_running == 0)
            curve.append((round(part * SECONDS / PARTS), round(settled_mb(), 1), len(gc.get_objects())))
        assert httpx.post(url, json={"model": "tiny", "prompt": "a", "max_tokens": 2}).status_code == 200
    print(ways, "seconds, MB, objects:", *curve, sep="\n")
    assert set(ways) == {*_WAYS}
    half = curve[PARTS // 2 - 1]
    assert curve[-1][1] - half[1] < (20 if SECONDS >= 600 else 60), curve  # it is warm after some four minutes
    assert curve[-1][2] - half[2] < 4_000, curve
