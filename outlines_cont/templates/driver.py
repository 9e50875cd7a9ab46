"""`ProgramBatch`: runs many templates on one engine (continuous batching); each waits for its own piece only."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Self

from outlines_cont.engine.job import Job
from outlines_cont.interfaces import LanguageModel
from outlines_cont.templates.program import TemplateProgram
from outlines_cont.templates.result import TemplateResult


class ProgramBatch:
    """Programs that run together, no more than `window` at once; what is asked for in one turn begins in one step of the engine."""

    def __init__(self, model: LanguageModel, programs: Iterable[TemplateProgram], window: int) -> None:
        self.engine = model.engine
        self._source = iter(programs)
        self._window = window
        self._in_order: deque[TemplateProgram] = deque()
        self._running: list[TemplateProgram] = []
        self._is_exhausted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all programs that run."""
        for program in self._in_order:
            program.close()

    @property
    def has_unfinished(self) -> bool:
        """Whether some program has not come to its end, or was not begun yet."""
        return bool(self._running) or not self._is_exhausted

    def fill(self) -> None:
        """Begin programs, as many as there is room for; results that wait for one before them take room, too."""
        while len(self._running) < self._window and len(self._in_order) < 4 * self._window:
            program = next(self._source, None)
            if program is None:
                self._is_exhausted = True
                return
            self._in_order.append(program)
            program.start()
            if not program.is_over:
                self._running.append(program)

    @property
    def job(self) -> Job | None:
        """The first job that a program waits for; None if no program waits."""
        return next((program.run.job for program in self._running if program.run is not None), None)

    def take(self) -> None:
        """Resume the programs whose piece has ended."""
        for program in self._running:
            if program.check() and program.run is not None and program.run.job.is_over:
                program.resume()
        self._running = [program for program in self._running if not program.is_over]

    def results(self) -> Generator[TemplateResult, None, None]:
        """Yield the results of those at the beginning that are over, in their order."""
        while self._in_order and self._in_order[0].is_over:
            yield self._in_order.popleft().result()


def drive(
    model: LanguageModel, programs: Iterable[TemplateProgram], window: int
) -> Generator[TemplateResult, None, None]:
    """Run programs, and yield their results in their order."""
    with ProgramBatch(model, programs, window) as batch:
        while batch.has_unfinished:
            batch.fill()
            yield from batch.results()
            if batch.job is not None:
                batch.engine.advance(batch.job)
                batch.take()
        yield from batch.results()


async def drive_async(
    model: LanguageModel, programs: Iterable[TemplateProgram], window: int
) -> AsyncGenerator[TemplateResult, None]:
    """The asynchronous form, which does not block the event loop."""
    with ProgramBatch(model, programs, window) as batch:
        while batch.has_unfinished:
            batch.fill()
            for result in batch.results():
                yield result
            if batch.job is not None:
                await batch.engine.advance_async(batch.job)
                batch.take()
        for result in batch.results():
            yield result
