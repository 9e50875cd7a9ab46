"""`RayWorkers`: runs rows on actors of Ray, on this machine or on a cluster; order, retries and limits are those of `BlockRunner`. An actor
(`RowWorker`) has one model, and runs the rows of all its blocks through one `Flow`; an error of these packages at loading is a
`SetupError`. Without an address Ray is started on this machine and shut down, unless this process is connected already.

Plain actors with a bounded number of blocks are used, not Ray Data, which reports the results of a job only at its end; see
docs/pipelines.md. No other module imports ray.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from outlines_cont.defaults import num_cores
from outlines_cont.pipelines.blocks import Block, BlockReport, BlockRunner
from outlines_cont.pipelines.rows.errors import SetupError
from outlines_cont.pipelines.rows.outcome import Failure, Outcome

if TYPE_CHECKING:  # it imports torch
    from outlines_cont.pipelines.flow import Flow

_OBJECT_STORE_BYTES = 256 * 2**20
_NO_RAY = "running several workers needs Ray: `pip install 'outlines-cont[ray]'`"


class OpensFlow(Protocol):
    """The method of an `Extractor` that a worker uses."""

    def flow(self) -> Flow:
        """Return a new flow of rows through the model."""


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


@dataclass(slots=True, eq=False)
class _RunningBlock:
    """The rows of a block, and their outcomes so far."""

    rows: Sequence[Any]
    answer: Future[list[Outcome]]
    ended: dict[int, Outcome] = field(default_factory=dict)

    def note(self, at: int, outcome: Outcome) -> None:
        """Store the outcome of a row; the last one resolves the future."""
        self.ended[at] = replace(outcome, value=None)  # values of the user's types may not be picklable
        if len(self.ended) == len(self.rows):
            self.answer.set_result([self.ended[number] for number in range(len(self.rows))])


class RowWorker:
    """The actor of a worker: one thread runs all its rows through a single `Flow`, so that the batch stays full across blocks.

    Ray calls `run` in several threads, each with a block, which wait for a future of its outcomes; an exception in the thread of the flow
    is the result of all open and later blocks.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[_RunningBlock] = SimpleQueue()
        self._open: list[_RunningBlock] = []
        self._rows: deque[tuple[_RunningBlock, int]] = deque()
        self._broken: BaseException | None = None

    def load(self, make: Callable[[], OpensFlow]) -> Failure | None:
        """Make the extractor, and start the thread of its flow; return a failure if it cannot be made."""
        try:
            extractor = make()
        except Exception as error:  # without an extractor, `run` would wait for ever
            return Failure.of(error)
        threading.Thread(target=self._drive, args=(extractor,), daemon=True).start()
        return None

    def run(self, rows: Sequence[Any]) -> list[Outcome]:
        """Return the outcome of each row; a `Failure` instead of a row is its outcome."""
        block = _RunningBlock(rows, Future())
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
                    for (block, at), outcome in flow.step():
                        block.note(at, outcome)
                    self._open = [block for block in self._open if not block.answer.done()]
        except BaseException as error:
            self._broken = error
            while not self._given.empty():
                self._open.append(self._given.get())
            for block in self._open:
                block.answer.set_exception(error)

    def _take(self, flow: Flow) -> None:
        """Take the blocks from the queue; wait for one if the worker is idle."""
        is_idle = flow.is_empty and not self._rows
        try:
            while True:
                block = self._given.get(block=is_idle)
                is_idle = False
                self._open.append(block)
                self._rows.extend((block, at) for at in range(len(block.rows)))
        except Empty:
            return

    def _next(self, flow: Flow) -> Iterator[tuple[tuple[_RunningBlock, int], Any]]:
        """Yield the next rows while the flow has room; rows that could not be read are outcomes already."""
        room = flow.room
        while self._rows and room > 0:
            block, at = self._rows.popleft()
            row = block.rows[at]
            if isinstance(row, Failure):
                block.note(at, Outcome(failure=row))
                continue
            room -= 1
            yield (block, at), row


class RayWorkers:
    """Turns rows into outcomes on actors of Ray, in each of which `make` makes an `Extractor`; raises `SetupError` without Ray."""

    def __init__(self, make: Callable[[], Any], options: WorkerOptions) -> None:
        self._ray = check_ray()
        self._make = make
        self._options = options
        self._is_here = options.address in (None, "local")
        shared = max(num_cores() // options.workers, 1) if self._is_here else 1
        self._cpus = shared if options.cpus is None else options.cpus

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
            pool = RayWorkerPool(self._ray, self._make, self._cpus, self._options.gpus)
            given = (Failure.of(row) if isinstance(row, Exception) else dict(row) for row in rows)
            yield from BlockRunner(pool, self._options.workers, self._options.block_size).outcomes(given)
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


class RayWorkerPool:
    """The `WorkerPool` of actors of Ray; `ray` is the package, connected to a cluster."""

    def __init__(self, ray: Any, make: Callable[[], Any], cpus: int, gpus: float) -> None:
        self._ray = ray
        self._make = ray.put(make)
        # A thread for each block that a worker may have, and one to load.
        self._actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=4, max_restarts=0)(RowWorker)
        self._loading: dict[Any, Any] = {}
        self._running: dict[Any, tuple[Any, int]] = {}

    def start_worker(self) -> Any:
        """Start an actor that loads its model."""
        worker = self._actor.remote()
        self._loading[worker.load.remote(self._make)] = worker
        return worker

    def give(self, worker: Any, block: Block) -> None:
        """Send a block to an actor, which runs it after it has loaded its model."""
        self._running[worker.run.remote(block.rows)] = worker, block.start

    def wait(self) -> BlockReport:
        """Wait until an actor has finished a block or crashed; raise `SetupError` if it cannot load its model."""
        while True:
            (ready,), _ = self._ray.wait([*self._loading, *self._running], num_returns=1)
            if ready in self._loading:
                self._check_loaded(ready)
                continue
            worker, start = self._running.pop(ready)
            try:
                return BlockReport(worker, start, self._ray.get(ready))
            except self._ray.exceptions.RayError as error:
                first = next((line for line in str(error).splitlines() if line.strip()), "")
                return BlockReport(worker, start, None, f"{type(error).__name__}: {first}"[:300])

    def stop_worker(self, worker: Any) -> None:
        """Kill an actor."""
        self._loading = {ref: other for ref, other in self._loading.items() if other is not worker}
        self._running = {ref: place for ref, place in self._running.items() if place[0] is not worker}
        self._ray.kill(worker)

    def _check_loaded(self, ready: Any) -> None:
        self._loading.pop(ready)
        try:
            failure = self._ray.get(ready)
        except self._ray.exceptions.RayError:
            return  # it has crashed, so its blocks fail, too
        if failure is not None:
            raise SetupError(f"a worker cannot begin: {failure}")
