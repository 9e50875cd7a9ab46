"""Changes one point of the code at a time, and shows the changes that no test notices.

    python -m tests.mutation --seed 7 --count 120
    python -m tests.mutation --modules "fsm/terms/node.py" "fsm/schema/*" --count 20 --list
    python -m tests.mutation --at fsm/terms/node.py:612

A random sample of lines is taken, and of each line one change: a number off by one, a comparison, `and` for `or`, a dropped `not`,
condition or statement, swapped arguments, `+` for `-`, `min` for `max`, another return. The tests that run the line (which ones they
are is recorded once, with `coverage`, and kept in `--folder`; lines that have moved since are found) are run in a copy of the tree,
the fastest first, until one fails. All tests are collected once, and each mutant runs in a fork in which only the changed function
is replaced; what runs at the import is judged in a process that imports it anew. The working tree is never touched. What survives
is shown as a diff: it is a missing test, or a change that changes nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.mutation.copy import copy_tree, import_heavy
from tests.mutation.coverage_map import PACKAGES, CoverageMap, digest, is_of_now
from tests.mutation.judge import Bench, Judge, Verdict, planned
from tests.mutation.mutant import Mutant, mutants
from tests.mutation.server import Answer, Request, TestServer, answered, servers

LEFT_OUT = ("outlines_cont/cli/*",)
LEFT_OUT_TESTS = ("tests/repository/test_repository.py",)  # it reads the sources and imports them, and runs nothing
RECORDING_SECONDS = 1_800.0


Item = TypeVar("Item")
Result = TypeVar("Result")
Place = TypeVar("Place")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a mutant survives."""
    options = _options(arguments)
    root = Path.cwd()
    sample = _sample(root, options)
    if options.list:
        for mutant in sample:
            print(f"{mutant.path}:{mutant.line}: {mutant.kind}\n{mutant.diff((root / mutant.path).read_text(encoding='utf-8'))}")
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
        "--modules", nargs="+", default=["*"], metavar="GLOB", help="files such as 'fsm/schema/*' (all but the command line)"
    )
    parser.add_argument("--at", nargs="+", default=[], metavar="PATH:LINE", help="no sample, but every change of these lines")
    parser.add_argument("--tests", nargs="+", default=["*"], metavar="GLOB", help="test files that are used (all)")
    parser.add_argument("--seconds", type=float, default=120, help="tests of one mutant take at most so long, as recorded (120)")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--folder", type=Path, default=Path("scratch/mutation"), help="where recordings are kept (scratch/mutation)")
    parser.add_argument("--list", action="store_true", help="only show the sample")
    parser.add_argument("--record", action="store_true", help="only record which test runs which lines, of all that ran older code")
    return parser.parse_args(arguments)


