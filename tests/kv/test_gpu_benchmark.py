"""The benchmark for GPUs runs, in a small form on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_case_of_the_benchmark_for_gpus_runs_and_has_its_sides(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small", "--json", file]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(file.read_text())["tiny"]
    assert list(found["seconds"]) == list(CASES)
    assert found["fused"] is True
    for name, sides in found["seconds"].items():
        assert next(iter(sides)) == "ours"
        assert len(sides) > 1, name
        assert all(len(times) == 1 and times[0] > 0 for times in sides.values()), (name, sides)
        assert CASES[name][0] in done.stdout
