"""The benchmark for GPUs runs, in a small form on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.gpu import CASES, SMALL, Bench, Case, lines, measure
from benchmarks.rig import Rig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Rig("cpu", "tiny"), SMALL)


def _case(monkeypatch: pytest.MonkeyPatch, *sides: Callable[[int], float]) -> None:
    monkeypatch.setitem(CASES, "mine", Case("mine", lambda _: dict(zip(("ours", "theirs"), sides, strict=False)), lambda _: 9, lambda _: 9))  # type: ignore[misc]


def test_a_case_that_fails_keeps_what_was_measured_before_and_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> float:
        if number == 2:
            raise RuntimeError("no kernel\nlong story")
        return 2.0 + number

    _case(monkeypatch, lambda number: 1.0 + number, fails)
    found = measure(bench, "mine", 3, perf_counter() + 60)
    assert found.seconds == {"ours": [2.0, 3.0], "theirs": [3.0]}
    assert found.failure == "RuntimeError: no kernel"
    first, second, floor, why = lines("mine", found)
    assert first[:4] == ("mine", "ours", 2500.0, 2000.0)
    assert second[1:5] == ("theirs", 3000.0, 3000.0, 1.2)
    assert floor[1] == "floor"
    assert why[1] == "RuntimeError: no kernel"


def test_no_side_begins_after_the_deadline_not_even_in_the_first_round(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    _case(monkeypatch, lambda number: begun.append(number) or 1.0)  # type: ignore[func-returns-value]
    assert measure(bench, "mine", 3, perf_counter() - 1).failure == "no time"
    assert begun == []
    clock = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr("benchmarks.gpu.perf_counter", lambda: next(clock))
    assert measure(bench, "mine", 9, 2.5).failure == "no time after 2 of 10 rounds"
    assert begun == [0, 1]


def test_the_floor_is_the_time_of_reading_weights_keys_and_values(bench: Bench) -> None:
    weights = sum(weight.nbytes for name, weight in bench.rig.network.named_parameters() if "embed_tokens" not in name)
    assert bench.weight_bytes == weights
    assert bench.token_bytes == 2 * 2 * 2 * 16 * 4, "keys and values, 2 layers, 2 heads, of 16 float32"
    assert bench.floor(1000) == pytest.approx((weights + 1000 * bench.token_bytes) / bench.copy_rate)


@pytest.mark.slow
def test_every_case_of_the_benchmark_for_gpus_runs_and_has_its_sides(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small", "--json", file]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(file.read_text())["tiny"]
    assert list(found["cases"]) == list(CASES)
    assert found["fused"] is True
    for name, case in found["cases"].items():
        sides = case["seconds"]
        assert case["failure"] is None, (name, case)
        assert next(iter(sides)) == "ours"
        assert len(sides) > 1, name
        assert all(len(times) == 1 and times[0] > 0 for times in sides.values()), (name, sides)
        assert CASES[name].what in done.stdout
        assert ("forward" in sides) is (name in ("text", "rows", "branches", "long"))
