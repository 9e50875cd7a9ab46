"""`RayWorkers`: runs rows on actors of Ray with one model each, on this machine or on a cluster; order, retries and limits are those of
`BlockRunner`. A cluster on this machine is started and shut down, unless Ray runs already; an actor that cannot load its model raises
`SetupError`.

Plain actors with a bounded window of blocks, and no dataset of Ray Data: there what a job has done is known only at its end; see
docs/pipelines.md. No other module imports ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlines_cont.defaults import num_cores
from outlines_cont.pipelines.blocks import Block, BlockReport, BlockRunner
from outlines_cont.pipelines.rows.errors import SetupError
from outlines_cont.pipelines.rows.outcome import Failure, Outcome

_OBJECT_STORE_BYTES = 256 * 2**20
_NO_RAY = "running several workers needs Ray: `pip install 'outlines-cont[ray]'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The number of workers and their resources.

    Attributes:
        workers: how many, each with a model of its own.
        address: of a cluster of Ray, such as `auto` or `ray://host:10001`; None begins Ray on this machine, and ends it.
        cpus: those of a worker, which are its threads, too; None shares out those of this machine, and is 1 on a cluster.
        gpus: those of a worker.
        block_size: rows that a worker is given at once.
    """

    workers: int
    address: str | None = None
    cpus: int | None = None
    gpus: float = 0.0
    block_size: int = 64


def check_ray() -> Any:
    """Return the package.

    Raises:
        SetupError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics; it is read when ray is imported
    try:
        import ray
    except ImportError as error:
        raise SetupError(_NO_RAY) from error
    return ray


class RayWorkers:
    """Turns rows into outcomes, as an `Extractor` does, on actors of Ray.

    Args:
        make: makes the extractor of a worker, in its process.
        options: what workers there are.

    Raises:
        SetupError: Ray is not installed.
    """

    def __init__(self, make: Callable[[], Any], options: WorkerOptions) -> None:
        self._ray = check_ray()
        self._make = make
        self._options = options

    def outcomes(
        self, rows: Iterable[Mapping[str, Any] | Exception], show: Any = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order. Rows are taken as there is room for them.

        Raises:
            SetupError: a worker cannot be made, or the cluster does not exist.
            WorkersFailed: too many workers crash in succession.
        """
        is_ours = self._begin()
        try:
            pool = RayWorkerPool(self._ray, self._make, self._cpus, self._options.gpus)
            given = (Failure.of(row) if isinstance(row, Exception) else dict(row) for row in rows)
            yield from BlockRunner(pool, self._options.workers, self._options.block_size).outcomes(given)
        finally:
            if is_ours:
                self._ray.shutdown()

    @property
    def _cpus(self) -> int:
        options = self._options
        if options.cpus is not None:
            return options.cpus
        return max(num_cores() // options.workers, 1) if self._is_here else 1

    @property
    def _is_here(self) -> bool:
        """Whether Ray is started on this machine, not on a running cluster."""
        return self._options.address in (None, "local")

    def _begin(self) -> bool:
        """Connect to Ray, or begin it; return whether it is ours to end."""
        if self._ray.is_initialized():
            return False
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._is_here:
            options |= {
                "num_cpus": max(self._options.workers * self._cpus, num_cores()),
                "include_dashboard": False,  # it answers to anybody who reaches its port
                "object_store_memory": _OBJECT_STORE_BYTES,
                # With the niceness of Ray, 15, workers stand still as soon as anything else runs on the machine.
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
    """The `WorkerPool` of actors of Ray.

    Args:
        ray: the package, connected.
        make: makes the extractor of a worker, in its process.
        cpus: those of a worker.
        gpus: those of a worker.
    """

    def __init__(self, ray: Any, make: Callable[[], Any], cpus: int, gpus: float) -> None:
        from outlines_cont.pipelines.worker import (
            RowWorker,  # it imports torch, of which checks of options have no need
        )

        self._ray = ray
        self._make = ray.put(make)
        # A thread for each block that a worker may have, and one to load.
        self._actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=4, max_restarts=0)(RowWorker)
        self._loading: dict[Any, Any] = {}
        self._running: dict[Any, tuple[Any, int]] = {}

    def start_worker(self) -> Any:
        """Begin an actor, and have it load its model."""
        worker = self._actor.remote()
        self._loading[worker.load.remote(self._make)] = worker
        return worker

    def give(self, worker: Any, block: Block) -> None:
        """Send a block to an actor; one that still loads runs it afterwards."""
        self._running[worker.run.remote(block.rows)] = worker, block.start

    def wait(self) -> BlockReport:
        """Wait for an actor.

        Raises:
            SetupError: one cannot load its model.
        """
        while True:
            (ready,), _ = self._ray.wait([*self._loading, *self._running], num_returns=1)
            if ready in self._loading:
                self._loaded(ready)
                continue
            worker, start = self._running.pop(ready)
            try:
                return BlockReport(worker, start, self._ray.get(ready))
            except self._ray.exceptions.RayError as error:
                return BlockReport(worker, start, None, _first_line(error))

    def stop_worker(self, worker: Any) -> None:
        """End an actor at once."""
        self._loading = {ref: other for ref, other in self._loading.items() if other is not worker}
        self._running = {ref: place for ref, place in self._running.items() if place[0] is not worker}
        self._ray.kill(worker)

    def _loaded(self, ready: Any) -> None:
        self._loading.pop(ready)
        try:
            failure = self._ray.get(ready)
        except self._ray.exceptions.RayError:
            return  # it has crashed, which its blocks will report
        if failure is not None:
            raise SetupError(f"a worker cannot begin: {failure.message}")


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