def _sample(root: Path, options: argparse.Namespace) -> list[Mutant]:
    """One mutant of each of a sample of lines, in the order of the files; or all of those that were asked for."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    wanted = {place.partition(":")[0] for place in options.at}
    for name in _modules(root):
        if wanted and name not in wanted:
            continue
        if any(fnmatch(name, pattern) for pattern in options.modules) and not any(fnmatch(name, p) for p in LEFT_OUT):
            for mutant in mutants(name, (root / name).read_text(encoding="utf-8")):
                by_line.setdefault((name, mutant.line), []).append(mutant)
    if options.at:
        return [mutant for (name, line), found in by_line.items() if f"{name}:{line}" in options.at for mutant in found]
    random = Random(options.seed)
    lines = sorted(random.sample(sorted(by_line), min(options.count, len(by_line))))
    return [random.choice(by_line[line]) for line in lines]


def _modules(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for package in PACKAGES for path in (root / package).rglob("*.py"))


def _record(trees: list[Path], options: argparse.Namespace) -> CoverageMap:
    """Read what is known of the test files, and record the others: those that changed, and with `--record` all that ran older code."""
    options.folder.mkdir(parents=True, exist_ok=True)
    folder, tree = options.folder.resolve(), trees[0]
    found = CoverageMap(tree, folder / "sources")
    files = _test_files(tree, options)
    stems = {name: name.removesuffix(".py").replace("/", ".") for name in files}
    targets = {name: folder / f"{stem}-{digest(tree / name)}.json" for name, stem in stems.items()}
    is_stale = {n: not t.exists() or (options.record and not is_of_now(t, tree)) for n, t in targets.items()}
    missing = [name for name in files if is_stale[name]]
    for name in missing:
        for old in folder.glob(f"{stems[name]}-{'?' * 20}.json"):
            old.unlink()

    def start(name: str, server: TestServer) -> Generator[None, None, Answer]:
        return answered(server, Request("", "", "", {}, RECORDING_SECONDS, name, str(targets[name])))

    with servers(trees[: len(missing)], missing, is_recording=True) as running:
        for number, (name, answer) in enumerate(_in_parallel(missing, running, start), 1):
            if not targets[name].exists():
                sys.exit(
                    f"expected pytest to run {name} in a copy of the tree, received: {answer}. Run it in the tree itself, and mend it."
                )
            note = "" if answer.result == 0 else " (tests that fail are left out)"
            print(f"recorded {number} of {len(missing)}: {name}{note}", flush=True)
    for target in targets.values() if not options.record else ():
        found.add(target)
    return found


def _test_files(tree: Path, options: argparse.Namespace) -> list[str]:
    files = [path.relative_to(tree).as_posix() for path in sorted((tree / "tests").rglob("test_*.py"))]
    return [name for name in files if any(fnmatch(name, p) for p in options.tests) and name not in LEFT_OUT_TESTS]


def _in_parallel(
    items: Sequence[Item], places: Sequence[Place], start: Callable[[Item, Place], Generator[None, None, Result]]
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with what becomes of it, as they end; one item in each place at once."""
    waiting = list(reversed(items))
    running: list[tuple[Item, Generator[None, None, Result]] | None] = [None] * len(places)
    try:
        while waiting or any(running):
            for number, place in enumerate(places):
                if waiting and running[number] is None:
                    item = waiting.pop()
                    running[number] = item, start(item, place)
            for number, entry in enumerate(running):
                if entry is None:
                    continue
                try:
                    next(entry[1])
                except StopIteration as end:
                    running[number] = None
                    yield entry[0], end.value
            time.sleep(0.01)
    finally:
        for entry in running:
            if entry is not None:
                entry[1].close()


def _judge(sample: list[Mutant], recorded: CoverageMap, trees: list[Path], options: argparse.Namespace) -> list[Verdict]:
    """Run the tests of each mutant."""
    sources = {name: (trees[0] / name).read_text(encoding="utf-8") for name in _modules(trees[0])}
    plans = [planned(mutant, sources, recorded, options.seconds) for mutant in sample]
    verdicts = [Verdict(plan, "no test runs it") for plan in plans if not plan.tests]
    judge = Judge(sources, recorded)
    begun = time.monotonic()
    with servers(trees, _test_files(trees[0], options)) as running:
        print(f"{running[0].num_collected} tests collected in {time.monotonic() - begun:.0f} s", flush=True)
        benches = [*map(Bench, trees, running)]
        for plan, verdict in _in_parallel([plan for plan in plans if plan.tests], benches, judge.judge):
            verdicts.append(verdict)
            place = f"{plan.mutant.path}:{plan.mutant.line}: {plan.mutant.kind}"
            seen = f" by {verdict.test}" if verdict.test else ""
            count = f"{len(verdicts):4} of {len(plans)}  {time.monotonic() - begun:5.0f} s"
            print(f"{count}  {verdict.result:9} {place}{seen}", flush=True)
    return sorted(verdicts, key=lambda verdict: (verdict.plan.mutant.path, verdict.plan.mutant.line))


def _report(verdicts: list[Verdict], sources: Callable[[str], str]) -> int:
    """Print the table of those that survive, and the summary."""
    left = [verdict for verdict in verdicts if verdict.result in ("survives", "no test runs it")]
    for verdict in left:
        plan, mutant = verdict.plan, verdict.plan.mutant
        note = "" if not plan.tests else f" ({len(plan.tests)} tests were run; {plan.num_running} run the line)"
        print(f"\n{mutant.path}:{mutant.line}: {mutant.kind}, {verdict.result}{note}\n{mutant.diff(sources(mutant.path))}")
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
