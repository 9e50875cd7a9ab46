"""`EngineThread`: runs the streams of all requests of a server in one thread, by steps of the engine for all of them, and tells the event
loop once after each step what it has brought. `Reading`: the items of the streams of one request.

The thread does not wait for those who read: what a slow client has not received yet waits in its `Reading`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import Any, Self

from fsm.process_fork import reset_in_child
from outlines_cont.engine.engine import Engine
from outlines_cont.engine.job import Step
from outlines_cont.generation.stream import TaskStream

Items = list[tuple[int, Any]]
"""Items of streams, each with the number of its stream."""


class Reading:
    """The items of some streams, as lists of what each step has brought. Iterate over it once, in `async with`, whose end cancels the rows.

    Args:
        thread: runs the streams.
        streams: nothing has begun to iterate over them.
        is_whole: return all items at once when all streams are over.

    Attributes:
        loop: the event loop of the request.
        first: when the first item was made, by `time.perf_counter`; None before.
        is_left: whether `leave` was called.
    """

    first: float | None = None
    is_left = False

    def __init__(self, thread: EngineThread, streams: Sequence[TaskStream], *, is_whole: bool) -> None:
        self._thread, self._is_whole = thread, is_whole
        # Of the engine's thread: the tasks that run, the steps for which they wait, and what is not delivered.
        self._tasks = {index: stream.task() for index, stream in enumerate(streams)}
        self._steps: list[Step] = []
        self._items: Items = []
        self._error: BaseException | None = None
        # Of the event loop: what has arrived.
        self._arrived: Items = []
        self.loop = asyncio.get_running_loop()
        self._end = self.loop.create_future()
        self._woken = self.loop.create_future()

    async def __aenter__(self) -> Self:
        self._thread.begin(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()
        await asyncio.wait([self._end])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Items:
        """Return what has come since the last call; raise the error of a stream after what has come before it."""
        while not self._arrived and not self._end.done():
            self._woken = self.loop.create_future()
            await self._woken
        if self._arrived and not self.is_left:
            found, self._arrived = self._arrived, []
            return found
        if (error := await self._end) is not None and not self.is_left:
            raise error
        raise StopAsyncIteration

    def leave(self) -> None:
        """Cancel the rows before the next step; the iteration ends when they are gone."""
        self.is_left = True

    def receive(self, items: Items, error: BaseException | None, is_over: bool) -> None:
        """Take what the engine's thread has delivered; called by the event loop."""
        self._arrived += items
        if is_over:
            self._end.set_result(error)
        if not self._woken.done():
            self._woken.set_result(None)

    # -- called by the engine's thread ---------------------------------------------------------------------------------

    def read(self) -> list[Step]:
        """Run the tasks until each waits for a step, or all are over; return the steps."""
        self._steps = []
        for index, task in [*self._tasks.items()]:
            try:
                for item in () if self.is_left else task:
                    if isinstance(item, Step):
                        self._steps.append(item)
                        break
                    self._items.append((index, item))
                else:
                    task.close()
                    del self._tasks[index]
            except BaseException as error:
                self.fail(error)
                break
        if self._items and self.first is None:
            self.first = perf_counter()
        return self._steps

    def note(self, error: BaseException | None) -> None:
        """Note the end of the steps, or the error that they have raised."""
        try:
            for step in self._steps:
                if error is not None and not isinstance(error, step.caught):
                    raise error
                step.error = error
                step.note()
        except BaseException as failure:
            self.fail(failure)

    def fail(self, error: BaseException) -> None:
        """End all tasks with an error, which is told rather than those of their ends."""
        self._error, self._steps, tasks, self._tasks = error, [], self._tasks, {}
        for task in tasks.values():
            with suppress(Exception):
                task.close()

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return not self._tasks

    def news(self) -> tuple[Items, BaseException | None, bool] | None:
        """Return the arguments of `receive`; None if there is nothing to deliver."""
        if not self.is_over and (self._is_whole or not self._items):
            return None
        found, self._items = self._items, []
        return found, self._error, self.is_over


class EngineThread:
    """A thread that takes steps of an engine while there are streams to be run. It ends when there are none."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        """Begin without a thread, as in the child of a fork, in which there is none."""
        self._lock = threading.Lock()
        self._begun: list[Reading] = []
        self._is_running = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="outlines-cont-engine")

    def begin(self, reading: Reading) -> None:
        """Run the streams of a request from the next step on."""
        with self._lock:
            self._begun.append(reading)
            if not self._is_running:
                self._pool.submit(self._run)
                self._is_running = True

    def _run(self) -> None:
        readings: list[Reading] = []
        while True:
            with self._lock:
                readings, self._begun = readings + self._begun, []
                if not readings:
                    self._is_running = False
                    return
            steps = [step for reading in readings for step in reading.read()]
            self._deliver(readings)
            readings = [reading for reading in readings if not reading.is_over]
            self._advance(steps, readings)

    def _advance(self, steps: Sequence[Step], readings: Sequence[Reading]) -> None:
        """Take a step, of which all readings are told."""
        job = next((step.job for step in steps if not step.job.is_over), None)
        error = None
        try:
            if job is not None:
                self._engine.advance(job)
        except BaseException as failure:
            error = failure
        for reading in readings:
            reading.note(error)

    def _deliver(self, readings: Sequence[Reading]) -> None:
        """Tell each event loop once of all that is new for it. A closed one has no readers left."""
        found: dict[asyncio.AbstractEventLoop, list[tuple[Reading, Any]]] = {}
        for reading in readings:
            if (news := reading.news()) is not None:
                found.setdefault(reading.loop, []).append((reading, news))
        for loop, for_loop in found.items():
            try:
                loop.call_soon_threadsafe(_receive, for_loop)
            except RuntimeError:
                for reading, _ in for_loop:
                    reading.leave()


def _receive(news: Sequence[tuple[Reading, Any]]) -> None:
    for reading, arguments in news:
        reading.receive(*arguments)
