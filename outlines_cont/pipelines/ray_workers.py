"""`BlockRunner`: runs blocks of rows on worker processes that may crash, and yields one outcome per row, in order; at most 8 blocks per
worker are read ahead of the first unfinished row. A block that has lost two workers is suspect: it runs alone on a worker, and each further
crash bisects it, until a single row fails with `WorkerDied`. Too many crashes in succession abort the run with `WorkersFailed`.

The blocks of a crashed worker go to the head of the queue. Before any block has been finished, `num_workers + 1` crashes in succession are
tolerated; later as many as a bisection needs.

`RayWorkers`: runs rows on actors of Ray, on this machine or on a cluster; order, retries and limits are those of `BlockRunner`. An actor
(`RowWorker`) has one model, whose engine runs the rows of its blocks together; an error at loading is a `SetupError`. Without an address
Ray is started on this machine and shut down, unless this process is connected already.

Plain actors with a bounded number of blocks are used, not Ray Data, which reports the results of a job only at its end; see
docs/pipelines.md. No other module imports ray.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from outlines_cont.checks import num_cores
from outlines_cont.pipelines.outcome import Failure, Outcome, Outcomes, SetupError, WorkersFailed

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


class BlockRunner:
    """Runs rows on workers, in blocks, and restarts workers that crash; at most `8 * num_workers` blocks are in memory."""

    def __init__(self, pool: WorkerPool, num_workers: int, block_size: int) -> None:
        self._pool = pool
        self._num_workers = num_workers
        self._block_size = block_size
        self._max_ahead = _AHEAD * num_workers * block_size  # in rows
        self._workers: dict[Any, dict[int, Block]] = {}  # the unfinished blocks of each by their first row
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
                if is_over and not any(self._workers.values()):
                    return
                self._receive(self._pool.wait())
                while self._next in self._ended:
                    found = self._ended.pop(self._next)
                    self._next += len(found)
                    yield from found
        finally:
            while self._workers:
                self._pool.stop_worker(self._workers.popitem()[0])

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
            self._workers[worker][block.start] = block
            self._pool.give(worker, block)

    def _block(self, source: Iterator[Any]) -> Block | None:
        if self._taken - self._next >= self._max_ahead:
            return None
        rows = list(islice(source, self._block_size))
        self._taken += len(rows)
        return Block(self._taken - len(rows), rows) if rows else None

    def _free(self, block: Block) -> Any:
        """Return the least busy worker with room for the block, if need be a new one; None if there is none."""

        def has_room(blocks: Mapping[int, Block]) -> bool:
            is_alone = any(other.is_suspect for other in [block, *blocks.values()])
            return len(blocks) < (1 if is_alone else _AT_ONCE)

        free = [worker for worker, blocks in self._workers.items() if has_room(blocks)]
        worker = min(free, key=lambda worker: len(self._workers[worker]), default=None)
        if len(self._workers) < self._num_workers and (worker is None or self._workers[worker]):
            worker = self._pool.start_worker()
            self._workers[worker] = {}
        return worker

    def _receive(self, report: BlockReport) -> None:
        if report.outcomes is None:
            self._requeue_blocks(report.worker, report.why)
            return
        block = self._workers[report.worker].pop(report.start)
        assert len(report.outcomes) == len(block.rows)
        self._ended[block.start] = report.outcomes
        self._num_crashes, self._has_worked = 0, True

    def _requeue_blocks(self, worker: Any, why: str) -> None:
        blocks = self._workers.pop(worker)
        self._pool.stop_worker(worker)
        self._num_crashes += 1
        for block in sorted(blocks.values(), key=lambda block: block.start, reverse=True):
            self._again.extendleft(reversed(self._bisected(block, why, was_alone=len(blocks) == 1)))
        # Once a block has been finished: enough crashes to bisect another one down to a row.
        enough = 2 * _MOST_DEATHS * self._num_workers + 2 * self._block_size.bit_length()
        if self._num_crashes > (enough if self._has_worked else self._num_workers + 1):
            raise WorkersFailed(
                f"expected workers that work, but {self._num_crashes} of them have died one after the other, the last of them so: {why}"
            )

    def _bisected(self, block: Block, why: str, *, was_alone: bool) -> list[Block]:
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


_OBJECT_STORE_BYTES = 256 * 2**20
_NO_RAY = "running several workers needs Ray: `pip install 'outlines-cont[ray]'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The number of workers and their resources.

    Attributes:
        workers: their number; each has a model of its own.
        address: of a cluster of Ray, such as `auto` or `ray://host:10001`; None starts Ray on this machine, and shuts it down.
        cpus: cores and threads of a worker; None divides those of this machine among the workers, and is 1 on a cluster.
        gpus: those of a worker.
        block_size: rows of a block.
    """

    workers: int
    address: str | None = None
    cpus: int | None = None
    gpus: float = 0.0
    block_size: int = 64


