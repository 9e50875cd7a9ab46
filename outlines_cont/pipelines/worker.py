"""`RowWorker`: the Ray actor's side: blocks of rows that several threads submit go into a queue, and one thread runs them through a single
`Flow`, so that the batch stays full across blocks. Each block is answered by a future; an exception in that thread is the result of all
open and later blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from fsm import FSMError
from outlines_cont.errors import OutlinesContError
from outlines_cont.pipelines.flow import Flow
from outlines_cont.pipelines.rows.outcome import Failure, Outcome


class OpensFlow(Protocol):
    """The method of an `Extractor` that a worker uses."""

    def flow(self) -> Flow:
        """Return a new flow of rows through the model."""


@dataclass(slots=True)
class _Block:
    """Rows that were given together, and their outcomes so far."""

    rows: Sequence[Any]
    answer: Future[list[Outcome]]
    ended: dict[int, Outcome] = field(default_factory=dict)

    def note(self, at: int, outcome: Outcome) -> None:
        """Store the outcome of a row; after the last one the block is answered."""
        self.ended[at] = replace(outcome, value=None)  # what a type makes may not go to another process
        if len(self.ended) == len(self.rows):
            self.answer.set_result([self.ended[number] for number in range(len(self.rows))])


class RowWorker:
    """Runs blocks of rows. One thread of its own takes the steps; `run` may be called by several others at once, each with a block."""

    def __init__(self) -> None:
        self._given: SimpleQueue[_Block] = SimpleQueue()
        self._open: list[_Block] = []
        self._rows: deque[tuple[_Block, int]] = deque()
        self._begun: dict[Any, tuple[_Block, int]] = {}
        self._num_begun = 0
        self._broken: BaseException | None = None

    def load(self, make: Callable[[], OpensFlow]) -> Failure | None:
        """Make the extractor, and start the thread; return a failure if it cannot be made."""
        try:
            extractor = make()
        except (OutlinesContError, FSMError) as error:
            return Failure.of(error)
        threading.Thread(target=self._drive, args=(extractor,), daemon=True).start()
        return None

    def run(self, rows: Sequence[Any]) -> list[Outcome]:
        """Return the outcome of each row; a `Failure` instead of a row is its outcome."""
        block = _Block(rows, Future())
        if not rows:
            return []
        if self._broken is not None:
            raise self._broken
        self._given.put(block)
        return block.answer.result()

    def _drive(self, extractor: OpensFlow) -> None:
        try:
            with extractor.flow() as flow:
                while True:
                    self._take(flow)
                    flow.put(self._next(flow))
                    for key, outcome in flow.step():
                        block, at = self._begun.pop(key)
                        block.note(at, outcome)
                    self._open = [block for block in self._open if not block.answer.done()]
        except BaseException as error:
            self._broken = error
            while not self._given.empty():
                self._open.append(self._given.get())
            for block in self._open:
                block.answer.set_exception(error)

    def _take(self, flow: Flow) -> None:
        """Start the blocks that were given; wait for one if the worker is idle."""
        is_idle = flow.is_empty and not self._rows
        try:
            while True:
                block = self._given.get(block=is_idle)
                is_idle = False
                self._open.append(block)
                self._rows.extend((block, at) for at in range(len(block.rows)))
        except Empty:
            return

    def _next(self, flow: Flow) -> Iterator[tuple[int, Any]]:
        """Yield the rows that there is room for, and those that have failed before."""
        room = flow.room
        while self._rows and room > 0:
            block, at = self._rows.popleft()
            row = block.rows[at]
            if isinstance(row, Failure):
                block.note(at, Outcome(failure=row))
                continue
            room -= 1
            self._num_begun += 1
            self._begun[self._num_begun] = block, at
            yield self._num_begun, row
