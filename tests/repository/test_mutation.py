"""The mutation tool: which changes it makes, which tests it runs for them, and that it leaves the tree alone."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest

from tests.mutation.__main__ import main
from tests.mutation.copy import Job
from tests.mutation.coverage_map import CoverageMap
from tests.mutation.judge import planned
from tests.mutation.moved import MovedLines
from tests.mutation.mutant import mutants
from tests.mutation.patch import LiveFunctions, changed_code

SOURCE = '''"""Text 1 + 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    A = 1

MOST = 7


class C:
    """A class."""

    def f(self, a: Literal[3], b: int = 5) -> int:
        assert a < 3
        if not (a <= b) and b:
            raise ValueError(f"{a + 1}", 4)
        self.x = min(a, b)
        g(b, a, key=a)
        for _ in a:
            continue
        return a + b
'''
EXPECTED = {
    ("off by one", "8"), ("off by one", "6"), ("off by one", "4"), ("dropped not", "a <= b"), ("comparison", "<"),
    ("and / or", "or"), ("dropped condition", "b"), ("dropped condition", "not a <= b"), ("dropped statement", "pass"),
    ("min / max", "max"), ("swapped arguments", "a, b"), ("changed return", "None"), ("+ / -", "-"),
}  # fmt: skip


def test_every_kind_of_change_is_made_and_nothing_else() -> None:
    found = mutants("fsm/x.py", SOURCE)
    assert {(mutant.kind, mutant.text) for mutant in found} == EXPECTED
    assert [mutant.line for mutant in found if mutant.kind == "dropped statement"] == [16, 17, 18, 20]


@pytest.mark.parametrize("path", ["fsm/terms/node.py", "fsm/pattern/python_pattern.py", "outlines_cont/state/sequence_state.py"])
def test_every_mutant_is_another_program(path: str) -> None:
    source = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    found = mutants(path, source)
    assert len(found) > 150
    for mutant in found[::60]:
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source)), mutant


def test_a_mutant_knows_its_lines_and_shows_its_change() -> None:
    by_text = {mutant.text: mutant for mutant in mutants("fsm/x.py", SOURCE)}
    assert (by_text["8"].is_imported, by_text["8"].names) == (True, ("MOST",))
    assert (by_text["4"].is_imported, by_text["4"].lines) == (False, (13, 21))  # a default counts for the whole function
    assert by_text["or"].lines == (15, 15)
    assert by_text["max"].diff(SOURCE) == "-        self.x = min(a, b)\n+        self.x = max(a, b)"


def recorded(folder: Path) -> CoverageMap:
    seconds = {
        "t/a.py::slow": 5.0, "t/a.py::fast": 1.0, "t/property/b.py::law": 6.0, "t/a.py::other": 0.5, "t/c.py::far": 0.1,
    }  # fmt: skip
    lines = {
        "fsm/x.py": {
            "": f"{1 << 7:x}",
            "t/a.py::slow": f"{1 << 15:x}",
            "t/a.py::fast": f"{1 << 15 | 1 << 17:x}",
            "t/property/b.py::law": f"{1 << 15:x}",
        }
    }
    known = {"seconds": seconds, "sources": {"fsm/x.py": "then"}, "lines": lines}
    (folder / "a.json").write_text(json.dumps(known), encoding="utf-8")
    found = CoverageMap(folder, folder)
    found.add(folder / "a.json")
    return found


def test_the_tests_that_run_a_line_come_in_an_order_and_then_those_beside_them(tmp_path: Path) -> None:
    known = recorded(tmp_path)
    tests = known.running("fsm/x.py", [15])
    assert known.in_order(tests, 100) == ["t/property/b.py::law", "t/a.py::fast", "t/a.py::slow", "t/a.py::other"]
    assert known.in_order(tests, 8) == ["t/property/b.py::law", "t/a.py::fast", "t/a.py::other"]
    assert known.running("fsm/x.py", [17]) == ["t/a.py::fast"]
    assert known.running("fsm/y.py", [17]) == []


def test_lines_of_a_recording_of_older_code_are_found_by_what_stands_in_them(tmp_path: Path) -> None:
    known = recorded(tmp_path)
    (tmp_path / "then").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "fsm").mkdir()
    now = SOURCE.replace("MOST = 7\n", "MOST = 7\n\n\nLEAST = 1\n").replace("        g(b", "        h()\n        g(b")
    (tmp_path / "fsm/x.py").write_text(now, encoding="utf-8")
    assert now.splitlines()[17] == "        if not (a <= b) and b:"
    assert known.running("fsm/x.py", [15]) == []
    assert known.running("fsm/x.py", [18]) == ["t/a.py::slow", "t/a.py::fast", "t/property/b.py::law"]
    assert now.splitlines()[20] == "        h()"  # new: the lines around it stand for it
    assert known.running("fsm/x.py", [21]) == ["t/a.py::fast"]
    assert known.is_imported("fsm/x.py", [7])
    assert not known.is_imported("fsm/x.py", [18])


@pytest.mark.parametrize(
    ("before", "after", "lines", "expected"),
    [
        ("a b c", "a b c", {1, 3}, {1, 3}), ("a b c", "x a b c", {2, 4}, {1, 3}), ("a b c", "x a b c", {1}, {0, 1}),
        ("a b c", "a x c", {2}, {1, 2, 3}), ("a b c", "a c", {1, 2}, {1, 3}), ("a b c", "a b c x y", {4, 5}, {3, 4}),
    ],
)  # fmt: skip
def test_lines_are_found_where_they_stood(before: str, after: str, lines: set[int], expected: set[int]) -> None:
    texts = [text.replace(" ", "\n") for text in (before, after)]
    assert MovedLines(*texts).earlier(lines) == expected


MODULE = """
from functools import lru_cache

class C:
    def f(self, a):
        def inner(b):
            return a + b
        return [inner(x) for x in (1, 2)]

@lru_cache
def g(a, b=3):
    return max(a, b)

made = C().f
closed = [lambda a, n=n: a < n for n in range(2)]
"""


def live(source: str, folder: Path) -> tuple[dict[str, object], LiveFunctions, Path]:
    path = folder / "m.py"
    names: dict[str, object] = {}
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    return names, LiveFunctions(folder), path


def test_the_body_of_a_function_is_replaced_wherever_it_is_held(tmp_path: Path) -> None:
    names, functions, path = live(MODULE, tmp_path)
    f, g, closed = names["made"], names["g"], names["closed"]
    assert (f(10), g(1), closed[1](0), closed[1](1)) == ([11, 12], 3, True, False)  # type: ignore[operator,index]
    g.cache_clear()  # type: ignore[attr-defined]
    after = MODULE.replace("a + b", "a - b").replace("max", "min").replace("a < n", "a <= n")
    pairs = changed_code(MODULE, after, path)
    assert pairs
    assert functions.replace(pairs)
    assert (f(10), g(1), closed[1](0), closed[1](1)) == ([9, 8], 1, True, True)  # type: ignore[operator,index]


@pytest.mark.parametrize(("before", "after"), [("b=3", "b=4"), ("range(2)", "range(3)"), ("made =", "other ="), ("n=n", "n=-n")])
def test_what_runs_at_the_import_cannot_be_replaced(tmp_path: Path, before: str, after: str) -> None:
    assert changed_code(MODULE, MODULE.replace(before, after), tmp_path / "m.py") is None


def test_a_function_that_uses_other_variables_cannot_be_replaced(tmp_path: Path) -> None:
    source = MODULE + "\ndef outer(a, b):\n    return lambda: a + b\n\nheld = outer(1, 2)\n"
    _names, functions, path = live(source, tmp_path)
    pairs = changed_code(source, source.replace("lambda: a + b", "lambda: a"), path)
    assert pairs
    assert not functions.replace(pairs)


def test_a_function_that_is_not_there_cannot_be_replaced(tmp_path: Path) -> None:
    pairs = changed_code(MODULE, MODULE.replace("max", "min"), tmp_path / "m.py")
    assert pairs
    assert not LiveFunctions(tmp_path).replace(pairs)


def test_what_runs_at_the_import_is_judged_by_the_tests_that_use_its_names(tmp_path: Path) -> None:
    source = SOURCE.replace("min(a, b)", "min(a, MOST)")
    by_text = {mutant.text: mutant for mutant in mutants("fsm/x.py", source)}
    known = recorded(tmp_path)
    assert planned(by_text["8"], {"fsm/x.py": source}, known, 100).tests[:1] == ["t/a.py::fast"]
    assert planned(by_text["8"], {"fsm/x.py": SOURCE}, known, 100).num_running == 3  # nothing uses it: all that runs the file
    known.lines["fsm/y.py"] = {"then": {"t/c.py::far": 1 << 2}}
    elsewhere = {"fsm/x.py": source, "fsm/y.py": "from fsm.x import MOST\nprint(MOST)\n"}
    assert planned(by_text["8"], elsewhere, known, 100).tests[:2] == ["t/c.py::far", "t/a.py::fast"]


@pytest.mark.parametrize(
    ("work", "seconds", "expected"), [(lambda: 1, 60, 1), (lambda: time.sleep(100) or 0, 0.2, "hangs"), (lambda: 1 // 0, 60, 70)]
)
def test_a_job_ends_with_what_it_returns_or_is_ended(tmp_path: Path, work: object, seconds: float, expected: object) -> None:
    job = Job(tmp_path, work, seconds)  # type: ignore[arg-type]
    while (result := job.poll()) is None:
        time.sleep(0.01)
    assert result == expected


def test_the_list_shows_a_sample_that_the_seed_decides(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--list", "--count", "5", "--modules", "fsm/terms/node.py"]
    shown = []
    for seed in ("1", "1", "2"):
        assert main([*arguments, "--seed", seed]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]
    assert shown[0].count("fsm/terms/node.py:") == 5


def test_lines_that_are_named_are_taken_with_all_of_their_changes(capsys: pytest.CaptureFixture[str]) -> None:
    source = (Path(__file__).parents[2] / "fsm/terms/distance.py").read_text(encoding="utf-8")
    line = mutants("fsm/terms/distance.py", source)[-1].line
    expected = [mutant.kind for mutant in mutants("fsm/terms/distance.py", source) if mutant.line == line]
    assert main(["--list", "--at", f"fsm/terms/distance.py:{line}"]) == 0
    out = capsys.readouterr().out
    assert [said.partition(": ")[2] for said in out.splitlines() if said.startswith("fsm/terms/distance.py:")] == expected
