"""Changes one point of the code at a time, and shows the changes that no test notices.

    python -m tests.mutation --seed 7 --count 120
    python -m tests.mutation --modules "fsm/node.py" "fsm/schema/*" --count 20 --list

A random sample of lines is taken, and of each line one change: a number off by one, a comparison, `and` for `or`, a dropped `not`,
condition or statement, swapped arguments, `+` for `-`, `min` for `max`, another return. The tests that run the line (which ones they
are is recorded once, with `coverage`, and kept in `--folder`) are run in a copy of the tree, the fastest first, until one fails. The
working tree is never touched. What survives is shown as a diff: it is a missing test, or a change that changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from tests.mutation.copy import Job, copy_tree, import_heavy
from tests.mutation.coverage_map import PACKAGES, PYTEST, Chosen, CoverageMap, digest, record
from tests.mutation.mutant import Mutant, mutants

LEFT_OUT = ("outlines_cont/cli.py", "outlines_cont/commands/*")
LEFT_OUT_TESTS = ("tests/unit/test_repository.py",)  # it reads the sources and imports them, and runs nothing
RECORDING_SECONDS = 1_800.0
RESULTS = {0: "survives", 1: "killed", 2: "killed", 3: "killed", 4: "killed", 5: "survives", 70: "killed"}


Item = TypeVar("Item")


class Plan(NamedTuple):
    """A mutant, the tests that are run for it, and how many tests run its line."""

    mutant: Mutant
    tests: list[str]
    num_running: int


class Verdict(NamedTuple):
    """What became of a mutant: `killed`, `hangs`, `dies`, `survives` or `no test runs it`."""

    plan: Plan
    result: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 where a mutant survives."""
    options = _options(arguments)
    root = Path.cwd()
    sample = _sample(root, options)
    if options.list:
        for mutant in sample:
            print(
                f"{mutant.path}:{mutant.line}: {mutant.kind}\n{mutant.diff((root / mutant.path).read_text(encoding='utf-8'))}"
            )
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end, too
    import_heavy()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        trees = [Path(folder) / str(number) for number in range(options.processes)]
        for tree in trees:
            copy_tree(root, tree)
        recorded = _record(trees, options)
        if options.record:
            return 0
        verdicts = _judge(sample, recorded, trees, options)
    return _report(verdicts, lambda path: (root / path).read_text(encoding="utf-8"))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.mutation", description=__doc__, formatter_class=form)
    parser.add_argument("--seed", type=int, default=0, help="which sample is taken (0)")
    parser.add_argument("--count", type=int, default=120, help="how many lines (120)")
    parser.add_argument(
        "--modules",
        nargs="+",
        default=["*"],
        metavar="GLOB",
        help="files such as 'fsm/schema/*' (all but the command line)",
    )
    parser.add_argument("--tests", nargs="+", default=["*"], metavar="GLOB", help="test files that are used (all)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="tests of one mutant take at most so long, as recorded (120)"
    )
    parser.add_argument("--processes", type=int, default=2, help="how many at once (2)")
    parser.add_argument(
        "--folder", type=Path, default=Path("scratch/mutation"), help="where recordings are kept (scratch/mutation)"
    )
    parser.add_argument("--list", action="store_true", help="only show the sample")
    parser.add_argument("--record", action="store_true", help="only record which test runs which lines")
    return parser.parse_args(arguments)


