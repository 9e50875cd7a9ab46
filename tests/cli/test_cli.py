from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli.__main__ import app

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "numpy", "pydantic_core", "jinja2", "fsm")
LOADED = f"""
import sys
from outlines_cont.cli.__main__ import main
sys.argv = ["outlines-cont", *sys.argv[1:]]
try:
    main()
except SystemExit as error:
    print("status", error.code)
print("loaded", [name for name in {HEAVY!r} if name in sys.modules])
"""


def fresh_interpreter(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `outlines-cont` with `arguments`, then print its status and which heavy modules it has loaded."""
    command = [sys.executable, "-W", "error", "-c", LOADED, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120)


@pytest.mark.parametrize("arguments", [("--help",), ("demo", "--help"), ("extract", "-h"), ("--version",), ("extract",)])
def test_help_and_wrong_options_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    # `typer` loads pydantic's core in some versions; what is slow is the rest.
    output = fresh_interpreter(*arguments).stdout

    assert "loaded []" in output.replace("'pydantic_core'", "")


def test_errors_of_the_setup_do_not_load_torch(tmp_path: Path) -> None:
    done = fresh_interpreter("extract", "missing.jsonl", "--schema", "missing.json", cwd=tmp_path)

    assert "status 2" in done.stdout
    assert "torch" not in done.stdout
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_help_fits_80_columns_and_has_no_escape_codes() -> None:
    for arguments in (["--help"], ["demo", "--help"], ["extract", "--help"], ["chat", "--help"]):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})

        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_no_summary_is_cut() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    summaries = [line.split(maxsplit=1) for line in text[text.index("Commands:") :].splitlines()[1:]]
    assert {name for name, _ in summaries} >= {"demo", "extract", "schema"}
    assert all(summary.endswith(".") and not summary.endswith("...") for _, summary in summaries)


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(app, [])

    assert "extract" in result.output
    assert result.exit_code in (0, 2)  # typer changed its mind about this status


@pytest.mark.parametrize(
    "arguments",
    [["extract", "a.jsonl"], ["extract", "a.jsonl", "--schema", "s.json", "--batch-size", "0"], ["nosuch"], ["demo", "--nosuch"]],
)
def test_wrong_options_end_with_status_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
