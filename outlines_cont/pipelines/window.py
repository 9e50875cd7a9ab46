"""`Window`: the prompts in flight on the engine (continuous batching), by `num_free` at most `width`; another can start as soon as one
ends. After an error of a whole step, such as lack of memory, half of the prompts are cancelled, to be restarted later, and the width is
halved for good; a prompt that runs alone ends with the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from fsm import FSMError
from outlines_cont.errors import OutlinesContError
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.run_events import RunEvents
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.pipelines.rows.outcome import ShowValue
from outlines_cont.state.row import StateRow

# Errors of rows, as opposed to bugs.
_OF_ROWS = (OutlinesContError, FSMError, torch.OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """A prompt to be continued by a generator with one sample; `show` takes the value while it is written."""

    key: Any
    generator: PieceMaker
    prompt: Any
    seed: int | None = None
    show: ShowValue | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A prompt whose generated span has ended after `steps` steps; `row` is None if it could not run."""

    key: Any
    row: StateRow | None = None
    error: Exception | None = None
    steps: int = 0


class _Entry:
    """A prompt that runs since step `step`."""

    def __init__(self, entry: WindowEntry, run: Call, step: int) -> None:
        self.entry = entry
        self.run = run
        self._first_step = step
        self._events = None if entry.show is None else RunEvents(run, StreamOptions(True, 0, False, True))

    def ended(self, step: int) -> Ended | None:
        """Show the new part of the value; return the row if it has ended."""
        entry = self.entry
        if entry.show is not None and self._events is not None:
            for event in self._events.pull():
                entry.show(entry.key, event.value, event.finish_reason not in ("", "length", "error"))
        return next((Ended(entry.key, row, steps=step - self._first_step) for row in self.run.take_ended()), None)


class Window:
    """The prompts in flight: `add` some while `num_free` is positive, and call `step`, which returns those that have ended.

    With `scores_end` forced tokens at the end of a row are fed, to compute their log-probabilities.
    """

    def __init__(self, model: LanguageModel, width: int, options: Options, *, scores_end: bool = True) -> None:
        self._model = model
        self._width = width
        self._options = options
        self._scores_end = scores_end
        self._calls: list[_Entry] = []
        # Cancelled for lack of memory, to be restarted.
        self._waiting: deque[WindowEntry] = deque()
        self._ended: list[Ended] = []
        self._steps = 0
        self._opened: AbstractContextManager[Meter] = model.meter()  # type: ignore[attr-defined]
        self.meter = self._opened.__enter__()
        """The work of the model since the window was made."""

    def close(self) -> None:
        """Cancel all rows in flight."""
        calls, self._calls = self._calls, []
        self._waiting.clear()
        for call in calls:
            call.run.cancel()
        self._opened.__exit__(None, None, None)

    @property
    def is_empty(self) -> bool:
        """Whether no prompt is in flight, and `step` has returned all that have ended."""
        return not (self._calls or self._waiting or self._ended)

    @property
    def num_free(self) -> int:
        """How many prompts may be added now."""
        return 0 if self._waiting else self._width - len(self._calls)

    def add(self, entries: Iterable[WindowEntry]) -> None:
        """Start prompts. The next `step` returns those that cannot run."""
        for entry in entries:
            seeds = None if entry.seed is None else [entry.seed]
            try:
                run = Call(entry.generator, [entry.prompt], self._options, rng=seeds, score_last=self._scores_end)
            except _OF_ROWS as error:
                self._ended.append(Ended(entry.key, error=error))
                continue
            # Before `submit`: after an interrupt `close` cancels it.
            self._calls.append(_Entry(entry, run, self._steps))
            run.submit()

    def step(self) -> list[Ended]:
        """Take a step of the engine, for all rows that it runs, and return the prompts that have ended."""
        while self._waiting and len(self._calls) < self._width:
            self.add([self._waiting.popleft()])
        job = next(
            (call.run.job for call in self._calls if call.run.job is not None and not call.run.job.is_over), None
        )
        if job is not None:
            self._steps += 1
            try:
                self._model.engine.advance(job)
            except _OF_ROWS as error:
                self._narrow(error)
        self._take_ended()
        ended, self._ended = self._ended, []
        return ended

    def _take_ended(self) -> None:
        found = [(call, call.ended(self._steps)) for call in self._calls]
        self._calls = [call for call, ended in found if ended is None]
        self._ended += [ended for _, ended in found if ended is not None]

    def _narrow(self, error: Exception) -> None:
        """After an error of a whole step cancel half of the prompts and halve the width; a single prompt ends with the error."""
        self._take_ended()
        kept, out = self._calls[: len(self._calls) // 2], self._calls[len(self._calls) // 2 :]
        for call in out:
            call.run.cancel()
        if len(self._calls) == 1:
            self._ended.append(Ended(out[0].entry.key, error=error))
        else:
            self._width = max(self._width // 2, 1)
            self._waiting.extend(call.entry for call in out)
        self._calls = kept
