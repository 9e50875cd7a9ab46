from __future__ import annotations

import io
import json
import re
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from outlines_cont import models
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.demo import DATE, KINDS, VOTES, Demo, DemoRow, DemoStep, DemoTable, Record, read_messages

STEPS = (
    DemoStep("kind", "order", None, 61, 0, 0),
    DemoStep("record", {"customer": "Łucja Ōta", "price": 12.0, "city": "東京" * 20}, None, 1234, 61, 12),
    DemoStep("due", None, ValueError("no date [in] it"), 13, 140, 2),
)
ROW = DemoRow("A message,\nlong enough to be cut. " * 30, STEPS)


MESSAGES = read_messages()[::4]
"""Some of the bundled ones, to be quick; `.ci/run` lets the demo read them all."""


def test_the_demo_reads_every_message_shows_every_step_and_compares_with_reading_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, so that one process runs the demo."""
    assert len(read_messages()) >= 10
    monkeypatch.setattr("outlines_cont.cli.demo.read_messages", lambda: MESSAGES)
    output = tmp_path / "records.jsonl"
    result = CliRunner().invoke(app, ["demo", "--output", str(output)], env={"COLUMNS": "80"})

    assert_every_message_is_read(result, output)
    assert_the_table_shows_every_step_and_fits_80_columns(result)
    assert_the_last_lines_compare_with_reading_again(result, output)


def assert_every_message_is_read(result: Result, output: Path) -> None:
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    assert result.exit_code == 0, result.output
    assert [row["text"] for row in rows] == MESSAGES
    for row in rows:
        assert list(row) == ["text", "kind", "record", "due", "votes"]
        assert row["kind"] in KINDS
        assert row["record"] == Record.model_validate(row["record"]).model_dump()
        assert re.fullmatch(DATE, row["due"])
        assert 0 <= row["votes"] <= VOTES
    assert sum(row["votes"] for row in rows) > len(rows), "most samples of a sure model agree"


def assert_the_table_shows_every_step_and_fits_80_columns(result: Result) -> None:
    lines = result.stdout.splitlines()

    assert "\x1b" not in result.stdout
    assert max(map(len, lines[:-1])) <= 80  # the last line is a path
    column = next(line.index("Step") for line in lines if line.startswith("Message "))
    for step in ("kind", "record", "due", "votes"):
        assert len(MESSAGES) == sum(line[column:].startswith(f"{step} ") for line in lines)


def assert_the_last_lines_compare_with_reading_again(result: Result, output: Path) -> None:
    counts = [[int(n.replace(",", "")) for n in found] for found in re.findall(r"([\d,]+) +([\d,]+) +\d+ *$", result.stdout, re.M)]
    fed, reused = sum(count[0] for count in counts), sum(count[1] for count in counts)

    assert 4 * len(MESSAGES) == len(counts)
    assert f"Fed {fed:,} tokens. Re-reading the prompt at each step: {fed + reused:,} tokens" in result.stdout
    assert f"Records: {output}" == result.stdout.splitlines()[-1]


def test_the_demo_takes_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.cli.demo.read_messages", lambda: MESSAGES[:1])
    output = tmp_path / "records.jsonl"
    with as_file(files("outlines_cont.models") / "tiny") as folder:
        result = CliRunner().invoke(app, ["demo", "--model", str(folder), "--output", str(output)])
    assert result.exit_code == 0, result.output
    (row,) = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert row["record"] == json.loads(Demo(models.tiny()).read(MESSAGES[0]).to_json())["record"]
    missing = CliRunner().invoke(app, ["demo", "--model", str(tmp_path / "none"), "--output", str(output)])
    assert missing.exit_code == 2


def test_the_counts_are_those_of_the_tokens_of_a_message() -> None:
    model = models.tiny()
    text = read_messages()[0]

    kind, record, due, votes = Demo(model).read(text).steps

    prompt = model.tokenizer.encode(f"Message: {text}\nKind: ", add_special_tokens=True)
    assert kind.reused == 0
    assert len(prompt) <= kind.fed <= len(prompt) + 4
    # What a step has fed, later steps find again, but for a last token that nothing has asked for.
    assert kind.fed - 1 <= record.reused <= kind.fed + record.reused
    assert kind.fed + record.fed - 2 <= due.reused <= kind.fed + record.fed
    assert record.fed < kind.fed + record.fed
    # The forks begin where the record began, each with all that was read before it.
    assert votes.reused >= VOTES * (kind.fed - 4)
    assert votes.fed < VOTES * (record.fed + 30)


@pytest.mark.parametrize("content", ['{"mine": 1}\n', "text", "[]\n", None])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "records.jsonl"
    path.mkdir() if content is None else path.write_text(content)

    result = CliRunner().invoke(app, ["demo", "--output", str(path)])

    assert (result.exit_code, result.stdout) == (2, "")
    assert "Name another file with --output" in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path] == list(tmp_path.iterdir())
    assert content is None or content == path.read_text()


@pytest.mark.parametrize("name", ["no/such/folder.jsonl", "file/records.jsonl", "records.xlsx"])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")

    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / name)])

    assert (result.exit_code, result.stdout) == (2, "")
    wrong = "whose name ends in '.jsonl', '.ndjson'" if name.endswith("xlsx") else "that can be written"
    assert result.stderr.startswith(f"Error: expected an output {wrong}")
    assert result.stderr.count("\n") == 1


def test_an_interrupt_leaves_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    earlier = ROW.to_json() + "\n"
    path.write_text(earlier, encoding="utf-8")

    def interrupt(self: Demo, text: str) -> DemoRow:
        raise KeyboardInterrupt

    monkeypatch.setattr(Demo, "read", interrupt)
    result = CliRunner().invoke(app, ["demo", "--output", str(path)])

    assert (result.exit_code, result.stderr) == (130, "Interrupted; nothing was written.\n")
    assert [path] == list(tmp_path.iterdir())
    assert earlier == path.read_text(encoding="utf-8")


def test_a_failed_step_is_in_the_row_and_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demo, "read", lambda self, text: ROW)
    path = tmp_path / "records.jsonl"

    result = CliRunner().invoke(app, ["demo", "--output", str(path)])

    assert result.exit_code == 1
    assert f"{len(read_messages())} messages failed" in result.stdout
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert row["error"] == {"type": "ValueError", "message": "no date [in] it"}
    assert row["due"] is None


@pytest.mark.parametrize(("columns", "width"), [(20, 72), (72, 72), (80, 80), (100, 100), (300, 110)])
def test_a_row_fits_its_width_and_loses_no_result(columns: int, width: int) -> None:
    console = Console(file=io.StringIO(), width=max(columns, 72), force_terminal=False)
    table = DemoTable(console)
    table.print_head()
    table.print_row(ROW)
    text = console.file.getvalue()  # type: ignore[attr-defined]

    assert "\x1b" not in text
    assert max(Console(width=300).measure(line).maximum for line in text.splitlines()) <= width
    squeezed = re.sub(r"\s", "", text)
    assert "…" in text
    for word in ("ŁucjaŌta,12,", "1,234", "[in]"):
        assert word in squeezed
    assert squeezed.count("東") + squeezed.count("京") == 40
