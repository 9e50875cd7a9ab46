"""Which test runs which lines: recorded test file by test file with `coverage`, and kept until the code or the tests change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGES = ("fsm", "outlines_cont")
PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=ci", "--tb=line"]
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is imported before the fork is not rewritten


@dataclass
class CoverageMap:
    """What was recorded of some test files.

    Attributes:
        seconds: how long each test takes; only tests that pass.
        lines: for each file of the packages, the tests that run it, each with the numbers of its lines as bits.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Add what was recorded of a test file."""
        known = json.loads(path.read_text(encoding="utf-8"))
        self.seconds.update(known["seconds"])
        for name, tests in known["lines"].items():
            self.lines.setdefault(name, {}).update((test, int(bits, 16)) for test, bits in tests.items())

    def running(self, path: str, lines: Iterable[int]) -> list[str]:
        """The tests that run one of some lines of a file."""
        bits = sum(1 << line for line in set(lines))
        return [test for test, found in self.lines.get(path, {}).items() if found & bits and test in self.seconds]

    def in_order(self, tests: Sequence[str], max_seconds: float) -> list[str]:
        """The tests that are likely to find something soon, as far as they take no longer than `max_seconds` together.

        The fastest first; properties, which look at many examples, as if they took a tenth; then the other tests of the same files,
        as what is computed once for a process counts for the first test that asks for it.
        """
        files = {test.partition("::")[0] for test in tests}
        others = [test for test in self.seconds if test.partition("::")[0] in files and test not in set(tests)]
        chosen, left = [], max_seconds
        for test in (*sorted(tests, key=self._price), *sorted(others, key=self._price)):
            if self.seconds[test] <= left or not chosen:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen

    def _price(self, test: str) -> float:
        return self.seconds[test] * (0.1 if "/property/" in test else 1)


def digest(tree: Path, test_file: str) -> str:
    """A name for what a recording of a test file depends on: the packages, the helpers of the tests, and the file."""
    paths = [path for package in PACKAGES for path in (tree / package).rglob("*.py")]
    paths += [*(tree / "tests").glob("*.py"), tree / test_file]
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:20]


def record(tree: Path, test_file: str, target: Path) -> int:
    """Run a test file of a copy of the tree and write down what its tests run. For a process of its own."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, config_file=False, source=[str(tree / name) for name in PACKAGES])
    recorder = _Recorder(measured)
    measured.start()
    code = int(pytest.main([*PYTEST, test_file], plugins=[recorder]))
    measured.stop()
    lines: dict[str, dict[str, int]] = {}
    data = measured.get_data()
    for path in data.measured_files():
        tests = lines.setdefault(str(Path(path).relative_to(tree)), {})
        for line, contexts in data.contexts_by_lineno(path).items():
            for test in filter(None, contexts):
                tests[test] = tests.get(test, 0) | 1 << line
    written = {"seconds": recorder.seconds, "lines": {p: {t: f"{b:x}" for t, b in m.items()} for p, m in lines.items()}}
    target.write_text(json.dumps(written), encoding="utf-8")
    return code


class _Recorder:
    """Tells `coverage` which test runs now, and adds up how long each takes."""

    def __init__(self, measured: Any) -> None:
        self._measured = measured
        self._failed: set[str] = set()
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self._failed.add(report.nodeid)
            self.seconds.pop(report.nodeid, None)
        elif report.nodeid not in self._failed:
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration


class Chosen:
    """Runs some tests only, in a given order. A plugin of pytest.

    Args:
        tests: their ids.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep them, in that order."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid]
        )
