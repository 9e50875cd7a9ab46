"""`outlines-cont run` as a user runs it, with a random model on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outlines_cont.cli.__main__ import app
from tests.saved_model import save_model

PROGRAM = "Text: {{ text }}\nKind: {{ choice('kind', ['order', 'other']) }}{{ json('record', schema) }}\n"
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.jinja").write_text(PROGRAM)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def run(model: Path, *arguments: str, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["run", "program.jinja", *arguments, "--model", str(model)], input=input)


def test_one_run_writes_its_text_or_its_captures(saved_model: Path, folder: Path) -> None:
    settings = ("--set", "text=two lamps", "--set", "schema=@schema.json")
    done = run(saved_model, *settings)
    assert done.exit_code == 0, done.stderr
    found = json.loads(run(saved_model, *settings, "--json").stdout)
    assert done.stdout == found["output"] + "\n"
    assert found["captures"]["kind"] in ("order", "other")
    assert found["captures"]["record"]["n"] in (1, 2)
    kind, n = found["captures"]["kind"], found["captures"]["record"]["n"]
    assert found["output"].replace(" ", "") == f'Text:twolamps\nKind:{kind}{{"n":{n}}}'


def test_rows_come_out_in_their_order_each_with_its_own_error(saved_model: Path, folder: Path) -> None:
    rows: list[Any] = [{"text": "a", "id": 1}, {"txt": "b"}, {"text": "c", "output": 1}, {"text": "d"}]
    lines = "\n".join(["nothing", *map(json.dumps, rows), "also nothing"])
    (folder / "rows.jsonl").write_text(lines + "\n")
    arguments = ("--set", "schema=@schema.json", "--rows", "rows.jsonl")
    done = run(saved_model, *arguments)
    assert done.exit_code == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["_line"] for row in found] == [1, 2, 3, 4, 5, 6]
    kinds = [row["error"]["type"] if "error" in row else "" for row in found]
    assert kinds == ["RowError", "", "TemplateError", "RowError", "", "RowError"]
    assert found[1]["id"] == 1
    assert found[1]["output"].startswith("Text: a\nKind: ")
    assert found[4]["captures"].keys() == {"kind", "record"}
    assert "6 rows, 4 failed" in done.stderr
    assert "First failure: line 1: RowError" in done.stderr
    piped = run(saved_model, *arguments[:3], "-", "--input-format", "jsonl", input=lines.encode())
    assert piped.stdout == done.stdout
    written = run(saved_model, *arguments, "--out", "out.jsonl", "--no-progress")
    assert written.exit_code == 1
    assert (folder / "out.jsonl").read_text(encoding="utf-8") == done.stdout
    refused = run(saved_model, *arguments, "--out", "out.jsonl").stderr
    assert "exists: replace it with" in refused
    assert "resume" not in refused
    (folder / "out.jsonl").write_text("much more than is written " * 200)
    assert run(saved_model, *arguments, "--out", "out.jsonl", "--overwrite").exit_code == 1
    assert (folder / "out.jsonl").read_text(encoding="utf-8") == done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "text"), "expected --set NAME=VALUE, got 'text'"),
        (("--set", "text=a", "--set", "text=b"), "expected each name once"),
        (("--set", "text=@nothing"), "after the @ of --set"),
        (("--set", "txt=a"), "Did you mean 'text'?"),
        (("--output", "out.jsonl"), "expected --rows with --output"),
        (("--rows", "-", "--output", "out.csv"), "whose name ends in '.jsonl', '.ndjson', got 'out.csv'"),
        (("--rows", "nothing.jsonl"), "cannot be read"),
        (("--sampler", "best"), "as --sampler"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(folder / "no model", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_fails_says_where(saved_model: Path, folder: Path) -> None:
    (folder / "program.jinja").write_text("a\n{{ gen('x', max_tokens=300, min_tokens=300) }}")
    done = run(saved_model, "--max-tokens", "8")
    assert (done.exit_code, done.stdout[:2]) == (1, "a\n")
    assert done.stderr.startswith("Error: line 2, column 4: expected a template of at most 8 tokens")
    (folder / "program.jinja").write_text("{{ gen(")
    done = run(saved_model)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "program.jinja" in done.stderr
    assert "line 1" in done.stderr


def test_a_value_that_is_the_name_of_a_file_is_noted(saved_model: Path, folder: Path) -> None:
    done = run(saved_model, "--set", "text=schema.json", "--set", "schema=@schema.json")
    assert "Text: schema.json" in done.stdout
    assert done.stderr.startswith("Note: text is the text 'schema.json'. To give the text of the file write --set text=@schema.json\n")
    assert "Note" not in run(saved_model, "--set", f"text={'a' * 5000}", "--set", "schema=@schema.json").stderr


def test_a_name_without_a_value_says_how_it_gets_one(saved_model: Path, folder: Path) -> None:
    (folder / "program.jinja").write_text("Text: {{ text }}")
    done = run(saved_model)
    assert done.exit_code == 1
    assert "'text' is undefined. Give it in the row, or for all rows: `--set text=...`." in done.stderr
    assert ".." not in done.stderr.replace("...", "")
    (folder / "program.jinja").write_text("Text: {{ row.text.author }}")
    assert "Give it in the row" not in run(saved_model, "--set", "text=a").stderr


@pytest.mark.parametrize("name", ["state", "rng", "rows", "sampler", "budget", "model", "top"])
def test_a_value_may_be_named_as_a_parameter_of_ours(saved_model: Path, folder: Path, name: str) -> None:
    (folder / "program.jinja").write_text(f"{{{{ {name} }}}}, {{{{ text }}}}.")
    once = run(saved_model, "--set", f"{name}=a", "--set", "text=b")
    assert (once.exit_code, once.stdout) == (0, "a, b.\n"), once.stderr
    (folder / "rows.jsonl").write_text('{"text": "c"}\n')
    rows = run(saved_model, "--set", f"{name}=a", "--rows", "rows.jsonl")
    assert (rows.exit_code, json.loads(rows.stdout)["output"]) == (0, "a, c."), rows.stderr
