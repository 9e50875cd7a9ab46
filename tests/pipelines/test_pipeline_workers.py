"""Workers that die: every row has one outcome, in its order, whoever dies when."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import engine_of, pipelines
from outlines_cont.pipelines import Failure, Outcome, RowError, SetupError, WorkersFailed
from outlines_cont.pipelines.ray_workers import Block, BlockReport, BlockRunner, RayWorkers, RowWorker, WorkerOptions
from tests.examples import examples
from tests.fakes import random_model
from tests.saved_model import save_model

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install -c constraints.txt '.[ray]'")


class FakeCrew:
    """Workers without processes: whoever waits decides who has ended what, and who has died.

    Args:
        choices: which of the blocks that were given has something to say, and whether its worker dies.
        poison: rows that kill whoever has them.
    """

    def __init__(self, choices: Iterator[tuple[int, bool]], poison: set[Any]) -> None:
        self._choices = choices
        self._poison = poison
        self._given: list[tuple[Any, Block]] = []
        self.alive: list[Any] = []
        self.most_rows = 0
        self.rows_run = 0
        self.deaths = Counter[Any]()  # of workers, by the rows that they had

    def start_worker(self) -> Any:
        worker = object()
        self.alive.append(worker)
        return worker

    def give(self, worker: Any, block: Block) -> None:
        assert worker in self.alive
        self._given.append((worker, block))
        assert sum(other is worker for other, _ in self._given) <= 2
        self.most_rows = max(self.most_rows, sum(len(block.rows) for _, block in self._given))

    def wait(self) -> BlockReport:
        which, dies = next(self._choices, (0, False))
        worker, block = self._given.pop(which % len(self._given))
        if dies or self._poison & set(block.rows):
            lost = [block, *(had for other, had in self._given if other is worker)]
            self.deaths.update(row for had in lost for row in had.rows)
            return BlockReport(worker, block.start, None, "killed")
        self.rows_run += len(block.rows)
        return BlockReport(worker, block.start, [Outcome(row) for row in block.rows])

    def stop_worker(self, worker: Any) -> None:
        self.alive.remove(worker)
        self._given = [(other, block) for other, block in self._given if other is not worker]


@settings(max_examples=examples(150))
@given(
    st.integers(0, 40),
    st.integers(1, 4),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30),
    st.sets(st.integers(0, 39), max_size=2),
)
def test_every_row_has_one_outcome_in_its_order(
    count: int, workers: int, size: int, choices: list[tuple[int, bool]], poison: set[int]
) -> None:
    pool = FakeCrew(iter([(which, dies and at % 3 == 1) for at, (which, dies) in enumerate(choices)]), poison)
    read = 0

    def rows() -> Iterator[int]:
        nonlocal read
        for row in range(count):
            read += 1
            yield row

    runner = BlockRunner(pool, workers, size)
    outcomes = []
    try:
        for outcome in runner.outcomes(rows()):
            outcomes.append(outcome)
            assert read - len(outcomes) <= 8 * workers * size + size
    except WorkersFailed:  # who dies before anybody has ended something is no row's fault
        assert poison or any(dies for _, dies in choices)
        return
    # Whoever kills workers has failed; nobody else has, but where three of them died with a row, the last alone with it.
    assert len(outcomes) == count
    for row, outcome in enumerate(outcomes):
        has_failed = outcome.failure is not None
        assert has_failed if row in poison else not has_failed or pool.deaths[row] > 2
        assert outcome.record == (None if has_failed else row)
        assert outcome.failure is None or "killed" in outcome.failure.message
    kinds = {outcome.failure.type for outcome in outcomes if outcome.failure is not None}
    assert kinds <= {"WorkerDied"}
    assert not pool.alive


def test_workers_that_never_work_are_an_error() -> None:
    pool = FakeCrew(iter([(0, True)] * 100), set())
    with pytest.raises(WorkersFailed, match="4 of them have died one after the other, the last of them so: killed"):
        list(BlockRunner(pool, 2, 16).outcomes(range(200)))
    assert not pool.alive


def test_who_stops_lets_the_workers_go() -> None:
    pool = FakeCrew(iter(()), set())
    outcomes = BlockRunner(pool, 2, 4).outcomes(range(100))
    next(outcomes)
    assert pool.alive
    outcomes.close()  # type: ignore[attr-defined]
    assert not pool.alive


# --- in the process of a worker

SCHEMA = {"enum": ["a", "bb"]}


def make() -> pipelines.Extractor:
    return pipelines.Extractor(random_model("llama"), SCHEMA, batch_size=4)


def test_a_worker_runs_the_rows_of_several_blocks_side_by_side() -> None:
    worker = RowWorker(make)
    answers: dict[int, Any] = {}
    blocks: dict[int, list[Any]] = {at: [{"text": f"row {at} {number}"} for number in range(5)] for at in range(3)}
    blocks[1][2] = RowError("no row")
    threads = [Thread(target=lambda at=at: answers.update({at: worker.run(blocks[at])})) for at in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone = make()
    for at, rows in blocks.items():
        expected = list(alone.outcomes(rows))
        assert [outcome.record for outcome in expected] == [outcome.record for outcome in answers[at]]
        assert [outcome.failure for outcome in expected] == [outcome.failure for outcome in answers[at]]
    assert worker.run([]) == []


def test_two_threads_share_the_width_of_an_extractor() -> None:
    made, most = make(), 0

    def rows(start: int) -> Iterator[Any]:
        nonlocal most
        for number in range(20):
            most = max(most, engine_of(made.model).num_running)
            yield {"text": f"row {start + number}"}

    found: dict[int, list[Any]] = {}
    threads = [Thread(target=lambda at=at: found.update({at: [*made.outcomes(rows(at))]})) for at in (0, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 1 < most <= 4 + 1  # a thread that has none may begin one
    assert [outcome.record for at in (0, 20) for outcome in found[at]] == [
        outcome.record for outcome in make().outcomes(f"row {number}" for number in range(40))
    ]


@pytest.mark.parametrize("error", [SetupError("no model"), KeyError("no model"), ImportError("no model")])
def test_a_model_that_cannot_be_loaded_is_told(error: Exception) -> None:
    def refuse() -> Any:
        raise error

    assert RowWorker(refuse).run([]) == Failure(type(error).__name__, str(error))


# --- on Ray


@pytest.mark.parametrize(("workers", "cores", "cpus"), [(3, 1, 3), (2, 8, 8), (2, 9, 9)])
def test_ray_has_a_core_for_each_worker_and_never_fewer_than_the_machine(
    workers: int, cores: int, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, Any] = {}
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: begun.update(options))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("outlines_cont.pipelines.ray_workers.num_cores", lambda: cores)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")  # what is set then is put back
    assert RayWorkers(make, WorkerOptions(workers=workers))._connect()
    assert begun["num_cpus"] == cpus
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_workers_without_ray_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SetupError, match=r"pip install 'outlines-cont\[ray\]'"):
        RayWorkers(make, WorkerOptions(workers=2))


RECORD = {
    "type": "object",
    "properties": {"kind": {"enum": ["order", "invoice"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
COUNT = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on disk, a schema, and a Parquet file of 2,000 rows, one of which cannot be used."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("workers")
    (folder / "model").mkdir()
    save_model(folder / "model")
    (folder / "schema.json").write_text(json.dumps(RECORD))
    texts = [f"message {number}" if number != 1234 else None for number in range(COUNT)]
    pyarrow.parquet.write_table(pyarrow.table({"id": range(COUNT), "text": texts}), folder / "in.parquet")
    return folder


def started(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own."""
    arguments = ["in.parquet", "-s", "schema.json", "-m", "model", "-o", "out.parquet", "--workers", "2", *more]
    code = f"import sys; sys.argv[1:] = {['extract', *arguments]!r}; from outlines_cont.cli.__main__ import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "told").open("w") as told:
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, stderr=told, stdout=told)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes of actors in the session of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.getsid(int(path.name)) == process.pid
            name = (path / "cmdline").read_bytes()
        except (OSError, ProcessLookupError):
            continue
        if is_ours and name.startswith(b"ray::RowWorker"):
            found.append(int(path.name))
    return found


