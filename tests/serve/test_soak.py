"""Clients at random: texts are those of the engine alone, some clients go away, some requests are wrong, and nothing is left behind.

Ten minutes of it: `SOAK_SECONDS=600 SOAK_CLIENTS=64 pytest tests/serve/test_soak.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import httpx

from benchmarks.machine import resident_mb
from outlines_cont import continuous, generate, models, samplers
from tests.serve.running import Running

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
CLIENTS = int(os.environ.get("SOAK_CLIENTS", "12"))
_PROMPTS = ("Message: Send 2 lamps.\nKind: ", "Due: ", "Ana ")
_PATTERNS = ("[a-z]{1,12}", "[0-9]{4}-[0-9]{2}", "(yes|no), (sir|madam)")


def _expected(model: Any, prompt: str, pattern: str, seed: int) -> str:
    """The text of the engine alone."""
    generator = generate.regex(model, pattern, sampler=samplers.multinomial(top_p=0.9))
    state = continuous(generator)(prompt, rng=seed, max_tokens=20)
    return str(state)[len(prompt) :]


async def _ask(client: httpx.AsyncClient, url: str, expected: dict[Any, str], rng: random.Random) -> str:
    """Ask once, in one of five ways; return what came of it."""
    key = rng.choice(list(expected))
    prompt, pattern, seed = key
    body = {"model": "tiny", "prompt": prompt, "seed": seed, "top_p": 0.9, "max_tokens": 20}
    body |= {"structured_outputs": {"regex": pattern}}
    way = rng.choice(("whole", "whole", "stream", "leave", "wrong"))
    if way == "whole":
        found = await client.post(url, json=body)
        assert found.json()["choices"][0]["text"] == expected[key]
    elif way == "wrong":
        found = await client.post(url, json=body | rng.choice(({"foo": 1}, {"model": "b"}, {"structured_outputs": {"regex": "["}})))
        assert found.status_code in (400, 404)
    else:
        async with client.stream("POST", url, json=body | {"stream": True}) as stream:
            lines = [line async for line in stream.aiter_lines() if way == "stream"]
        assert way == "leave" or lines[-2] == "data: [DONE]"
    return way


def test_clients_at_random() -> None:
    model = models.tiny()
    rng = random.Random(5)
    keys = [(prompt, pattern, seed) for prompt in _PROMPTS for pattern in _PATTERNS for seed in (1, 2)]
    expected = {key: _expected(model, *key) for key in keys}
    ways: dict[str, int] = {}

    async def one(url: str, end: float, own: random.Random) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            while time.monotonic() < end:
                way = await _ask(client, url, expected, own)
                ways[way] = ways.get(way, 0) + 1

    async def many(url: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(one(url, end, random.Random(rng.random())))

    with Running(model) as served:
        url = f"{served.url}/v1/completions"
        asyncio.run(many(url, SECONDS / 2))
        before = resident_mb()
        asyncio.run(many(url, SECONDS / 2))
        served.wait_until(lambda: served.num_running == 0)
        grown = resident_mb() - before
        assert httpx.post(url, json={"model": "tiny", "prompt": "a", "max_tokens": 2}).status_code == 200
    assert set(ways) == {"whole", "stream", "leave", "wrong"}
    assert grown < 100, f"{grown:.0f} MB more in the second half"
    print(ways, f"{grown:.1f} MB")
