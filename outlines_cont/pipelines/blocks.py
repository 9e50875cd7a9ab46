"""`BlockRunner`: runs blocks of rows on workers that may die, retries by bisection, and yields one outcome per row, in order.

Nothing here knows what a worker is; see `Crew`. A block is given again when its worker has died. What kills workers again and again is
looked for in halves, with nothing beside it: in the end a single row has failed with `WorkerDied`, and all others have their outcomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from outlines_cont.pipelines.rows.errors import WorkersFailed
from outlines_cont.pipelines.rows.outcome import Failure, Outcome

# Blocks that a worker has at once: one that runs, and one behind it, so that it never waits for rows.
_AT_ONCE = 2
# So many blocks for each worker may have ended, or run, behind one that has not.
_AHEAD = 8
# So often a block may see its worker die before its rows are tried in halves.
_MOST_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows that follow each other.

    Attributes:
        start: the number of the first.
        rows: them.
        deaths: how many workers have died while they had it.
    """

    start: int
    rows: Sequence[Any]
    deaths: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what kills workers, so that it runs with nothing beside it."""
        return self.deaths >= _MOST_DEATHS


@dataclass(frozen=True, slots=True)
class BlockReport:
    """What a worker says of a block.

    Attributes:
        worker: the worker.
        start: the block, by the number of its first row.
        outcomes: those of its rows; None where the worker has died.
        why: what it has died of.
    """

    worker: Any
    start: int
    outcomes: Sequence[Outcome] | None
    why: str = ""


class Crew(Protocol):
    """Workers: processes, on one machine or on many."""

    def hire(self) -> Any:
        """Begin a worker, and return what stands for it; it may take a while until it works."""

    def give(self, worker: Any, block: Block) -> None:
        """Let a worker have a block; returns at once."""

    def wait(self) -> BlockReport:
        """Wait until a worker has something to say: the outcomes of a block, or that it has died with it."""

    def dismiss(self, worker: Any) -> None:
        """Release a worker, dead or alive, and its blocks."""


@dataclass(slots=True)
class _Hired:
    """What one worker has."""

    worker: Any
    blocks: dict[int, Block] = field(default_factory=dict)

    def has_room_for(self, block: Block) -> bool:
        """Whether it may have another block."""
        if block.is_suspect or any(other.is_suspect for other in self.blocks.values()):
            return not self.blocks
        return len(self.blocks) < _AT_ONCE


class BlockRunner:
    """Runs rows on workers.

    Memory: the rows and outcomes of at most `8 * num_workers` blocks.

    Args:
        crew: the workers.
        num_workers: how many.
        block_size: rows of a block.
    """

    def __init__(self, crew: Crew, num_workers: int, block_size: int) -> None:
        self._crew = crew
        self._num_workers = num_workers
        self._block_size = block_size
        self._hired: list[_Hired] = []
        self._again: deque[Block] = deque()
        self._ended: dict[int, Sequence[Outcome]] = {}
        self._next = 0  # the first row that has not come out
        self._taken = 0
        self._dead_in_a_row = 0
        self._has_worked = False

    def outcomes(self, rows: Iterable[Any]) -> Iterator[Outcome]:
        """Yield what becomes of each row, in their order. Rows are taken as there is room for them.

        Raises:
            WorkersFailed: workers die one after the other, and none has ever ended a block in between.
        """
        source = iter(rows)
        try:
            while True:
                is_over = self._give(source)
                if is_over and not any(hired.blocks for hired in self._hired):
                    return
                self._take(self._crew.wait())
                while self._next in self._ended:
                    found = self._ended.pop(self._next)
                    self._next += len(found)
                    yield from found
        finally:
            for hired in self._hired:
                self._crew.dismiss(hired.worker)
            self._hired = []

    def _give(self, source: Iterator[Any]) -> bool:
        """Let all workers have what they have room for; return whether there is nothing left to give."""
        while True:
            block = self._again[0] if self._again else self._block(source)
            if block is None:
                return not self._again and self._taken - self._next < self._most
            hired = self._free(block)
            if hired is None:
                if not self._again:
                    self._again.append(block)
                return False
            if self._again:
                self._again.popleft()
            hired.blocks[block.start] = block
            self._crew.give(hired.worker, block)

    @property
    def _most(self) -> int:
        return _AHEAD * self._num_workers * self._block_size

    @property
    def _most_dead(self) -> int:
        """How many workers may die one after the other: a row that kills them is found in halves, where they have worked before."""
        found = 2 * _MOST_DEATHS * self._num_workers + 2 * self._block_size.bit_length()
        return found if self._has_worked else self._num_workers + 1

    def _block(self, source: Iterator[Any]) -> Block | None:
        if self._taken - self._next >= self._most:
            return None
        rows = list(islice(source, self._block_size))
        if not rows:
            return None
        block = Block(self._taken, rows)
        self._taken += len(rows)
        return block

    def _free(self, block: Block) -> _Hired | None:
        """Return the worker that has least to do and room for the block; a new one where there are too few."""
        free = [hired for hired in self._hired if hired.has_room_for(block)]
        idle = min(free, key=lambda hired: len(hired.blocks), default=None)
        if len(self._hired) < self._num_workers and (idle is None or idle.blocks):
            idle = _Hired(self._crew.hire())
            self._hired.append(idle)
        return idle

    def _take(self, report: BlockReport) -> None:
        hired = next((hired for hired in self._hired if hired.worker is report.worker), None)
        if hired is None or report.start not in hired.blocks:
            return  # from a worker that was released meanwhile
        if report.outcomes is None:
            self._bury(hired, report.why)
            return
        block = hired.blocks.pop(report.start)
        assert len(report.outcomes) == len(block.rows)
        self._ended[block.start] = report.outcomes
        self._dead_in_a_row, self._has_worked = 0, True

    def _bury(self, hired: _Hired, why: str) -> None:
        """Take over what a dead worker had."""
        self._hired.remove(hired)
        self._crew.dismiss(hired.worker)
        self._dead_in_a_row += 1
        was_alone = len(hired.blocks) == 1
        for block in sorted(hired.blocks.values(), key=lambda block: block.start, reverse=True):
            self._again.extendleft(reversed(self._retried(block, why, was_alone)))
        if self._dead_in_a_row > self._most_dead:
            raise WorkersFailed(
                f"expected workers that work, but {self._dead_in_a_row} of them have died one after the other, the last of them so: {why}"
            )

    def _retried(self, block: Block, why: str, was_alone: bool) -> list[Block]:
        """Return what is tried again of a block whose worker has died."""
        again = replace(block, deaths=block.deaths + 1)
        if not block.is_suspect or not was_alone:
            return [again]
        if len(block.rows) > 1:
            half = len(block.rows) // 2
            return [replace(again, rows=block.rows[:half]), Block(block.start + half, block.rows[half:], again.deaths)]
        message = f"{again.deaths} workers have died while they had this row, the last of them alone with it: {why}"
        self._ended[block.start] = [Outcome(failure=Failure("WorkerDied", message))]
        self._dead_in_a_row = 0
        return []
