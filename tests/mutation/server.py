"""A process that has imported the code and collected the tests, and forks for each mutant: nothing is imported anew for it."""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from tests.mutation.copy import Job, die_with_parent, ended, lead_group
from tests.mutation.coverage_map import PYTEST, Recording
from tests.mutation.patch import LiveFunctions, changed_code

CANNOT = 71
FAILED = 70
_STARTING_SECONDS = 900.0


class Request(NamedTuple):
    """Some tests to run, with one file changed or as it is; or the tests of a file, of which is written down what they run.

    Attributes:
        path: the file that is changed, from the root of the tree; empty if none is changed.
        before: the text of the file when the tests were collected.
        after: the text that takes its place.
        tests: the ids of the tests, each with the most seconds that it may take.
        seconds: how long all of it may take.
        recorded: the test file whose tests are run in its place.
        target: the file to which it is written what they run.
    """

    path: str
    before: str
    after: str
    tests: dict[str, float]
    seconds: float
    recorded: str = ""
    target: str = ""


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        result: the number that the process ended with (0: no test failed), `"hangs"` or `"dies"`.
        test: the test that failed, or ran when the process ended; empty if that is not known.
        seconds: how long it took.
    """

    result: int | str
    test: str
    seconds: float


class TestServer:
    """Runs tests of a copy of the tree, request by request, each in a fork of one process.

    Args:
        tree: the copy.
        files: the test files that are collected, from its root.
        is_recording: whether to write down what the tests run.
    """

    __test__ = False

    def __init__(self, tree: Path, files: Sequence[str], *, is_recording: bool = False) -> None:
        asked, self._ask = os.pipe()
        self._answers, told = os.pipe()
        self._job = Job(tree, lambda: _serve(tree, files, asked, told, is_recording), float("inf"))
        os.close(asked)
        os.close(told)
        self._read = b""
        deadline = time.monotonic() + _STARTING_SECONDS
        while (ready := self._line()) is None:
            if self._job.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"expected pytest to collect the tests in a copy of the tree; see {tree}/mutation.log")
            time.sleep(0.1)
        self.num_collected = int(ready)

    def ask(self, request: Request) -> None:
        """Begin to run tests; one request at a time."""
        data = memoryview(json.dumps(request).encode() + b"\n")
        while data:
            data = data[os.write(self._ask, data) :]

    def answer(self) -> Answer | None:
        """What became of the request; None while it runs."""
        line = self._line()
        if line is not None:
            return Answer(*json.loads(line))
        return Answer("dies", "", 0.0) if self._job.poll() is not None else None

    def stop(self) -> None:
        """End the process."""
        os.close(self._ask)
        os.close(self._answers)
        self._job.stop()

    def _line(self) -> bytes | None:
        while select.select([self._answers], [], [], 0)[0]:
            data = os.read(self._answers, 1 << 16)
            if not data:
                break
            self._read += data
        line, end, rest = self._read.partition(b"\n")
        if not end:
            return None
        self._read = rest
        return line


def answered(server: TestServer, request: Request) -> Generator[None, None, Answer]:
    """Ask, and wait for the answer in steps."""
    server.ask(request)
    while (answer := server.answer()) is None:
        yield
    return answer


@contextmanager
def servers(trees: Sequence[Path], files: Sequence[str], *, is_recording: bool = False) -> Iterator[list[TestServer]]:
    """One server for each of some trees; they end with the block."""
    running: list[TestServer] = []
    try:
        for tree in trees:
            running.append(TestServer(tree, files, is_recording=is_recording))
        yield running
    finally:
        for server in running:
            server.stop()


def _serve(tree: Path, files: Sequence[str], asked: int, told: int, is_recording: bool) -> int:
    """Collect the tests and run what is asked for, until there is nobody left to ask."""
    import pytest
    from hypothesis import Phase, settings

    # As the profile `ci`, but the first example that fails is enough: it is not made smaller.
    phases = (Phase.explicit, Phase.generate, Phase.target)
    settings.register_profile("mutation", deadline=None, max_examples=60, derandomize=True, phases=phases, report_multiple_bugs=False)
    recording = Recording(tree) if is_recording else None
    with open(asked, encoding="utf-8") as requests, open(told, "w", encoding="utf-8") as answers:
        arguments = [*PYTEST, "--hypothesis-profile=mutation", f"--basetemp={tree}-temporary"]
        return int(pytest.main([*arguments, *files], plugins=[_Serving(tree, requests, answers, recording)]))


class _Serving:
    """Takes the place of pytest's loop over the tests. A plugin."""

    def __init__(self, tree: Path, requests: TextIO, answers: TextIO, recording: Recording | None) -> None:
        self._tree = tree
        self._requests = requests
        self._answers = answers
        self._recording = recording
        self._failed = ""
        self._running = tree / "mutation.running"

    def pytest_runtestloop(self, session: Any) -> bool:
        """Answer requests until there are no more."""
        self._items = {item.nodeid: item for item in session.items}
        self._imported = {} if self._recording is None else self._recording.stop()
        gc.unfreeze()  # what is frozen is not found
        self._functions = LiveFunctions(self._tree)
        gc.freeze()
        self._tell(len(self._items))
        for line in self._requests:
            self._tell(self._run(Request(*json.loads(line))))
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember which test failed."""
        if report.failed:
            self._failed = report.nodeid

    def _tell(self, value: object) -> None:
        print(json.dumps(value), file=self._answers, flush=True)

    def _run(self, request: Request) -> Answer:
        begun = time.monotonic()
        self._running.unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            self._become(request)
        lead_group(pid)
        while (result := ended(pid, begun + request.seconds)) is None:
            time.sleep(0.003)
        test = self._running.read_text(encoding="utf-8") if self._running.exists() else ""
        return Answer(result, test, time.monotonic() - begun)

    def _become(self, request: Request) -> NoReturn:
        """Become the process that runs the tests of a request."""
        code = FAILED
        try:
            os.setpgid(0, 0)
            die_with_parent()
            if request.recorded:
                code = self._record(request.recorded, Path(request.target))
            else:
                code = self._changed(request) or self._first_failure(request.tests)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _record(self, file: str, target: Path) -> int:
        """Run the tests of a file, and write down what they run."""
        recording = Recording(self._tree)
        items = [item for name, item in self._items.items() if name.partition("::")[0] == file]
        for item in items[:1]:
            item.config.pluginmanager.register(recording)
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        recording.write(target, self._imported)
        return int(bool(self._failed))

    def _changed(self, request: Request) -> int:
        """Change the functions that differ; return 0 if that is done."""
        if not request.path:
            return 0
        pairs = changed_code(request.before, request.after, self._tree / request.path)
        return 0 if pairs is not None and self._functions.replace(pairs) else CANNOT

    def _first_failure(self, tests: dict[str, float]) -> int:
        """Run tests until one fails."""
        import pytest

        items = [self._items[test] for test in tests if test in self._items]
        for item, following in zip_longest(items, items[1:]):
            item.add_marker(pytest.mark.timeout(tests[item.nodeid]), append=False)
            self._running.write_text(item.nodeid, encoding="utf-8")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return 1
        return 0
