"""`ProgramBatch`: runs many templates on one engine (continuous batching), at most `window` at once; each is resumed as soon as its own
generated span has ended. Results are yielded in order: up to four windows of runs are held until those before them have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Self

from outlines_cont.engine.job import Job
from outlines_cont.interfaces import LanguageModel
from outlines_cont.templates.program import TemplateProgram
from outlines_cont.templates.result import TemplateResult


class ProgramBatch:
    """Templates that run together, at most `window` at once; spans that are requested in one turn begin in one step of the engine."""

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

    def turns(self) -> Generator[Job | None, None, None]:
        """Begin programs, yield the first job that one waits for (the caller takes a step for it), and resume those whose span has ended.

        Ends with the last program; where none waits, a turn yields None.
        """
        while self._running or not self._is_exhausted:
            self._fill()
            yield next((program.run.job for program in self._running if program.run is not None), None)
            for program in self._running:
                if program.check() and program.run is not None and program.run.job.is_over:
                    program.resume()
            self._running = [program for program in self._running if not program.is_over]

    def _fill(self) -> None:
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

    def results(self) -> Generator[TemplateResult, None, None]:
        """Yield the results of those at the beginning that are over, in their order."""
        while self._in_order and self._in_order[0].is_over:
            yield self._in_order.popleft().result()


def drive(
    model: LanguageModel, programs: Iterable[TemplateProgram], window: int
) -> Generator[TemplateResult, None, None]:
    """Run programs, and yield their results in their order."""
    with ProgramBatch(model, programs, window) as batch:
        for job in batch.turns():
            yield from batch.results()
            if job is not None:
                batch.engine.advance(job)
        yield from batch.results()


async def drive_async(
    model: LanguageModel, programs: Iterable[TemplateProgram], window: int
) -> AsyncGenerator[TemplateResult, None]:
    """The asynchronous form, which does not block the event loop."""
    with ProgramBatch(model, programs, window) as batch:
        for job in batch.turns():
            for result in batch.results():
                yield result
            if job is not None:
                await batch.engine.advance_async(job)
        for result in batch.results():
            yield result
