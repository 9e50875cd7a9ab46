"""Which test runs which lines: recorded test file by test file with `coverage`, and kept until the test file changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.mutation.moved import MovedLines

PACKAGES = ("fsm", "outlines_cont")
PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=ci", "--tb=line"]
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is imported before the fork is not rewritten
EXAMPLES = 60
"""How many examples of a property are run while it is recorded what it runs."""
IMPORT = ""
"""The name under which lines stand that run before the first test, when modules are imported."""


@dataclass
class CoverageMap:
    """What was recorded of some test files, maybe with older code: its lines are found by what stands in them.

    Attributes:
        tree: the root of the code that is asked about.
        sources: the folder with the texts of the code that was recorded, by their digests.
        seconds: how much time of a processor each test takes; only tests that pass.
        lines: for each file of the packages, and each digest of it, the tests that run it, each with the numbers of its lines as bits.
    """

    tree: Path
    sources: Path
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moved = lru_cache(maxsize=None)(self._compare)

    def add(self, path: Path) -> None:
        """Add what was recorded of a test file."""
        known = json.loads(path.read_text(encoding="utf-8"))
        self.seconds.update(known["seconds"])
        for name, tests in known["lines"].items():
            there = self.lines.setdefault(name, {}).setdefault(known["sources"][name], {})
            for test, bits in tests.items():
                there[test] = there.get(test, 0) | int(bits, 16)

    def running(self, path: str, lines: Iterable[int]) -> list[str]:
        """The tests that run one of some lines of a file."""
        wanted = set(lines)
        return [test for test in self._contexts(path, wanted) if test in self.seconds]

    def is_imported(self, path: str, lines: Iterable[int]) -> bool:
        """Return whether one of some lines of a file runs before the first test."""
        return IMPORT in self._contexts(path, set(lines))

    def _contexts(self, path: str, wanted: set[int]) -> list[str]:
        found: dict[str, None] = {}
        for source, tests in self.lines.get(path, {}).items():
            moved = self._moved(path, source)
            bits = sum(1 << line for line in (moved.earlier(wanted) if moved else wanted))
            found.update((test, None) for test, there in tests.items() if there & bits)
        return list(found)

    def _compare(self, path: str, source: str) -> MovedLines | None:
        """What has moved in a file since a text of it; None if nothing has, or the text is lost."""
        kept, now = self.sources / source, self.tree / path
        if not kept.exists() or not now.exists():
            return None
        before, after = (file.read_text(encoding="utf-8") for file in (kept, now))
        return MovedLines(before, after) if before != after else None

    def in_order(self, tests: Sequence[str], max_seconds: float) -> list[str]:
        """The tests that are likely to find something soon, as far as they take no longer than `max_seconds` together.

        The fastest first; properties, which look at many examples, as if they took a tenth; then the other tests of the same files,
        as what is computed once for a process counts for the first test that asks for it.
        """
        files = {test.partition("::")[0] for test in tests}
        running = set(tests)
        others = [test for test in self.seconds if test.partition("::")[0] in files and test not in running]
        chosen, left = [], max_seconds
        for test in (*sorted(tests, key=self._price), *sorted(others, key=self._price)):
            if self.seconds[test] <= left or not chosen:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen

    def _price(self, test: str) -> float:
        return self.seconds[test] * (0.1 if "/property/" in test else 1)


def digest(path: Path) -> str:
    """A name for the contents of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def is_of_now(recording: Path, tree: Path) -> bool:
    """Return whether a recording is of the code as it is."""
    sources = json.loads(recording.read_text(encoding="utf-8"))["sources"]
    return all((tree / path).exists() and digest(tree / path) == known for path, known in sources.items())


class Recording:
    """What the tests of a file run: while they run, it is told which. A plugin of pytest.

    Args:
        tree: the copy of the tree.
    """

    def __init__(self, tree: Path) -> None:
        import coverage

        self._tree = tree
        self._measured = coverage.Coverage(data_file=None, config_file=False, source=[str(tree / name) for name in PACKAGES])
        self._measured.set_option("run:disable_warnings", ["no-data-collected"])  # all tests of a file may be skipped
        self._seconds: dict[str, float] = {}
        self._measured.start()

    def stop(self) -> dict[str, dict[str, int]]:
        """Stop, and return the lines that each test has run as bits, by the files of the packages."""
        self._measured.stop()
        data, lines = self._measured.get_data(), dict[str, dict[str, int]]()
        for path in data.measured_files():
            tests = lines.setdefault(str(Path(path).relative_to(self._tree)), {})
            for line, contexts in data.contexts_by_lineno(path).items():
                for test in contexts:
                    tests[test] = tests.get(test, 0) | 1 << line
        return lines

    def write(self, target: Path, imported: dict[str, dict[str, int]]) -> None:
        """Stop, and write down what was found, and what had run before the first test."""
        lines = self.stop()
        for path, tests in imported.items():
            lines.setdefault(path, {})[IMPORT] = tests.get(IMPORT, 0)
        sources = {path: _kept(self._tree / path, target.parent / "sources") for path in lines}
        shown = {path: {test: f"{bits:x}" for test, bits in tests.items()} for path, tests in lines.items()}
        text = json.dumps({"seconds": self._seconds, "sources": sources, "lines": shown})
        beside = target.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.rename(target)

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Run few examples of a property: what all of them would take is estimated."""
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        known = getattr(test, "_hypothesis_internal_use_settings", None)
        self._share = 1.0
        if known is not None and known.max_examples > EXAMPLES:
            self._share = EXAMPLES / known.max_examples
            test._hypothesis_internal_use_settings = type(known)(known, max_examples=EXAMPLES)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Lines that run from now on are those of another test."""
        self._measured.switch_context(nodeid)
        self._begun, self._has_passed = sum(os.times()[:4]), True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Tests that fail, or are skipped, are left out."""
        self._has_passed = self._has_passed and report.outcome == "passed"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write down what the test took, its processes included."""
        if self._has_passed:
            self._seconds[nodeid] = (sum(os.times()[:4]) - self._begun) / self._share


def _kept(path: Path, folder: Path) -> str:
    """Keep the contents of a file in a folder, and return their digest."""
    name = digest(path)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(path.read_bytes())
    return name


class Chosen:
    """Runs some tests only, in a given order. A plugin of pytest.

    Args:
        tests: their ids.
        failed: the file to which the id of a test that fails is written.
    """

    def __init__(self, tests: Sequence[str], failed: Path) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self._failed = failed

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write down what fails."""
        if report.failed:
            self._failed.write_text(report.nodeid, encoding="utf-8")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep them, in that order."""
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid])
