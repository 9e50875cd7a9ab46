"""Streams and calls of one model in tasks of two event loops and in threads at once, some of which are left or cancelled: each writes
what it writes alone, and nothing of any of them is held.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, StreamEvent, engine_of, generate
from tests.engine.test_every_way import (
    FEATURES,
    PROMPTS,
    SEEDS,
    compare,
    compare_events,
    model_of,
    options_of,
    resumed,
    rows_of,
    whole,
    writing,
)
from tests.examples import examples, first
from tests.fakes import FAMILIES

NOT_RESUMED = ("healing", "bans with alternatives")
PLACES = ("thread", "loop", "other loop")
NAMES = {family: [*FEATURES][number :: len(FAMILIES)] for number, family in enumerate(FAMILIES)}


@dataclass
class Writer:
    """A stream or a call, how it ends, and what it has written.

    Attributes:
        leaves: the number of events after which the stream is left; None to read all.
        cancels: after how many turns of the event loop its task is cancelled.
    """

    name: str
    place: str
    retract: bool | None  # None: a call
    leaves: int | None
    cancels: int | None
    events: list[StreamEvent] = field(default_factory=list)
    state: SequenceState | None = None
    is_whole: bool = False

    def write(self) -> None:
        """In a thread."""
        if self.retract is None:
            self.state = writing(self.name)(PROMPTS, rng=SEEDS, **options_of(self.name))
        else:
            with self._stream() as stream:
                self.events += islice(stream, self.leaves)
            self.state = stream.state
        self.is_whole = self.retract is None or self.leaves is None

    async def awrite(self) -> None:
        """In a task, which another cancels."""
        task = asyncio.create_task(self._awrite())
        if self.cancels is not None:
            for _ in range(self.cancels):
                await asyncio.sleep(0)
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _awrite(self) -> None:
        if self.retract is None:
            self.state = await writing(self.name).acall(PROMPTS, rng=SEEDS, **options_of(self.name))
        else:
            stream = self._stream()
            try:
                async with stream:
                    async for event in stream:
                        self.events.append(event)
                        if len(self.events) == self.leaves:
                            return
            finally:
                self.state = stream.state
        self.is_whole = True

    def _stream(self) -> Any:
        return writing(self.name).stream(PROMPTS, rng=SEEDS, retract=bool(self.retract), **options_of(self.name))

    def check(self) -> None:
        """What was left is resumed; what was not is what it is alone."""
        if self.is_whole and self.retract is None:
            assert self.state is not None
            compare(self.name, rows_of(self.state))
        elif self.is_whole:
            assert self.state is not None
            compare_events(self.name, self.events, self.state, retract=bool(self.retract))
        elif self.state is not None and not any(row.piece for row in rows_of(self.state)):  # it has not begun
            compare(self.name, rows_of(writing(self.name)(self.state, **options_of(self.name))))
        elif self.state is not None and self.name not in NOT_RESUMED:
            compare(self.name, resumed(self.name, self.state))


def in_loop(writers: list[Writer]) -> None:
    async def main() -> None:
        await asyncio.gather(*(writer.awrite() for writer in writers))

    asyncio.run(main())


def at_once(writers: list[Writer]) -> None:
    """Run all writers in their threads and loops."""
    loops = [[writer for writer in writers if writer.place == place] for place in PLACES[1:]]
    calls: list[Callable[[], None]] = [writer.write for writer in writers if writer.place == "thread"]
    with ThreadPoolExecutor(len(writers) + 2) as pool:
        running = [*map(pool.submit, calls), *(pool.submit(in_loop, loop) for loop in loops)]
    for one in running:
        one.result()


@pytest.mark.parametrize("family", first(2, ["llama", "gemma3", "gpt2", "mistral", "qwen3"]))
@settings(max_examples=examples(3))
@given(data=st.data(), max_rows=st.integers(1, 20), limit=st.sampled_from([5, 64, 4096]))
def test_each_writes_what_it_writes_alone(family: str, data: st.DataObject, max_rows: int, limit: int) -> None:
    count = st.none() | st.integers(0, 12)
    kinds = st.builds(Writer, st.sampled_from(NAMES[family]), st.sampled_from(PLACES), st.sampled_from([None, False, True]), count, count)
    writers = data.draw(st.lists(kinds, min_size=1, max_size=6))
    for name in NAMES[family]:
        whole(name)
    engine = engine_of(model_of(writers[0].name))
    gc.collect()
    held, limits = engine.model.kv_store.nbytes, (engine.max_rows, engine.max_batch_tokens)
    try:
        engine.max_rows, engine.max_batch_tokens = min(max_rows, limit), limit
        at_once(writers)
    finally:
        engine.max_batch_tokens, engine.max_rows = limits[1], limits[0]
    assert engine.num_running == 0
    for writer in writers:
        writer.check()
        writer.state = None
    generate.text(engine.model)("a", max_tokens=1)  # an engine lets go of what the last step has held in its next one
    gc.collect()
    assert held == engine.model.kv_store.nbytes
