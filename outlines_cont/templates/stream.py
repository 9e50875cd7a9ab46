"""`drive`, `drive_async`: run many programs of templates on one engine (continuous batching), at most twice as many as it has rows; results
are in order. `TemplateStream`: iterates once over the events of one, in a `for` or `async for` loop. Text between two generators and that
of a search is one event; leaving a `for` loop ends the run, but an `async for` loop only with `async with` around it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Job
from outlines_cont.events.event import Closing, StreamEvent
from outlines_cont.interfaces import LanguageModel
from outlines_cont.templates.program import TemplateProgram, TemplateResult


class ProgramBatch:
    """Programs that run together, twice as many as the engine has rows; each is resumed as soon as its own generated span has ended.

    Results are in order: up to four times as many programs are kept until those before them have ended.
    """

    def __init__(self, model: LanguageModel, programs: Iterable[TemplateProgram]) -> None:
        self.engine = engine_of(model)
        self._source = iter(programs)
        self._window = 2 * self.engine.max_rows
        self._in_order: deque[TemplateProgram] = deque()
        self._running: list[TemplateProgram] = []
        self._is_exhausted = False

    def close(self) -> None:
        """Cancel the programs that run."""
        for program in self._in_order:
            program.close()

    def turns(self) -> Generator[Job | None, None, None]:
        """Start programs, yield the first unfinished job (the caller takes a step for it), and resume programs whose span has ended.

        A turn without such a job yields None.
        """
        while self._running or not self._is_exhausted:
            self._start_programs()
            yield next((program.run.job for program in self._running if program.run is not None), None)
            for program in self._running:
                if program.check() and (run := program.run) is not None and run.job is not None and run.job.is_over:
                    program.resume()
            self._running = [program for program in self._running if not program.is_over]

    def _start_programs(self) -> None:
        while len(self._running) < self._window and len(self._in_order) < 4 * self._window:
            program = next(self._source, None)
            if program is None:
                self._is_exhausted = True
                return
            self._in_order.append(program)
            program.start()
            if not program.is_over:
                self._running.append(program)

    def results(self) -> Generator[TemplateResult, None, None]:
        """Yield the results of the first programs, as far as they have ended."""
        while self._in_order and self._in_order[0].is_over:
            yield self._in_order.popleft().result()


def drive(model: LanguageModel, programs: Iterable[TemplateProgram]) -> Generator[TemplateResult, None, None]:
    """Run programs, and yield their results in order."""
    with closing(ProgramBatch(model, programs)) as batch:
        for job in batch.turns():
            yield from batch.results()
            if job is not None:
                batch.engine.advance(job)
        yield from batch.results()


async def drive_async(
    model: LanguageModel, programs: Iterable[TemplateProgram]
) -> AsyncGenerator[TemplateResult, None]:
    """Run programs without blocking the event loop, and yield their results in order."""
    with closing(ProgramBatch(model, programs)) as batch:
        for job in batch.turns():
            for result in batch.results():
                yield result
            if job is not None:
                await batch.engine.advance_async(job)
        for result in batch.results():
            yield result


@dataclass(frozen=True, slots=True)
class TemplateEvent:
    """What is new in a run of a template. The texts of all events, joined, are the text of its result.

    Attributes:
        text: new text, whole characters.
        name: under which it is generated; None for text of the template, and for a generator without a name.
        event: the event of a generator, with tokens and log-probabilities; None for text of the template and of a search.
    """

    text: str
    name: str | None = None
    event: StreamEvent | None = None


class TemplateStream(Closing):
    """Events of one run, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Breaking out of the loop ends the run, and `result` stays what it is then. After
    `async for` close the stream explicitly (`async with`), as Python finalizes asynchronous generators later.
    """

    def __init__(self, model: LanguageModel, program: TemplateProgram) -> None:
        self._program = program
        self._batch = ProgramBatch(model, [program])
        self._is_begun = False

    @property
    def result(self) -> TemplateResult:
        """The result so far, also in the middle of a generated span."""
        return self._program.result()

    def __iter__(self) -> Iterator[TemplateEvent]:
        """Run, and yield the new text after each step; raise as `Template.run` does after the last event."""
        if not self._begin():
            return
        try:
            for job in self._batch.turns():
                yield from self._news()
                if job is not None:
                    self._batch.engine.advance(job)
                    self._program.pull()
            yield from self._news()
        finally:
            self.close()
        self.result.check()

    async def __aiter__(self) -> AsyncIterator[TemplateEvent]:
        """Iterate without blocking the event loop."""
        if not self._begin():
            return
        try:
            for job in self._batch.turns():
                for event in self._news():
                    yield event
                if job is not None:
                    await self._batch.engine.advance_async(job)
                    # In a thread, since another task may hold the lock of the engine for the next step.
                    await asyncio.to_thread(self._program.pull)
            for event in self._news():
                yield event
        finally:
            await self.aclose()
        self.result.check()

    def close(self) -> None:
        """End the run; `result` stays what it is now."""
        self._batch.close()
        self._program.close()  # which is not in the batch before iteration begins

    def _begin(self) -> bool:
        is_first = not self._is_begun
        self._is_begun = True
        return is_first and not self._program.is_over

    def _news(self) -> Iterator[TemplateEvent]:
        news = self._program.news
        while news:
            name, text, event = news.popleft()
            yield TemplateEvent(text, name, event)
