"""`--stream`: records are shown while they are written, and what is written stays as it is without."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from rich.console import Console
from typer.testing import CliRunner

from outlines_cont.cli import demo
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.growing import GrowingRecords
from outlines_cont.events.partial_type import partial_model

ORDER = """\
from pydantic import BaseModel

class Order(BaseModel):
    name: str
    city: str
    quantity: int
"""
MESSAGES = [
    "Hello, this is Marta Keller from Porto. Please send 12 desk lamps by 2031-05-14.",
    "Order for Owen Achterberg, Tampere: 3 pieces of garden chair, due 5 March 2030.",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "streamed.py").write_text(ORDER, encoding="utf-8")
    (tmp_path / "in.txt").write_text("\n".join(MESSAGES), encoding="utf-8")
    return tmp_path


def test_extract_shows_each_field_when_it_is_whole_and_writes_the_same_lines(folder: Path) -> None:
    arguments = ["extract", "in.txt", "--schema", "streamed.py:Order", "--max-tokens", "200"]
    plain = CliRunner().invoke(app, arguments)
    streamed = CliRunner().invoke(app, [*arguments, "--stream"])
    assert streamed.exit_code == 0, streamed.output
    assert plain.stdout == streamed.stdout
    *lines, summary = streamed.stderr.splitlines()
    assert summary.startswith("2 rows, 0 failed")
    for number, text in enumerate(plain.stdout.splitlines(), 1):
        record = json.loads(text)["record"]
        own = [line for line in lines if line.startswith(f"line {number}: ")]
        assert [f"line {number}: {name}: {json.dumps(value)}" for name, value in record.items()] == own
    assert lines[0].startswith("line 1: name: ")
    assert lines[1].startswith("line 2: name: ")


def test_a_record_that_is_cut_shows_the_fields_that_are_whole(folder: Path) -> None:
    streamed = CliRunner().invoke(app, ["extract", "in.txt", "--schema", "streamed.py:Order", "--stream", "--max-tokens", "14"])
    assert streamed.exit_code == 1
    assert all("IncompleteOutput" in line for line in streamed.stdout.splitlines())
    shown = streamed.stderr.splitlines()[:-1]
    assert shown
    assert [line.split(": ")[1] for line in shown] == ["name"] * len(shown)


def test_a_bar_and_growing_records_are_refused_together(folder: Path) -> None:
    result = CliRunner().invoke(app, ["extract", "in.txt", "--schema", "streamed.py:Order", "--stream", "--progress"])
    assert result.exit_code == 2
    assert "expected --stream or --progress, got both" in result.stderr


def test_the_demo_shows_each_record_before_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "read_messages", lambda: MESSAGES[:1])
    output = tmp_path / "records.jsonl"
    result = CliRunner().invoke(app, ["demo", "--stream", "--output", str(output)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    record = json.loads(output.read_text(encoding="utf-8"))["record"]
    shown = [line for line in result.stdout.splitlines() if line.startswith("record: ")]
    assert [f"record: {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in record.items()] == shown
    assert result.stdout.index(shown[-1]) < result.stdout.index("votes ")


class Item(BaseModel):
    """A record with a nested one."""

    name: str
    inner: dict[str, int]


def test_on_a_terminal_a_table_grows_and_goes_away() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, color_system=None)
    with GrowingRecords(console) as growing:
        growing.show("line 1", None, False)
        assert file.getvalue() == ""
        growing.show("line 1", partial_model(Item, {"name": "A [b"}), False)
        growing.show("line 1", partial_model(Item, {"name": "A [bold]", "inner": {"x": 1}}), False)
        growing.show("line 2", [1, 2], True)
        shown = file.getvalue()
    for text in ('name: "A [b"', 'name: "A [bold]", inner: {"x":1}', "0: 1, 1: 2"):
        assert text in shown
    assert "\x1b[2K" in file.getvalue()[len(shown) :]
    assert file.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in file.getvalue()[len(shown) :]


def test_values_that_are_no_records_are_shown_too() -> None:
    file = io.StringIO()
    with GrowingRecords(Console(file=file)) as growing:
        growing.show("line 1", 12, True)
        growing.show("line 2", {"a": object(), "b": 1}, False)
    first, second = file.getvalue().splitlines()
    assert first == "line 1: value: 12"
    assert second.startswith('line 2: a: "<object')
