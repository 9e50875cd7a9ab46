"""`python -m outlines_cont`."""

from __future__ import annotations

import subprocess
import sys

import outlines_cont


def test_the_package_runs_as_the_command_does() -> None:
    outputs = [
        subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=120)
        for module in ("outlines_cont", "outlines_cont.cli")
    ]
    expected = (0, f"outlines-cont {outlines_cont.__version__}\n", "")
    assert [(output.returncode, output.stdout, output.stderr) for output in outputs] == [expected] * 2
