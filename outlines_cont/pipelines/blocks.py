"""`BlockRunner`: runs blocks of rows on worker processes that may crash, and yields one outcome per row, in order; at most 8 blocks per
worker are read ahead of the first unfinished row. A block that has lost two workers is suspect: it runs alone on a worker, and each further
crash bisects it, until a single row fails with `WorkerDied`. Too many crashes in succession abort the run with `WorkersFailed`.

The blocks of a crashed worker go to the head of the queue. Before any block has been finished, `num_workers + 1` crashes in succession are
tolerated; later as many as a bisection needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from outlines_cont.pipelines.rows.errors import WorkersFailed
from outlines_cont.pipelines.rows.outcome import Failure, Outcome

# Blocks that a worker has: one that runs, and the next, so that it never waits for rows.
_AT_ONCE = 2
# Look-ahead: the most blocks per worker that are running or wait for an earlier one.
_AHEAD = 8
# Crashes of its worker after which a block is suspect.
_MOST_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows, from the number `start` on, that a worker runs together; `deaths` workers have crashed with them."""

    start: int
    rows: Sequence[Any]
    deaths: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it may cause the crashes, so that it runs alone on a worker."""
        return self.deaths >= _MOST_DEATHS


@dataclass(frozen=True, slots=True)
class BlockReport:
    """The outcomes of the block that begins with row `start`; None if its worker has crashed, with the error message `why`."""

    worker: Any
    start: int
    outcomes: Sequence[Outcome] | None
    why: str = ""


class WorkerPool(Protocol):
    """The operations on worker processes that a `BlockRunner` uses."""

    def start_worker(self) -> Any:
        """Start a worker, and return a handle of it without waiting until it is ready."""

    def give(self, worker: Any, block: Block) -> None:
        """Give a block to a worker, and return without waiting for its outcomes."""

    def wait(self) -> BlockReport:
        """Wait until a worker has finished a block or has crashed, and report it."""

    def stop_worker(self, worker: Any) -> None:
        """End a worker, running or crashed, and drop its blocks."""


@dataclass(slots=True)
class _Worker:
    """A worker, and its unfinished blocks by the number of their first row."""

    handle: Any
    blocks: dict[int, Block] = field(default_factory=dict)

    def has_room_for(self, block: Block) -> bool:
        """Whether it may have another block."""
        if block.is_suspect or any(other.is_suspect for other in self.blocks.values()):
            return not self.blocks
        return len(self.blocks) < _AT_ONCE


class BlockRunner:
    """Runs rows on workers, in blocks, and restarts workers that crash; at most `8 * num_workers` blocks are in memory."""

    def __init__(self, pool: WorkerPool, num_workers: int, block_size: int) -> None:
        self._pool = pool
        self._num_workers = num_workers
        self._block_size = block_size
        self._max_ahead = _AHEAD * num_workers * block_size  # in rows
        self._workers: list[_Worker] = []
        self._again: deque[Block] = deque()
        self._ended: dict[int, Sequence[Outcome]] = {}
        self._next = 0  # the first row whose outcome was not yielded
        self._taken = 0
        self._num_crashes = 0  # in succession
        self._has_worked = False

    def outcomes(self, rows: Iterable[Any]) -> Iterator[Outcome]:
        """Yield the outcome of each row, in their order. Rows are taken when there is room for them.

        Raises:
            WorkersFailed: too many workers have crashed in succession, without a finished block in between.
        """
        source = iter(rows)
        try:
            while True:
                is_over = self._give(source)
                if is_over and not any(worker.blocks for worker in self._workers):
                    return
                self._receive(self._pool.wait())
                while self._next in self._ended:
                    found = self._ended.pop(self._next)
                    self._next += len(found)
                    yield from found
        finally:
            for worker in self._workers:
                self._pool.stop_worker(worker.handle)
            self._workers = []

    def _give(self, source: Iterator[Any]) -> bool:
        """Give blocks to all workers with room for them; return whether all rows were given."""
        while True:
            block = self._again.popleft() if self._again else self._block(source)
            if block is None:
                return self._taken - self._next < self._max_ahead
            worker = self._free(block)
            if worker is None:
                self._again.appendleft(block)
                return False
            worker.blocks[block.start] = block
            self._pool.give(worker.handle, block)

    def _block(self, source: Iterator[Any]) -> Block | None:
        if self._taken - self._next >= self._max_ahead:
            return None
        rows = list(islice(source, self._block_size))
        self._taken += len(rows)
        return Block(self._taken - len(rows), rows) if rows else None

    def _free(self, block: Block) -> _Worker | None:
        """Return the least busy worker with room for the block, if need be a new one; None if there is none."""
        free = [worker for worker in self._workers if worker.has_room_for(block)]
        idle = min(free, key=lambda worker: len(worker.blocks), default=None)
        if len(self._workers) < self._num_workers and (idle is None or idle.blocks):
            idle = _Worker(self._pool.start_worker())
            self._workers.append(idle)
        return idle

    def _receive(self, report: BlockReport) -> None:
        worker = next((worker for worker in self._workers if worker.handle is report.worker), None)
        if worker is None or report.start not in worker.blocks:
            return  # of a worker that was stopped before
        if report.outcomes is None:
            self._requeue_blocks(worker, report.why)
            return
        block = worker.blocks.pop(report.start)
        assert len(report.outcomes) == len(block.rows)
        self._ended[block.start] = report.outcomes
        self._num_crashes, self._has_worked = 0, True

    def _requeue_blocks(self, worker: _Worker, why: str) -> None:
        self._workers.remove(worker)
        self._pool.stop_worker(worker.handle)
        self._num_crashes += 1
        was_alone = len(worker.blocks) == 1
        for block in sorted(worker.blocks.values(), key=lambda block: block.start, reverse=True):
            self._again.extendleft(reversed(self._bisected(block, why, was_alone)))
        # Once a block has been finished: enough crashes to bisect another one down to a row.
        enough = 2 * _MOST_DEATHS * self._num_workers + 2 * self._block_size.bit_length()
        if self._num_crashes > (enough if self._has_worked else self._num_workers + 1):
            raise WorkersFailed(
                f"expected workers that work, but {self._num_crashes} of them have died one after the other, the last of them so: {why}"
            )

    def _bisected(self, block: Block, why: str, was_alone: bool) -> list[Block]:
        """Return the block, or its halves, to run again after the crash of its worker."""
        again = replace(block, deaths=block.deaths + 1)
        if not block.is_suspect or not was_alone:
            return [again]
        if len(block.rows) > 1:
            half = len(block.rows) // 2
            return [replace(again, rows=block.rows[:half]), Block(block.start + half, block.rows[half:], again.deaths)]
        message = f"{again.deaths} workers have died while they had this row, the last of them alone with it: {why}"
        self._ended[block.start] = [Outcome(failure=Failure("WorkerDied", message))]
        self._num_crashes = 0
        return []
