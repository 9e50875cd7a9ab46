"""How many threads a command takes, and how its sampler is read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outlines_cont.cli.console import parse_sampler
from outlines_cont.cli.model import choose_threads, load_model, make_sampler
from outlines_cont.pipelines import SetupError


def timed(seconds: dict[int, float], asked: list[int]) -> Callable[[int], float]:
    def forward(threads: int) -> float:
        asked.append(threads)
        return seconds[threads]

    return forward


@pytest.mark.parametrize(
    ("seconds", "num_cores", "chosen"),
    [
        ({1: 0.004}, 1, 1),
        ({1: 0.004, 2: 0.004}, 2, 1),
        ({1: 0.0040, 2: 0.0036}, 2, 1),  # a tenth is not worth a core
        ({1: 0.0040, 2: 0.0021}, 2, 2),
        ({1: 0.040, 2: 0.021, 4: 0.019, 6: 0.018}, 6, 2),
        ({1: 0.080, 2: 0.041, 4: 0.022, 6: 0.016}, 6, 6),
        ({8: 0.9}, 8, 8),  # nothing is tried where a forward takes long
    ],
)
def test_threads_are_as_many_as_pay(seconds: dict[int, float], num_cores: int, chosen: int) -> None:
    asked: list[int] = []
    threads, why = choose_threads(timed(seconds, asked), num_cores)
    assert threads == chosen
    assert why.startswith(f"{chosen} of {num_cores} ")
    assert len(asked) == len(set(asked))


def test_a_command_waits_passively_and_says_so(tmp_path: Path) -> None:
    """In a process of its own, as torch reads the environment when it is imported."""
    (tmp_path / "s.json").write_text(json.dumps({"type": "integer", "maximum": 9, "minimum": 0}))
    program = (
        "import os, sys; os.environ.pop('OMP_NUM_THREADS', None); os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "from outlines_cont.cli.__main__ import main\n"
        "try:\n    main()\n"
        "finally:\n    print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "extract", "-", "--schema", str(tmp_path / "s.json"), "--verbose"],
        input=b"three lamps\n",
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert "record" in json.loads(done.stdout)
    lines = done.stderr.decode().splitlines()
    assert lines[-1] == "PASSIVE True"
    (line,) = [line for line in lines if line.startswith("Threads: ")]
    assert "(a short forward takes " in line
    assert line.endswith("; waiting: passive")
    assert "Forward: fused" in lines


def test_a_command_runs_the_forward_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model(None, None, None, fused=False, verbose=True)
    assert not model.capabilities.fused
    assert "Forward: by transformers (turned off: `fused=False`)" in capsys.readouterr().err


def test_a_sampler_is_read_from_its_name_and_options() -> None:
    assert parse_sampler("greedy") == ("greedy", {})
    assert parse_sampler(" multinomial ( temperature=0.7, top_k=5 )") == ("multinomial", {"temperature": 0.7, "top_k": 5})
    assert str(make_sampler("multinomial(temperature=0.5)")) == str(make_sampler("multinomial(temperature=.5)"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "beam",
        "greedy(1)",
        "greedy(x=1)",
        "multinomial(0.7)",
        "multinomial(n=2)",
        "multinomial(top_p='a')",
        "multinomial(x=1)",
        "multinomial(temperature=open('x'))",
        "a.multinomial()",
        "multinomial(**{})",
        "multinomial(",
        "multinomial(top_k=True)",
    ],
)
def test_another_sampler_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="as --sampler|of --sampler"):
        make_sampler(text)
