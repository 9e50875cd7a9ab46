"""`Window`: a bounded number of prompts in flight on the engine (continuous batching); one that ends makes room at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from fsm import FSMError
from outlines_cont.engine.job import Job
from outlines_cont.errors import OutlinesContError
from outlines_cont.events.stream_options import StreamOptions
from outlines_cont.generation.options import Options
from outlines_cont.generation.protocols import PieceMaker
from outlines_cont.generation.run import EndedRow, Run
from outlines_cont.generation.run_events import RunEvents
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow

# Errors of rows, as opposed to bugs: the group is bisected to find the rows that cause them.
_OF_ROWS = (OutlinesContError, FSMError, torch.OutOfMemoryError)


class ShowValue(Protocol):
    """Takes a value so far."""

    def __call__(self, key: Any, value: Any, is_whole: bool) -> None:
        """Show the value so far of the prompt `key`, the final one where `is_whole`; None before there is one."""


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """A prompt to be continued.

    Attributes:
        key: identifies it when it ends.
        generator: the generator that continues it.
        given: the prompt.
        seed: of its random numbers; None where none are drawn.
        show: takes the value while it is written; None shows nothing.
    """

    key: Any
    generator: PieceMaker
    given: Any
    seed: int | None = None
    show: ShowValue | None = None

    @property
    def num_rows(self) -> int:
        """How many rows of the engine it takes."""
        return self.generator.sampler.num_samples or 1


@dataclass(frozen=True, slots=True)
class Ended:
    """A prompt that has come to its end.

    Attributes:
        key: that of its entry.
        rows: a row for each sample, with value and error; empty where no row could be made.
        error: why not, else None.
        steps: how many steps were taken meanwhile.
    """

    key: Any
    rows: tuple[StateRow, ...] = ()
    error: Exception | None = None
    steps: int = 0


class _Call:
    """Entries that were given to the engine together."""

    def __init__(self, entries: list[WindowEntry], run: Run, step: int) -> None:
        self.entries = entries
        self._run = run
        self._begun = step
        self._samples = len(run.rows) // len(entries)
        is_shown = entries[0].show is not None
        self._events = RunEvents(run, StreamOptions.of(True, 0, False, True)) if is_shown else None
        self._job: Job | None = None
        self._rows: dict[int, list[EndedRow]] = {at: [] for at in range(len(entries))}  # of entries that have not ended

    def begin(self) -> None:
        """Give the rows to the engine."""
        self._job = self._run.submit()

    def cancel(self) -> None:
        """Take the rows from the engine."""
        self._run.cancel()

    @property
    def job(self) -> Job | None:
        """The job of the engine; None once it is over."""
        return None if self._job is None or self._job.is_over else self._job

    @property
    def num_running(self) -> int:
        """How many rows have not ended."""
        return 0 if self._job is None else len(self._job.rows)

    @property
    def unended(self) -> list[WindowEntry]:
        """The entries whose end was not reported."""
        return [self.entries[at] for at in self._rows]

    def take_ended(self, step: int) -> list[Ended]:
        """Return the entries that have ended since this was asked last."""
        if self._events is not None:
            self._show(self._events)
        found = []
        for ended in self._run.take_ended():
            at = ended.number // self._samples
            rows = self._rows[at]
            rows.append(ended)
            if len(rows) == self._samples:
                del self._rows[at]
                rows.sort(key=lambda one: one.number)
                state_rows = tuple(one.row for one in rows)
                found.append(Ended(self.entries[at].key, state_rows, steps=step - self._begun))
        return found

    def _show(self, events: RunEvents) -> None:
        for event in events.pull():
            entry = self.entries[event.batch]
            if entry.show is not None:
                entry.show(entry.key, event.value, event.finish_reason not in ("", "length", "error"))


class Window:
    """At most so many rows on the engine at once: put prompts in while there is room, take steps, and take out what has ended.

    Memory: what the rows in flight take; a prompt that has ended is released with the last of those that were put in with it.

    Args:
        model: the model.
        width: the most rows in flight, 1 or more.
        options: those of every call, such as `max_tokens`.
        scores_end: whether the log-probabilities of forced tokens at the very end are fed for.
    """

    def __init__(self, model: LanguageModel, width: int, options: Options, *, scores_end: bool = True) -> None:
        self._model = model
        self._width = width
        self._options = options
        self._scores_end = scores_end
        self._calls: list[_Call] = []
        self._waiting: deque[WindowEntry] = (
            deque()
        )  # those that were taken out again, because there was no memory for them
        self._failed: list[Ended] = []
        self._steps = 0
        self._opened: AbstractContextManager[Meter] = model.meter()  # type: ignore[attr-defined]
        self.meter = self._opened.__enter__()
        """The work of the model since the window was made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel all rows in flight."""
        self.close()

    def close(self) -> None:
        """Cancel all rows in flight."""
        calls, self._calls = self._calls, []
        self._waiting.clear()
        for call in calls:
            call.cancel()
        self._opened.__exit__(None, None, None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in flight, and every end was reported."""
        return not (self._calls or self._waiting or self._failed)

    @property
    def num_free(self) -> int:
        """How many rows may be put in now."""
        return 0 if self._waiting else self._width - self._num_running

    @property
    def _num_running(self) -> int:
        return sum(call.num_running for call in self._calls)

    def add(self, entries: Sequence[WindowEntry]) -> None:
        """Put prompts in; those of one generator are read together. What cannot run is reported by the next `step`."""
        for generator in {id(entry.generator): entry.generator for entry in entries}.values():
            self._begin([entry for entry in entries if entry.generator is generator])

    def step(self) -> list[Ended]:
        """Take a step of the engine, for all rows that it runs, and return the prompts that have ended."""
        self._begin_again()
        job = next((call.job for call in self._calls if call.job is not None), None)
        if job is not None:
            self._steps += 1
            try:
                self._model.engine.advance(job)
            except _OF_ROWS as error:
                self._take_out(error)
        ended, self._failed = self._failed, []
        for call in self._calls:
            ended += call.take_ended(self._steps)
        self._calls = [call for call in self._calls if call.unended]
        return ended

    def _begin(self, entries: list[WindowEntry]) -> None:
        """Give entries of one generator to the engine; where that is an error, in halves, until those that cause it are alone."""
        seeds = [entry.seed for entry in entries]
        try:
            run = Run(
                entries[0].generator,
                [entry.given for entry in entries],
                self._options,
                rng=None if None in seeds else [seed for seed in seeds if seed is not None],
                score_last=self._scores_end,
            )
        except _OF_ROWS as error:
            if len(entries) == 1:
                self._failed.append(Ended(entries[0].key, error=error))
                return
            half = len(entries) // 2
            self._begin(entries[:half])
            self._begin(entries[half:])
            return
        call = _Call(entries, run, self._steps)
        self._calls.append(call)  # first of all: an interrupt may come before anything else
        call.begin()

    def _begin_again(self) -> None:
        """Give the engine what had no room, one by one."""
        while self._waiting and self._num_running < self._width:
            self._begin([self._waiting.popleft()])

    def _take_out(self, error: Exception) -> None:
        """After an error of a whole step: run half as many rows from now on; a prompt that is alone with it fails."""
        for call in self._calls:
            self._failed += call.take_ended(self._steps)
        running = [call for call in self._calls if call.unended]
        out = running if len(running) == 1 else running[len(running) // 2 :]
        for call in out:
            call.cancel()
        entries = [entry for call in out for entry in call.unended]
        if len(running) == 1 and len(entries) == 1:
            self._failed.append(Ended(entries[0].key, error=error))
        else:
            self._width = max(self._width // 2, 1)
            self._waiting.extend(entries)
        self._calls = [call for call in running if call not in out]
