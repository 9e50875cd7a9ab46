"""`TemplateStream`: iterates once over the events of a run of a template, in a `for` or `async for` loop; at every moment `result` is the
result so far. Text of the template and of a search arrives as a whole; leaving the loop ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from outlines_cont.events.closing import Closing
from outlines_cont.events.event import StreamEvent
from outlines_cont.interfaces import LanguageModel
from outlines_cont.templates.driver import ProgramBatch
from outlines_cont.templates.program import TemplateProgram
from outlines_cont.templates.result import TemplateResult


@dataclass(frozen=True, slots=True)
class TemplateEvent:
    """What is new in a run of a template. The texts of all events, joined, are the text of its result.

    Attributes:
        text: new text, whole characters.
        name: under which it is generated; None for text of the template, and for a generator without a name.
        event: the event of a generator, with tokens and log-probabilities; None for text of the template, and for a search, whose
            text comes as a whole.
    """

    text: str
    name: str | None = None
    event: StreamEvent | None = None


class TemplateStream(Closing):
    """Events of one run, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Leaving the loop ends the work; `result` is what there was then. After
    `async for` close the stream to be sure (`async with`), as Python ends a loop of that kind later.
    """

    def __init__(self, model: LanguageModel, program: TemplateProgram) -> None:
        self._program = program
        self._batch = ProgramBatch(model, [program], 1)
        self._is_begun = False

    @property
    def result(self) -> TemplateResult:
        """The result so far, also in the middle of a generated span."""
        return self._program.result()

    def __iter__(self) -> Iterator[TemplateEvent]:
        """Run, and yield what is new after each step. A stream can be iterated once.

        Raises:
            As `Template.run` does, after the last event.
        """
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
        """The asynchronous form, which does not block the event loop."""
        if not self._begin():
            return
        try:
            for job in self._batch.turns():
                for event in self._news():
                    yield event
                if job is not None:
                    await self._batch.engine.advance_async(job)
                    # In a thread, since another task may have begun the next step, which holds the lock.
                    await asyncio.to_thread(self._program.pull)
            for event in self._news():
                yield event
        finally:
            await self.aclose()
        self.result.check()

    def close(self) -> None:
        """End the work, wherever it is; `result` stays what it is now."""
        self._batch.close()
        self._program.close()  # also if iteration has not begun

    def _begin(self) -> bool:
        is_first = not self._is_begun
        self._is_begun = True
        return is_first and not self._program.is_over

    def _news(self) -> Iterator[TemplateEvent]:
        news = self._program.news
        while news:
            name, text, event = news.popleft()
            yield TemplateEvent(text, name, event)
