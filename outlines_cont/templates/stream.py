"""`together`: many programs of templates on one engine (continuous batching), at most twice as many as it has rows; results are in order.
`TemplateStream`: iterates once over the events of one, in a `for` or `async for` loop. Text between two generators and that of a search is
one event; leaving a `for` loop ends the run, but an `async for` loop only with `async with` around it.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.job import Task
from outlines_cont.engine.window import Room, Window
from outlines_cont.generation.stream import TaskStream
from outlines_cont.interfaces import LanguageModel
from outlines_cont.templates.program import TemplateProgram, TemplateResult


def together(engine: Engine, programs: Iterable[TemplateProgram]) -> Task:
    """Return programs as one task, whose items are they themselves, in order, after their end.

    Twice as many as the engine has rows run together; up to four times as many are kept until those before them have ended.
    """
    room = Room(2 * engine.max_rows)
    return Window(programs, room, ahead=4 * room.size).task()


class TemplateStream(TaskStream):
    """Events of one run, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Breaking out of the loop ends the run, and `result` stays what it is then. After
    `async for` close the stream explicitly (`async with`), as Python finalizes asynchronous generators later. After the last event
    errors are raised as by `Template.run`.
    """

    def __init__(self, model: LanguageModel, program: TemplateProgram) -> None:
        super().__init__(engine_of(model))
        self._program, self._running = program, program.task()

    @property
    def result(self) -> TemplateResult:
        """The result so far, also in the middle of a generated span."""
        return self._program.result()

    def _task(self) -> Task:
        yield from self._running
        self.result.check()

    def close(self) -> None:
        """End the run; `result` stays what it is now."""
        super().close()
        self._running.close()