def check_ray() -> Any:
    """Return the package, or raise `SetupError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics; it is read when ray is imported
    try:
        import ray
    except ImportError as error:
        raise SetupError(_NO_RAY) from error
    return ray


class RowWorker:
    """The actor of a worker, with an extractor.

    Ray calls `run` in two threads, each with a block. Both submit their rows to one engine, which runs them in one batch: as the rows of
    a block end, those of the next begin.
    """

    def __init__(self, make: Callable[[], Outcomes]) -> None:
        self._failure: Failure | None = None
        try:
            self._extractor = make()
        except Exception as error:  # raised here, it would be one of Ray, and the worker would be started again
            self._failure = Failure.of(error)

    def run(self, rows: Sequence[Any]) -> list[Outcome] | Failure:
        """Return the outcome of each row (of an exception in place of a row, the exception), or why there is no extractor."""
        if self._failure is not None:
            return self._failure
        # Values of the user's types may not be picklable.
        return [replace(outcome, value=None) for outcome in self._extractor.outcomes(rows)]


class RayWorkers:
    """Turns rows into outcomes on actors of Ray, in each of which `make` makes an `Extractor`; the `WorkerPool` of these actors.

    Raises:
        SetupError: Ray is not installed.
    """

    def __init__(self, make: Callable[[], Any], options: WorkerOptions) -> None:
        self._ray = check_ray()
        self._make = make
        self._options = options
        self._is_here = options.address in (None, "local")
        shared = max(num_cores() // options.workers, 1) if self._is_here else 1
        self._cpus = shared if options.cpus is None else options.cpus
        self._running: dict[
            Any, tuple[Any, int]
        ] = {}  # workers and first rows by references to the results of their calls

    def outcomes(
        self, rows: Iterable[Mapping[str, Any] | Exception], show: Any = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order. Rows are taken when there is room for them.

        Raises:
            SetupError: a worker cannot load its model, or the cluster does not exist.
            WorkersFailed: too many workers crash in succession.
        """
        is_ours = self._connect()
        try:
            remote = self._ray.remote(
                num_cpus=self._cpus, num_gpus=self._options.gpus, max_concurrency=_AT_ONCE, max_restarts=0
            )
            self._actor, self._made = remote(RowWorker), self._ray.put(self._make)
            yield from BlockRunner(self, self._options.workers, self._options.block_size).outcomes(rows)
        finally:
            if is_ours:
                self._ray.shutdown()

    def _connect(self) -> bool:
        """Connect to Ray, or start it; return whether to shut it down afterwards."""
        if self._ray.is_initialized():
            return False
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._is_here:
            options |= {
                "num_cpus": max(self._options.workers * self._cpus, num_cores()),
                "include_dashboard": False,  # its port has no authentication
                "object_store_memory": _OBJECT_STORE_BYTES,
                # With Ray's default niceness, 15, workers would get no processor time while anything else runs.
                "_system_config": {"worker_niceness": 0},
            }
        try:
            self._ray.init(address=self._options.address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SetupError(
                f"expected a cluster of Ray at {self._options.address!r}, got none: {error}. Begin one with `ray start --head`, or leave "
                "out the address to use this machine."
            ) from error
        return True

    def start_worker(self) -> Any:
        """Start an actor, which loads its model."""
        return self._actor.remote(self._made)

    def give(self, worker: Any, block: Block) -> None:
        """Send a block to an actor, which runs it after it has loaded its model."""
        self._running[worker.run.remote(block.rows)] = worker, block.start

    def wait(self) -> BlockReport:
        """Wait until an actor has finished a block or crashed; raise `SetupError` if it cannot load its model."""
        (ready,), _ = self._ray.wait([*self._running], num_returns=1)
        worker, start = self._running.pop(ready)
        try:
            found = self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            return BlockReport(worker, start, None, f"{type(error).__name__}: {first}"[:300])
        if isinstance(found, Failure):
            raise SetupError(f"a worker cannot begin: {found}")
        return BlockReport(worker, start, found)

    def stop_worker(self, worker: Any) -> None:
        """Kill an actor."""
        self._running = {ref: place for ref, place in self._running.items() if place[0] is not worker}
        self._ray.kill(worker)
