"""What becomes of a mutant: the tests that run its line are run, until one fails that passes without the change."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.mutation.copy import Job
from tests.mutation.coverage_map import PYTEST, Chosen, CoverageMap
from tests.mutation.mutant import Mutant
from tests.mutation.patch import changed_code
from tests.mutation.server import CANNOT, FAILED, Answer, Request, TestServer, answered

RESULTS = {0: "survives", 5: "survives", 1: "killed", 2: "killed", 3: "killed", 4: "killed", FAILED: "killed"}
_SLABS = (2.0, 20.0, float("inf"))


class Plan(NamedTuple):
    """A mutant, the tests that are run for it, how many tests run its line, and whether it runs before the first test, too."""

    mutant: Mutant
    tests: list[str]
    num_running: int
    is_imported: bool


class Verdict(NamedTuple):
    """What became of a mutant: `killed`, `hangs`, `dies`, `survives` or `no test runs it`; and the test that saw it."""

    plan: Plan
    result: str
    test: str = ""


class Bench(NamedTuple):
    """A copy of the tree and the process that runs its tests."""

    tree: Path
    server: TestServer


def planned(mutant: Mutant, sources: Mapping[str, str], recorded: CoverageMap, max_seconds: float) -> Plan:
    """The tests of a mutant: those that run it, or that run a use of the names that it defines; if there are none, those that run its file.

    Args:
        mutant: the change.
        sources: the texts of all files, by path.
        recorded: which test runs what.
        max_seconds: how long the tests may take together.
    """
    path, lines = mutant.path, list(range(mutant.lines[0], mutant.lines[1] + 1))
    if mutant.is_imported:
        is_private = all(name.startswith("_") for name in mutant.names)
        places = {one: _uses(text, mutant.names) for one, text in sources.items() if one == path or not is_private}
        tests = [*dict.fromkeys(test for one, found in places.items() for test in recorded.running(one, found))]
    else:
        tests = recorded.running(path, lines)
    if not tests:
        tests = recorded.running(path, range(len(sources[path].splitlines()) + 1))
    is_imported = mutant.is_imported or recorded.is_imported(path, lines)
    return Plan(mutant, recorded.in_order(tests, max_seconds), len(tests), is_imported)


def _uses(source: str, names: tuple[str, ...]) -> list[int]:
    """The lines in which some names stand."""
    if not any(name in source for name in names):
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)
    ]


class Judge:
    """Judges mutants.

    A test counts only if it passes without the change in the same way, alone; which do is found when it is first asked.

    Args:
        sources: the texts of the files, by path.
        recorded: which test runs what.
    """

    def __init__(self, sources: Mapping[str, str], recorded: CoverageMap) -> None:
        self._sources = sources
        self._recorded = recorded
        self._is_sound: dict[str, bool] = {}

    def judge(self, plan: Plan, bench: Bench) -> Generator[None, None, Verdict]:
        """Find out what becomes of a mutant, in steps that do not wait."""
        path = bench.tree / plan.mutant.path
        before = self._sources[plan.mutant.path]
        after = plan.mutant.apply(before)
        is_live = not plan.mutant.is_imported and changed_code(before, after, path) is not None
        while True:
            tests = [test for test in plan.tests if self._is_sound.get(test, True)]
            path.write_text(after, encoding="utf-8")
            try:
                answer = yield from self._run(plan, tests, bench, before, after, is_live)
            finally:
                path.write_text(before, encoding="utf-8")
            result = answer.result if isinstance(answer.result, str) else RESULTS.get(answer.result, "killed")
            if result == "survives" or not answer.test or (yield from self._passes(answer.test, bench)):
                return Verdict(plan, result, answer.test if result != "survives" else "")

    def _run(self, plan: Plan, tests: list[str], bench: Bench, before: str, after: str, is_live: bool) -> Generator[None, None, Answer]:
        """Run tests in the process that collected them, or, if the change would not be seen there, in one that imports everything anew."""
        if is_live:
            answer = yield from answered(bench.server, self._request(plan.mutant.path, before, after, tests))
            if answer.result != CANNOT and not (answer.result == 0 and plan.is_imported):
                return answer
        slabs = [[name for name, _ in slab] for slab in self._slabs(tests)]
        failed = bench.tree / "mutation.failed"
        failed.unlink(missing_ok=True)
        job = Job(bench.tree, lambda: run_tests(slabs, failed), 120 + 10 * self._seconds(tests))
        result = yield from job.wait()
        return Answer(result, failed.read_text(encoding="utf-8") if failed.exists() else "", 0.0)

    def _passes(self, test: str, bench: Bench) -> Generator[None, None, bool]:
        """Return whether a test passes without a change."""
        if test not in self._is_sound:
            answer = yield from answered(bench.server, self._request("", "", "", [test]))
            self._is_sound[test] = answer.result == 0
            if answer.result != 0:
                print(f"left out, as it fails without a change, too ({answer.result}): {test}", flush=True)
        return self._is_sound[test]

    def _request(self, path: str, before: str, after: str, tests: list[str]) -> Request:
        limits = {name: limit for slab in self._slabs(tests) for name, limit in slab}
        return Request(path, before, after, limits, 60 + 10 * self._seconds(tests))

    def _seconds(self, tests: list[str]) -> float:
        return sum(self._recorded.seconds[test] for test in tests)

    def _slabs(self, tests: list[str]) -> Iterator[list[tuple[str, float]]]:
        """Tests with their limits, in the order in which they are run: those that are likely to fail soon first, file by file."""
        left = list(tests)
        for seconds in _SLABS:
            slab: list[str] = []
            while left and (not slab or seconds > 0):
                slab.append(left.pop(0))
                seconds -= self._recorded.seconds[slab[-1]]
            files = dict.fromkeys(test.partition("::")[0] for test in slab)
            order = {name: place for place, name in enumerate(files)}
            slab.sort(key=lambda test: order[test.partition("::")[0]])
            if slab:
                yield [(test, 30 + 20 * self._recorded.seconds[test]) for test in slab]


def run_tests(slabs: list[list[str]], failed: Path) -> int:
    """Run some tests of the copy, slab by slab. For a process of its own."""
    import pytest

    for tests in slabs:
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        code = int(pytest.main([*PYTEST, "-x", "--timeout=120", *files], plugins=[Chosen(tests, failed)]))
        if code not in (0, 5):
            return code
    return 0
