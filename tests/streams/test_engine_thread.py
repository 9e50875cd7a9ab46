"""The thread of the engine: what requests read is what the streams yield alone; requests that leave, steps that fail, loops that close."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from outlines_cont import Engine, continuous, engine_of, generate, models, samplers
from outlines_cont.generation.engine_thread import EngineThread, Items, Reading
from tests.examples import first
from tests.serve.running import wait_until

LONG = "[a-z]{3000}"


@pytest.fixture(scope="module")
def model() -> Any:
    return models.tiny()


def _stream(model: Any, seed: int, num_tokens: int, pattern: str = "[a-z ]+") -> Any:
    writing = continuous(generate.regex(model, pattern, sampler=samplers.multinomial(temperature=2.0)))
    return writing.stream(f"Message {seed % 3}: ", rng=seed, max_tokens=num_tokens)


def _told(events: Sequence[Any]) -> tuple[str, list[int], list[str]]:
    ids = [token_id for event in events for token_id in event.token_ids]
    return "".join(event.text for event in events), ids, [event.finish_reason for event in events if event.finish_reason]


async def _read(
    thread: EngineThread, streams: Sequence[Any], *, is_whole: bool = False, most: int | None = None
) -> list[list[tuple[int, Any]]]:
    """The lists of a request, which leaves after `most` of them."""
    found: list[Items] = []
    async with Reading(thread, streams, is_whole=is_whole) as reading:
        async for items in reading:
            found.append(items)
            if len(found) == most:
                reading.leave()
    return found


@pytest.mark.parametrize("seed", first(2, range(6)))
def test_requests_read_what_streams_yield_alone(model: Any, seed: int) -> None:
    """Requests of one to three streams come at random and together; some leave."""
    drawn, thread, engine = random.Random(seed), EngineThread(engine_of(model)), engine_of(model)
    asked = [[(drawn.randrange(100), drawn.randint(1, 12)) for _ in range(drawn.randint(1, 3))] for _ in range(8)]
    leaves = [drawn.choice([None, None, 1, 3]) for _ in asked]
    wholes = [drawn.random() < 0.3 for _ in asked]
    alone = [[_told([*_stream(model, *one)]) for one in request] for request in asked]

    async def ask(i: int) -> list[Items]:
        await asyncio.sleep(drawn.choice([0, 0.01, 0.05]))
        streams = [_stream(model, *one) for one in asked[i]]
        return await _read(thread, streams, is_whole=wholes[i], most=leaves[i])

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, range(len(asked))))

    for request, most, is_whole, lists in zip(alone, leaves, wholes, asyncio.run(ask_all()), strict=True):
        assert all(lists)
        assert not is_whole or len(lists) == 1
        for number, told in enumerate(request):
            events = [event for items in lists for index, event in items if index == number]
            if most is None:
                assert _told(events) == told
            else:
                assert len(lists) <= most
                assert told[0].startswith(_told(events)[0])
    assert engine.num_running == 0


def test_a_request_that_leaves_frees_its_rows_while_others_run(model: Any) -> None:
    thread, engine = EngineThread(engine_of(model)), engine_of(model)
    numbers = list[int]()

    async def both() -> Any:
        async def leave() -> None:
            await _read(thread, [_stream(model, 1, 400, LONG), _stream(model, 2, 400, LONG)], most=1)
            numbers.append(engine.num_running)

        return (await asyncio.gather(_read(thread, [_stream(model, 0, 100, LONG)]), leave()))[0]

    lists = asyncio.run(both())
    assert numbers == [1]
    assert _told([event for items in lists for _, event in items]) == _told([*_stream(model, 0, 100, LONG)])


def test_a_step_that_fails_fails_all_requests_and_no_later_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, step = EngineThread(engine_of(model)), Engine.step
    failures = [ZeroDivisionError()]

    def failing(engine: Engine) -> None:
        if engine.num_running == 2 and failures:  # one request may come steps before the other
            raise failures.pop()
        step(engine)

    async def ask(*seeds: int, most: int = 400) -> list[Any]:
        return await asyncio.gather(*(_read(thread, [_stream(model, seed, most, LONG)]) for seed in seeds), return_exceptions=True)

    monkeypatch.setattr(Engine, "step", failing)
    assert [type(found) for found in asyncio.run(ask(1, 2))] == [ZeroDivisionError] * 2
    assert engine_of(model).num_running == 0
    (lists,) = asyncio.run(ask(3, most=9))
    assert _told([event for items in lists for _, event in items]) == _told([*_stream(model, 3, 9, LONG)])


def test_an_event_loop_that_closes_ends_its_requests(model: Any) -> None:
    thread, engine, loop = EngineThread(engine_of(model)), engine_of(model), asyncio.new_event_loop()

    async def begin() -> Reading:
        reading = await Reading(thread, [_stream(model, 1, 2_000, LONG)], is_whole=False).__aenter__()
        await anext(reading)
        return reading

    reading = loop.run_until_complete(begin())
    loop.close()
    wait_until(lambda: engine.num_running == 0)
    assert reading.is_left


def test_others_read_the_engine_while_requests_run(model: Any) -> None:
    """The thread takes step after step, and leaves room for a thread that waits for the lock."""
    thread, engine, counts, is_over = EngineThread(engine_of(model)), engine_of(model), list[int](), threading.Event()

    def poll() -> None:
        while not is_over.wait(0.001):
            counts.append(engine.stats.steps)

    polling = threading.Thread(target=poll)
    polling.start()
    asyncio.run(_read(thread, [_stream(model, 1, 150, LONG)]))
    is_over.set()
    polling.join()
    assert len(set(counts)) > 5
