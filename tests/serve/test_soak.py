"""Clients at random: texts are those of the engine alone, some clients go away, some requests are wrong, and nothing is left behind.

Ten minutes of it, with the memory curve: `SOAK_SECONDS=600 SOAK_CLIENTS=64 pytest -s --timeout 1800 tests/serve/test_soak.py`.

Memory is flat over requests that are all different, 5,000 with `SOAK_REQUESTS=5000`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import time
from typing import Any

import httpx

from benchmarks.machine import resident_mb
from outlines_cont import Chat, continuous, generate, models, samplers
from outlines_cont.policies.constraint import KeptConstraints
from tests.serve.running import Running

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
REQUESTS = int(os.environ.get("SOAK_REQUESTS", "160"))
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


_WAYS = ("whole", "stream", "leave", "wrong", "message")


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


async def _ask(client: httpx.AsyncClient, url: str, expected: dict[Any, str], rng: random.Random, way: str) -> None:
    """Ask once, in one way."""
    key = rng.choice([key for key in expected if len(key) == 3])
    prompt, pattern, seed = key
    body = {"model": "tiny", "prompt": prompt, "seed": seed, "top_p": 0.9, "max_tokens": 20}
    body |= {"structured_outputs": {"regex": pattern}}
    if way == "message":
        await _ask_message(client, url, body, expected[(*key, "chat")], rng)
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


def _different(number: int) -> dict[str, Any]:
    """A request that is like no other: its prompt, and its schema, pattern or choices."""
    constraints: tuple[dict[str, Any], ...] = (
        {"structured_outputs": {"regex": f"[a-z]{{1,5}}{number}"}},
        {"structured_outputs": {"choice": [f"v{number}x{i}" for i in range(200)]}},
        {
            "structured_outputs": {
                "json": {"type": "object", "properties": {f"p{number}": {"enum": [number, "a"]}}, "required": [f"p{number}"]}
            }
        },
        {"ban": [f"e{number}"]},
    )
    return {"model": "tiny", "prompt": f"{number} Message: Send {number} lamps.\n" * 6, "max_tokens": 8, **constraints[number % 4]}


def test_memory_is_flat_over_requests_that_are_all_different() -> None:
    model, curve = models.tiny(), list[float]()
    with Running(model, cache_bytes=8 << 20) as served, httpx.Client(base_url=served.url, timeout=120) as client:
        for number in range(REQUESTS):
            assert client.post("/v1/completions", json=_different(number)).status_code == 200
            if (number + 1) % (REQUESTS // 4) == 0:
                curve.append(round(settled_mb(), 1))
    print("MB after each quarter:", *curve)
    assert model.prefix_cache.nbytes <= 4 << 20
    assert KeptConstraints.of(model).nbytes <= 1 << 20
    assert curve[-1] - curve[0] < 60, curve


def test_clients_at_random() -> None:
    model = models.tiny()
    rng = random.Random(5)
    keys = [(prompt, pattern, seed) for prompt in _PROMPTS for pattern in _PATTERNS for seed in (1, 2)]
    expected: dict[Any, str] = {key: _expected(model, *key) for key in keys}
    expected |= {(*key, "chat"): _expected_message(model, *key) for key in keys}
    ways: dict[str, int] = {}

    async def one(client: httpx.AsyncClient, url: str, end: float, own: random.Random, way: str) -> None:
        while time.monotonic() < end:
            await _ask(client, url, expected, own, way)
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