def _sample(root: Path, options: argparse.Namespace) -> list[Mutant]:
    """One mutant of each of a sample of lines, in the order of the files."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(fnmatch(name, pattern) for pattern in options.modules) and not any(fnmatch(name, p) for p in LEFT_OUT):
            for mutant in mutants(name, path.read_text(encoding="utf-8")):
                by_line.setdefault((name, mutant.line), []).append(mutant)
    random = Random(options.seed)
    lines = sorted(random.sample(sorted(by_line), min(options.count, len(by_line))))
    return [random.choice(by_line[line]) for line in lines]


def _record(trees: list[Path], options: argparse.Namespace) -> CoverageMap:
    """Read what is known of the test files, and record the others."""
    options.folder.mkdir(parents=True, exist_ok=True)
    folder, tree = options.folder.resolve(), trees[0]
    found = CoverageMap()
    files = [path.relative_to(tree).as_posix() for path in sorted((tree / "tests").rglob("test_*.py"))]
    files = [name for name in files if any(fnmatch(name, p) for p in options.tests) and name not in LEFT_OUT_TESTS]
    stems = {name: name.removesuffix(".py").replace("/", ".") for name in files}
    targets = {name: folder / f"{stem}-{digest(tree, name)}.json" for name, stem in stems.items()}
    missing = [name for name in files if not targets[name].exists()]
    for name in missing:
        for old in folder.glob(f"{stems[name]}-{'?' * 20}.json"):
            old.unlink()

    def start(name: str, tree: Path) -> Job:
        return Job(tree, lambda: record(tree, name, targets[name]), RECORDING_SECONDS)

    for number, (name, result) in enumerate(_in_parallel(missing, trees, start), 1):
        if not targets[name].exists():
            sys.exit(
                f"expected pytest to run {name} in a copy of the tree, received: {result}. Run it in the tree itself, and mend it."
            )
        note = "" if result == 0 else f" (ended with {result}; tests that fail are left out)"
        print(f"recorded {number} of {len(missing)}: {name}{note}", flush=True)
    for target in targets.values():
        if target.exists():
            found.add(target)
    return found


def _in_parallel(
    items: Sequence[Item], trees: list[Path], start: Callable[[Item, Path], Job]
) -> Iterator[tuple[Item, int | str]]:
    """Yield each item with what its job ended with, as they end; one job for each tree at once."""
    waiting, running = list(reversed(items)), dict[Path, tuple[Item, Job]]()
    try:
        while waiting or running:
            for tree in trees:
                if waiting and tree not in running:
                    item = waiting.pop()
                    running[tree] = item, start(item, tree)
            for tree, (item, job) in list(running.items()):
                result = job.poll()
                if result is not None:
                    del running[tree]
                    yield item, result
            time.sleep(0.02)
    finally:
        for _, job in running.values():
            job.stop()


def _judge(
    sample: list[Mutant], recorded: CoverageMap, trees: list[Path], options: argparse.Namespace
) -> list[Verdict]:
    """Run the tests of each mutant."""
    sources = {mutant.path: (trees[0] / mutant.path).read_text(encoding="utf-8") for mutant in sample}
    verdicts: list[Verdict] = []
    plans = [_plan(mutant, sources[mutant.path], recorded, options.seconds) for mutant in sample]
    verdicts += [Verdict(plan, "no test runs it") for plan in plans if not plan.tests]
    changed: dict[Path, str] = {}

    def start(plan: Plan, tree: Path) -> Job:
        if tree in changed:
            (tree / changed[tree]).write_text(sources[changed[tree]], encoding="utf-8")
        path = changed[tree] = plan.mutant.path
        (tree / path).write_text(plan.mutant.apply(sources[path]), encoding="utf-8")
        longest = max(recorded.seconds[test] for test in plan.tests)
        arguments = [
            *PYTEST,
            "-x",
            f"--timeout={30 + 10 * longest:.0f}",
            *dict.fromkeys(test.partition("::")[0] for test in plan.tests),
        ]
        seconds = 60 + 3 * sum(recorded.seconds[test] for test in plan.tests)
        return Job(tree, lambda: run_tests(arguments, plan.tests), seconds)

    begun = time.monotonic()
    for plan, code in _in_parallel([plan for plan in plans if plan.tests], trees, start):
        verdict = Verdict(plan, code if isinstance(code, str) else RESULTS.get(code, "killed"))
        verdicts.append(verdict)
        mutant = plan.mutant
        place = f"{mutant.path}:{mutant.line}"
        print(
            f"{len(verdicts):4} of {len(plans)}  {time.monotonic() - begun:5.0f} s  {verdict.result:9} {place}: {mutant.kind}",
            flush=True,
        )
    return sorted(verdicts, key=lambda verdict: (verdict.plan.mutant.path, verdict.plan.mutant.line))


def _plan(mutant: Mutant, source: str, recorded: CoverageMap, max_seconds: float) -> Plan:
    """The tests of a mutant: those that run it, or what uses the names that it defines; where there are none, those that run its file."""
    first, last = mutant.lines
    lines = _uses(source, mutant.names) if mutant.is_imported else range(first, last + 1)
    tests = recorded.running(mutant.path, lines)
    if not tests:
        tests = recorded.running(mutant.path, range(len(source.splitlines()) + 1))
    return Plan(mutant, recorded.in_order(tests, max_seconds), len(tests))


def _uses(source: str, names: tuple[str, ...]) -> Iterator[int]:
    """The lines in which some names stand."""
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, ast.Name) and node.id in names) or (
            isinstance(node, ast.Attribute) and node.attr in names
        ):
            yield node.lineno


def run_tests(arguments: list[str], tests: list[str]) -> int:
    """Run some tests of the copy. For a process of its own."""
    import pytest

    return int(pytest.main(arguments, plugins=[Chosen(tests)]))


def _report(verdicts: list[Verdict], sources: Callable[[str], str]) -> int:
    """Print the table of those that survive, and the summary."""
    left = [verdict for verdict in verdicts if verdict.result in ("survives", "no test runs it")]
    for verdict in left:
        plan, mutant = verdict.plan, verdict.plan.mutant
        note = "" if not plan.tests else f" ({len(plan.tests)} tests were run; {plan.num_running} run the line)"
        print(
            f"\n{mutant.path}:{mutant.line}: {mutant.kind}, {verdict.result}{note}\n{mutant.diff(sources(mutant.path))}"
        )
    counts = Counter(verdict.result for verdict in verdicts)
    table = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    if left:
        print("\nNot noticed, by file:")
        for path, count in sorted(Counter(verdict.plan.mutant.path for verdict in left).items()):
            print(f"{count:4} of {sum(verdict.plan.mutant.path == path for verdict in verdicts):4}  {path}")
    print(f"\n{len(verdicts)} mutants: {table}; {100 * len(left) / max(len(verdicts), 1):.1f} in 100 are not noticed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
