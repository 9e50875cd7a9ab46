"""Every example runs offline, as a script and, where it offers a class, through the command line."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"chain.py", "extract.py"}


def test_the_chain_prints_three_results_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    kind, record, due, cost = run("chain.py", capsys)

    assert kind.split()[1] in ("order", "invoice", "shipment", "complaint", "quote")
    assert re.fullmatch(
        r"record: Order\(customer='.*', city='.*', item='.*', quantity=-?\d+, price=.*, currency='...'\)", record
    )
    assert re.fullmatch(r"due: +\d{4}-\d{2}-\d{2}", due)
    fed, reused, forced = map(int, re.findall(r"\d+", cost))
    assert fed > 0
    assert reused > 0
    assert forced > 0


def test_own_texts_become_own_records(capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.loads(line) for line in run("extract.py", capsys)]

    assert len((EXAMPLES / "messages.txt").read_text().splitlines()) == len(records)
    for record in records:
        assert list(record) == ["name", "city", "item", "quantity", "due_date"]


def test_the_command_line_reads_the_same_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [json.loads(line) for line in run("extract.py", capsys)]
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))

    result = CliRunner().invoke(app, ["extract", "messages.txt", "--schema", "extract:Order"])

    sys.modules.pop("extract", None)
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["record"] for line in result.stdout.splitlines()] == records
