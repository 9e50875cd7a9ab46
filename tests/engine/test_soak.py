"""Many short requests at once, some of which are cancelled: nothing is left of them.

The long form takes ten thousand: `pytest -m slow tests/engine/test_soak.py`.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outlines_cont import continuous, engine_of, generate, samplers
from outlines_cont.control import Branch, TokenSet, arun, fixed, fork, gen
from outlines_cont.models import HuggingFaceModel
from tests.fakes import random_model

_AT_ONCE = 48


async def _script() -> None:
    await gen(regex="[a-c]{1,4}")
    if await fork(2):
        await fixed(" of the end")


def _raising(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
    if last_append:
        raise RuntimeError("poison")
    return [Branch(sample_mask=TokenSet.all)]


async def _request(model: HuggingFaceModel, number: int, seen: Counter[str]) -> None:
    """One request, of some kind; what comes of it is counted."""
    draw = random.Random(number)
    kind = draw.choice(["text", "regex", "json", "stream", "script", "raising"])
    text = draw.choice(["the name", "a", "red green", "日"])
    sampler = samplers.multinomial()
    if kind == "text":
        await generate.text(model, sampler=sampler).acall(text, max_tokens=draw.randint(1, 12), rng=number)
    elif kind == "regex":
        pattern = f"[a-f]{{2,{draw.randint(3, 30)}}}(red|of)"
        state = await continuous(generate.regex(model, pattern)).acall(text, max_tokens=9, rng=number)
        assert state.errors == [[None]]
    elif kind == "json":
        await generate.json(model, {"enum": [number % 50, "red", [1]]}).acall(text, rng=number)
    elif kind == "stream":
        async for _ in generate.text(model, sampler=sampler).astream(text, max_tokens=12, rng=number):
            if draw.random() < 0.1:
                break
    elif kind == "script":
        assert (await arun(model, _script, text, sampler=sampler, rng=number)).errors == [None, None]
    else:
        (error,) = (await arun(model, _raising, text, rng=number, check=False)).errors
        assert isinstance(error, RuntimeError)
    seen[kind] += 1


async def _serve(model: HuggingFaceModel, count: int, seen: Counter[str]) -> None:
    """Run `count` requests, some at a time; a fifth of them is cancelled on the way."""
    room = asyncio.Semaphore(_AT_ONCE)
    draw = random.Random(count)

    async def one(number: int) -> None:
        async with room:
            task = asyncio.ensure_future(_request(model, number, seen))
            if draw.random() < 0.2:
                await asyncio.sleep(draw.uniform(0, 0.03))
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                seen["cancelled"] += 1

    await asyncio.gather(*map(one, range(count)))


def _resident_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the memory of a process is read from /proc, which is not here")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("count", [120, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_is_left_of_many_requests(count: int) -> None:
    model = random_model("llama", prefix_cache_bytes=2**16)
    model.prefix_cache.min_tokens = 3
    seen: Counter[str] = Counter()
    asyncio.run(_serve(model, 120, seen))  # what is made once is there
    threads, held = threading.active_count(), []
    for _ in range(3):
        asyncio.run(_serve(model, count // 3, seen))
        gc.collect()
        held.append(_resident_bytes())
    engine: Any = engine_of(model)
    assert sum(seen.values()) == 120 + count // 3 * 3
    assert (
        min(seen[kind] for kind in ("text", "regex", "json", "stream", "script", "raising", "cancelled")) > count // 60
    )
    assert (engine.num_running, len(engine._scheduler.waiting), len(engine._scheduler.jobs)) == (0, 0, 0)
    assert 0 < model.prefix_cache.nbytes == model.kv_store.nbytes <= 2**16
    assert threading.active_count() == threads
    assert held[-1] - held[0] < 24e6, held
