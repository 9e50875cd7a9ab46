"""Requests that share beginnings, come and go, are cancelled and interrupted: each writes what it writes alone, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import continuous, engine_of, generate, models, samplers
from outlines_cont.control import Branch, TokenSet, arun, fixed, fork, gen
from outlines_cont.engine.job import Job
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.oracle import greedy_ids
from tests.rows import job_of

PER_TOKEN = 2 * 2 * 2 * 8 * 8
_NETWORK = random_network("llama")
_ALONE: dict[tuple[int, ...], list[int]] = {}
# Sequences that share beginnings of all lengths.
_PROMPTS = st.lists(st.sampled_from([(70, 71, 72, 73), (70, 71, 74), (75,), (76, 77, 78, 79, 80, 81)]), min_size=1, max_size=6).map(
    lambda parts: [0, *(token_id for part in parts for token_id in part)]
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), _PROMPTS), st.tuples(st.sampled_from(["step", "cancel", "interrupt", "clear"]), st.integers(0, 7))
    ),
    min_size=6,
    max_size=30,
)


@settings(max_examples=examples(6), deadline=None)
@given(
    _STEPS,
    st.sampled_from([0, 25, 400]),
    st.sampled_from([None, 110, 220]),
    st.sampled_from([1, 1024]),
    st.sampled_from([3, 64]),
    st.booleans(),
)
def test_requests_write_what_they_write_alone(
    steps: list[tuple[str, int | list[int]]], held: int, room: int | None, least: int, limit: int, stacks: bool
) -> None:
    budget = None if room is None else room * PER_TOKEN
    model = models.from_transformers(_NETWORK, FakeTokenizer(), prefix_cache_bytes=held * PER_TOKEN, kv_budget_bytes=budget)
    model.prefix_cache.min_tokens = 3
    engine = engine_of(model)
    engine.max_batch_tokens = limit
    jobs: list[tuple[Job, tuple[int, ...]]] = []
    can_stack = mock.PropertyMock(return_value=stacks)
    with (
        mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=least, min_view=least)),
        mock.patch.object(models.HuggingFaceModel, "can_stack", can_stack),
    ):
        for name, value in steps:
            if isinstance(value, list):
                jobs.append((job_of(model, value, max_tokens=3), tuple(value)))
                engine.submit(jobs[-1][0])
            elif name == "step":
                engine.step()
            elif name == "cancel" and jobs:
                engine.cancel(jobs.pop(value % len(jobs))[0])
            elif name == "clear":
                model.prefix_cache.clear()
            elif name == "interrupt":
                with mock.patch.object(model, "forward", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
                    engine.step()
            assert model.prefix_cache.nbytes <= model.prefix_cache.max_bytes
            assert budget is None or model.kv_store.nbytes <= budget
        # Nobody waits for ever: alone each takes its prompt and three tokens, and one of them at least goes on at every step.
        for _ in range(sum(len(ids) + 8 for _, ids in jobs) + 8):
            if all(job.is_over for job, _ in jobs):
                break
            engine.step()
        for job, token_ids in jobs:
            assert job.is_over
            if token_ids not in _ALONE:
                _ALONE[token_ids] = greedy_ids(model, token_ids, 3)
            row = job.done[0]
            assert row.error is None, row.error
            assert [*token_ids, *_ALONE[token_ids]] == [*row.token_ids]
    del jobs[:]
    job = row = None
    engine.step()
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes
    model.prefix_cache.clear()
    assert model.kv_store.nbytes == 0


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
    assert min(seen[kind] for kind in ("text", "regex", "json", "stream", "script", "raising", "cancelled")) > count // 60
    assert (engine.num_running, len(engine._scheduler.waiting), len(engine._scheduler.jobs)) == (0, 0, 0)
    assert 0 < model.prefix_cache.nbytes == model.kv_store.nbytes <= 2**16
    assert threading.active_count() == threads
    assert held[-1] - held[0] < 24e6, held
