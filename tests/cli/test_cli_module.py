"""`python -m outlines_cont`."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_runs_as_the_command_does() -> None:
    outputs = [
        subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=120)
        for module in ("outlines_cont", "outlines_cont.cli")
    ]
    assert [output.returncode for output in outputs] == [0, 0]
    assert outputs[0].stdout == outputs[1].stdout != ""