def lines_after(folder: Path, process: subprocess.Popen[bytes], least: int) -> int:
    """Wait until so many rows are written, and return how many are."""
    lines = folder / "out.parquet.part.jsonl"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        count = len(lines.read_bytes().splitlines()) if lines.exists() else 0
        if count >= least:
            return count
        time.sleep(0.02)
    raise AssertionError(f"fewer than {least} rows: {(folder / 'told').read_text()}")


@needs_ray
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)  # five times a process imports torch and loads a model: half a minute, several on a busy machine
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_a_worker_and_then_the_whole_job_are_killed_and_every_row_is_there_once(folder: Path) -> None:
    jobs = [started(folder)]
    try:
        _kill_and_go_on(folder, jobs)
    finally:
        for job in jobs:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(30)


def _kill_and_go_on(folder: Path, jobs: list[subprocess.Popen[bytes]]) -> None:
    import pyarrow.parquet

    (job,) = jobs
    before = lines_after(folder, job, 1)
    first, *_ = workers_of(job)
    os.kill(first, signal.SIGKILL)
    lines_after(folder, job, before + 400)  # it went on
    assert first not in workers_of(job)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(30)
    kept = (folder / "out.parquet.part.jsonl").read_bytes()
    assert not (folder / "out.parquet").exists()
    jobs.append(again := started(folder, "--resume"))
    assert again.wait(240) == 1

    told = (folder / "told").read_text()
    assert "2000 rows, 1 failed" in told
    num_kept = kept.count(b"\n")
    assert f"{num_kept} of them were there already" in told
    rows = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    assert list(range(COUNT)) == [row["id"] for row in rows]
    assert [row["id"] for row in rows if row["error"] is not None] == [1234]
    assert all(row["record"]["kind"] in ("order", "invoice") for row in rows if row["error"] is None)
    assert not (folder / "out.parquet.part.jsonl").exists()
    assert not workers_of(again)
