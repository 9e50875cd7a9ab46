"""`outlines-cont extract` as a user runs it, with a random model on disk."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from outlines_cont import continuous, generate, models
from outlines_cont.cli.__main__ import app
from outlines_cont.pipelines import Extractor, SetupError
from outlines_cont.pipelines.outcome import InputRow
from outlines_cont.pipelines.output import match_done, settings_path, shown_settings, signed_line
from tests.page_server import PageServer
from tests.saved_model import save_model

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["order", "invoice", "question"]}, "amount": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "amount"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return write_input(tmp_path)


def write_input(folder: Path) -> Path:
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    lines = [json.dumps({"id": i, "text": f"message number {i} " + "please " * (i % 4)}) for i in range(10)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(model: Path | str, *arguments: str, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["extract", *arguments, "--model", str(model)], input=input)


def program(folder: Path, *arguments: str) -> Path:
    """A program that is the command, for a process of its own."""
    path = folder / "program.py"
    path.write_text(f"import sys\nfrom outlines_cont.cli.__main__ import main\nsys.argv[1:] = {['extract', *arguments]}\nmain()\n")
    return path


def lines_of(data: bytes | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


# --- what comes out


def test_records_go_to_the_standard_output_and_the_summary_does_not(saved_model: Path, folder: Path) -> None:
    result = run(saved_model, "in.jsonl", "--schema", "schema.json")

    lines = lines_of(result.stdout)
    assert result.exit_code == 0, result.stderr
    assert list(range(10)) == [line["id"] for line in lines]
    assert all(line["record"]["kind"] in SCHEMA["properties"]["kind"]["enum"] for line in lines)  # type: ignore[index]
    assert all(0 <= line["record"]["amount"] <= 99 for line in lines)
    assert re.match(r"10 rows, 0 failed, [\d.]+ s, [\d.]+ of them loading the model$", result.stderr)
    assert result.stderr.count("\n") == 1


def test_what_a_schema_does_not_enforce_is_said_once_and_plainly(saved_model: Path, folder: Path) -> None:
    odd = {**SCHEMA, "requried": ["kind"]}
    (folder / "odd.json").write_text(json.dumps(odd))

    result = run(saved_model, "in.jsonl", "--schema", "odd.json")

    assert result.exit_code == 0, result.stderr
    said = "Warning: parts of this schema are not enforced; `strict=True` refuses them:\n'#/requried': unknown keyword 'requried'"
    assert result.stderr.startswith(said)
    assert result.stderr.count("requried") == 2
    assert ".py" not in result.stderr


def test_a_tool_is_refused_as_a_schema_with_the_call_to_write(saved_model: Path, folder: Path) -> None:
    (folder / "tool.json").write_text(json.dumps({"name": "f", "input_schema": SCHEMA}))

    result = run(saved_model, "in.jsonl", "--schema", "tool.json")

    assert result.exit_code == 2
    assert "it is Anthropic's form of a tool, and the schema is at '#/input_schema'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_report_of_a_schema_says_what_only_annotates(folder: Path) -> None:
    (folder / "odd.json").write_text(json.dumps({"type": "string", "format": "URI", "pattern": "\\_"}))

    result = CliRunner().invoke(app, ["schema", "odd.json"])

    assert result.exit_code == 0
    assert "annotated: #/format: the format 'URI' is not known" in result.stdout
    assert "exact: #/pattern: ECMA-262 refuses it with the `u` flag" in result.stdout
    assert result.stderr == ""
    assert CliRunner().invoke(app, ["schema", "odd.json", "--strict"]).exit_code == 2


def test_the_report_of_a_schema_says_why_a_keyword_is_checked_and_how_json_is_spelled(folder: Path) -> None:
    (folder / "checked.json").write_text(json.dumps({"type": "array", "items": {"type": "string"}, "uniqueItems": True}))

    result = CliRunner().invoke(app, ["schema", "checked.json"])

    assert "checked: #/uniqueItems: an automaton cannot remember so many items" in result.stdout
    assert "spelling: white space: at most one space, after `:` and `,`" in result.stdout


def test_the_size_of_a_schema_is_said_in_states_and_transitions(folder: Path) -> None:
    result = CliRunner().invoke(app, ["schema", "schema.json"])
    assert re.search(r"^size: \d+ states, \d+ transitions along the example$", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("options", ["--batch-size 1", "--batch-size 3", "--draft lookup", "--progress"])
def test_batches_drafts_and_bars_change_no_record(saved_model: Path, folder: Path, whole: bytes, options: str) -> None:
    result = run(saved_model, "in.jsonl", "--schema", "schema.json", *options.split())

    assert whole.decode() == result.stdout
    assert ("10/10" in result.stderr) == (options == "--progress")


def test_a_row_is_sampled_by_its_prompt_and_the_seed(saved_model: Path, folder: Path) -> None:
    options = ("in.jsonl", "--schema", "schema.json", "--sampler", "multinomial(temperature=2.0)")
    outputs = {
        (seed, size): [line["record"] for line in lines_of(run(saved_model, *options, "--seed", seed, "--batch-size", size).stdout)]
        for seed, size in [("1", "1"), ("1", "4"), ("2", "4")]
    }
    assert outputs["1", "1"] == outputs["1", "4"] != outputs["2", "4"]
    greedy = [line["record"] for line in lines_of(run(saved_model, "in.jsonl", "--schema", "schema.json").stdout)]
    assert greedy != outputs["1", "1"]


def test_members_come_in_any_order_when_asked_for(saved_model: Path, folder: Path) -> None:
    options = ("in.jsonl", "--schema", "schema.json", "--sampler", "multinomial(temperature=4.0)")
    orders = [{tuple(line["record"]) for line in lines_of(run(saved_model, *options, *more).stdout)} for more in ([], ["--any-order"])]
    assert orders == [{("kind", "amount")}, {("kind", "amount"), ("amount", "kind")}]


def test_text_comes_from_the_standard_input(saved_model: Path, folder: Path) -> None:
    result = run(saved_model, "-", "--schema", "schema.json", "--keep-text", input="caf\u00e9\n\nb\n".encode())

    assert [(line["_line"], line["text"]) for line in lines_of(result.stdout)] == [(1, "caf\u00e9"), (3, "b")]


def test_rows_that_fail_do_not_stop_the_others(saved_model: Path, folder: Path) -> None:
    texts = ["fine", "long " * 400, "fine, too", "x" * 300]
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts) + "{broken\n"

    result = run(saved_model, "-", "--schema", "schema.json", input=data.encode())

    errors = [line.get("error", {}).get("type") for line in lines_of(result.stdout)]
    assert errors == [None, "ContextLengthError", None, "ContextLengthError", "RowError"]
    assert result.exit_code == 1
    assert "5 rows, 3 failed" in result.stderr
    assert "First failure: line 2: ContextLengthError" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_batch_in_which_no_row_can_run_is_no_end(saved_model: Path, folder: Path) -> None:
    data = b"x" * 300 + b"\n" + b"y" * 301 + b"\nz\n"
    lines = lines_of(run(saved_model, "-", "--schema", "schema.json", "--batch-size", "2", input=data).stdout)

    messages = [line["error"]["message"] for line in lines if "error" in line]
    assert len({*messages}) == 2  # each its own length
    assert "record" in lines[2]


def test_a_record_that_is_cut_is_an_error_that_says_what_to_do(saved_model: Path, folder: Path) -> None:
    result = run(saved_model, "in.jsonl", "--schema", "schema.json", "--max-tokens", "3")

    errors = [line["error"] for line in lines_of(result.stdout)]
    assert {"IncompleteOutput"} == {error["type"] for error in errors}
    assert "Raise `max_tokens` (--max-tokens)" in errors[0]["message"]
    assert result.exit_code == 1


def test_special_tokens_of_a_template_are_such_and_those_of_a_row_letters(saved_model: Path, folder: Path) -> None:
    model = models.transformers(str(saved_model))
    row = {"text": "a <eos>", "more": ["<eos>", 1]}
    for template, count in (("<eos>M: {{ text }}{{ row['more'] }}<eos>", 2), ("<eos>{{ id }}", 1), ("{{ text }}", 0)):
        given = Extractor(model, SCHEMA, template).prompt({**row, "id": 1})
        state = continuous(generate.text(model))(given, max_tokens=1)
        ids = list(state.rows[0][0].token_ids)
        assert ids.count(model.tokenizer.eos_token_id) == count
        assert chr(0xFDD0) not in str(state)
        assert str(state).startswith(template[:4].replace("{{ t", "a <e"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(saved_model, "-", "--schema", "schema.json", input=b"a <eos> <eos>\n")
    assert result.exit_code == 0


def test_a_template_makes_the_prompt(saved_model: Path, folder: Path) -> None:
    (folder / "p.jinja").write_text("{{ id }} {% if id == 3 %}{{ id.nosuch }}{% endif %}")

    result = run(saved_model, "in.jsonl", "--schema", "schema.json", "--prompt", "p.jinja")

    failed = [line for line in lines_of(result.stdout) if "error" in line]
    assert [(line["id"], line["error"]["type"]) for line in failed] == [(3, "TemplateError")]


# --- what cannot be used


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl", "-s", "schema.json"], "'missing.jsonl' cannot be read: No such file"),
        ([".", "-s", "schema.json"], "Is a directory"),
        (["in.jsonl", "-s", "missing.json"], "'missing.json' cannot be read"),
        (["in.jsonl", "-s", "bad.json"], "is not JSON"),
        (["in.jsonl", "-s", "unsupported.json"], "'#"),
        (["in.jsonl", "-s", "nothing.json"], "no"),
        (["in.jsonl", "-s", "schema.json", "--sampler", "multinomial(temprature=1)"], "Did you mean 'temperature'?"),
        (["in.jsonl", "-s", "nosuch_module:A"], "Go to the folder that holds it"),
        (["in.jsonl", "-s", "schema.json", "-p", "missing.jinja"], "'missing.jinja' cannot be read"),
        (["in.jsonl", "-s", "schema.json", "-p", "bad.jinja"], "line 2 is malformed"),
        (["in.jsonl", "-s", "schema.json", "--device", "nosuch"], "cannot be loaded"),
        (["in.jsonl", "-s", "schema.json", "-o", "no/such/out.jsonl"], "Make the folder 'no/such' first"),
        (["in.jsonl", "-s", "schema.json", "-o", "."], "is a folder"),
        (["in.jsonl", "-s", "schema.json", "-o", "in.jsonl", "--overwrite"], "got 'in.jsonl' for both"),
        (["in.jsonl", "-s", "schema.json", "-o", "old.jsonl"], "resume with `--resume`, replace it with `--overwrite`"),
        (["in.jsonl", "-s", "schema.json", "-o", "old.jsonl", "--resume", "--overwrite"], "got both"),
        (["in.jsonl", "-s", "schema.json", "--resume"], "expected --output"),
        (["in.jsonl", "-s", "schema.json", "-o", "old.jsonl", "--resume"], "not a line of one"),
        (["in.jsonl", "-s", "schema.json", "-o", "old.jsonl", "--overwrite", "-p", "bad.jinja"], "malformed"),
        (["in.jsonl", "-s", "schema.json", "-o", "old.jsonl", "--overwrite", "--device", "nosuch"], "cannot be loaded"),
        (["in.jsonl", "-s", "schema.json", "-o", "new.jsonl", "--device", "nosuch"], "cannot be loaded"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_touches_nothing(saved_model: Path, folder: Path, arguments: list[str], message: str) -> None:
    (folder / "bad.json").write_text("{")
    (folder / "unsupported.json").write_text('{"type": "object", "unevaluatedProperties": {"type": "nosuch"}}')
    (folder / "nothing.json").write_text('{"type": "integer", "minimum": 5, "maximum": 4}')
    (folder / "bad.jinja").write_text("{{ text }}\n{{ text")
    (folder / "old.jsonl").write_text('{"precious": 1}\n')
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    result = run(saved_model, *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["./nosuch", "a/b/c", "./empty", "broken", "no tokenizer"])
def test_a_model_that_cannot_be_loaded_is_one_line(saved_model: Path, folder: Path, name: str) -> None:
    (folder / "empty").mkdir()
    for copy, left_out in (("broken", None), ("no tokenizer", "token")):
        (folder / copy).mkdir()
        for path in saved_model.iterdir():
            if left_out is None or left_out not in path.name:
                (folder / copy / path.name).write_bytes(path.read_bytes())
    (folder / "broken" / "model.safetensors").write_bytes(b"\0" * 100)

    result = run(name, "in.jsonl", "--schema", "schema.json", "--output", "out.jsonl")

    assert result.exit_code == 2
    assert f"Error: the model {name!r} cannot be loaded" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "out.jsonl").exists()


# --- going on


@pytest.fixture(scope="module")
def whole_file(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that nothing has stopped; every test has the same input, and its own output."""
    folder = write_input(tmp_path_factory.mktemp("whole"))
    out = folder / "whole.jsonl"
    arguments = (str(folder / "in.jsonl"), "-s", str(folder / "schema.json"), "-o", str(out), "--batch-size", "2")
    assert run(saved_model, *arguments).exit_code == 0
    return out


@pytest.fixture(scope="module")
def whole(whole_file: Path) -> bytes:
    return whole_file.read_bytes()


RESUME = ("in.jsonl", "-s", "schema.json", "-o", "out.jsonl", "--batch-size", "2", "--resume")


@pytest.mark.parametrize(("how", "cut"), [("--overwrite", 4), ("--resume", None), *(("--resume", cut) for cut in (0, 1, 4, 10))])
@pytest.mark.parametrize("rest", [b"", b'{"id": 4, "_li', b'{"id": 4}'])
def test_resuming_and_overwriting_give_the_same_as_one_run(
    saved_model: Path, folder: Path, whole: bytes, how: str, cut: int | None, rest: bytes
) -> None:
    if cut is not None:
        (folder / "out.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:cut]) + rest)

    result = run(saved_model, *RESUME[:-1], how)

    assert result.exit_code == 0, result.stderr
    assert whole == (folder / "out.jsonl").read_bytes()
    kept = (cut or 0) if how == "--resume" else 0
    assert (f"{kept} of them were there already" in result.stderr) == (kept > 0)


def test_an_output_that_holds_a_failed_row_ends_with_status_1_again(saved_model: Path, folder: Path) -> None:
    (folder / "in.txt").write_text("x" * 400 + "\n")
    arguments = ("in.txt", "-s", "schema.json", "-o", "out.jsonl", "--resume")
    first, second = run(saved_model, *arguments), run(saved_model, *arguments)

    assert (first.exit_code, second.exit_code) == (1, 1)
    assert "1 rows, 1 failed" in second.stderr


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("row", (), "line 2 of the input is not what line 2 of 'out.jsonl' was made of"),
        ("shorter", (), "at least 3 rows"),
        ("blank", (), "line 3 of the input"),
        ("schema", (), "was made with others: `--schema` was '{"),
        ("", ("--max-tokens", "99"), "was made with others: `--max-tokens` was 1024, and is 99. Give"),
        ("", ("--prompt", "p.jinja"), r"was made with others: `--prompt` was 'Message: {{ text }}\nRecord: ', and is '{{ text }}'. Give"),
        ("", ("--keep-text",), "was made with others: `--keep-text` was not set, and is True. Give"),
        ("", ("--whitespace", "none"), "'whitespace': 'one_space', 'key_order': 'schema'}, and is {'whitespace': 'none'"),
        ("", ("--any-order",), "'key_order': 'schema'}, and is {'whitespace': 'one_space', 'key_order': 'any'}. Give"),
        ("", ("--seed", "7"), "was made with others: `--seed` was 0, and is 7. Give"),
        ("", ("--seed", "7", "--dtype", "bfloat16"), ": `--seed` was 0, and is 7; `--dtype` was not set, and is 'bfloat16'. Give"),
        ("", ("--allow-missing", "*"), "was made with others: `--allow-missing` was not set, and is True. Give"),
        ("no settings", ("--seed", "7"), "line 1 of 'out.jsonl' was made with others. Give"),
        ("garbage", (), "line 2 of 'out.jsonl' is not a line of one"),
        ("record", (), "line 3 of 'out.jsonl' was edited, or is of an earlier version. Restore it"),
        ("no record", (), "line 3 of 'out.jsonl' was edited"),
        ("version", (), "line 3 of 'out.jsonl' was edited, or is of an earlier version"),
    ],
)
def test_resuming_something_else_is_refused(
    saved_model: Path, folder: Path, whole_file: Path, change: str, arguments: tuple[str, ...], message: str
) -> None:
    whole = whole_file.read_bytes()
    out = b"".join(whole.splitlines(keepends=True)[:4])
    (folder / "out.jsonl").write_bytes(out)
    settings_path(folder / "out.jsonl").write_bytes(settings_path(whole_file).read_bytes())
    (folder / "p.jinja").write_text("{{ text }}")
    rows = (folder / "in.jsonl").read_text().splitlines(keepends=True)
    if change == "row":
        rows[1] = rows[1].replace("message", "letter")
    elif change == "shorter":
        rows = rows[:2]
    elif change == "blank":
        rows.insert(1, "\n")
    elif change == "schema":
        (folder / "schema.json").write_text(json.dumps(SCHEMA | {"title": "other"}))
    elif change == "garbage":
        out = whole.splitlines(keepends=True)[0] + b"{}\n"
        (folder / "out.jsonl").write_bytes(out)
    elif change == "no settings":
        settings_path(folder / "out.jsonl").unlink()  # as where the output was moved without it
    elif change in ("record", "no record", "version"):
        lines = out.splitlines(keepends=True)
        fields = json.loads(lines[2])
        if change == "version":
            fields["_digest"] = fields["_digest"].rpartition("-")[0]
        elif change == "record":
            fields["record"]["kind"] = "edited"
        else:
            del fields["record"]
        out = b"".join([*lines[:2], json.dumps(fields, ensure_ascii=False).encode() + b"\n", *lines[3:]])
        (folder / "out.jsonl").write_bytes(out)
    (folder / "in.jsonl").write_text("".join(rows))

    result = run(saved_model, *RESUME, *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert out == (folder / "out.jsonl").read_bytes()


@given(st.one_of(st.binary(), st.sampled_from([b"null", b"1", b"[]", b"{}", b"[" * 9_999])))
def test_settings_that_no_run_has_kept_are_as_none(kept: bytes) -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        row = InputRow(1, "0" * 12)
        out.write_bytes(signed_line({"_line": 1, "_digest": f"{row.digest}-{'1' * 12}"}))
        settings_path(out).write_bytes(kept)
        with pytest.raises(SetupError, match="was made with others(: `seed` was not set, and is 1)?. Give"):
            match_done(out, iter([row]), "2" * 12, shown_settings({"seed": 1}))


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_an_interrupt_leaves_whole_lines_and_resuming_completes_them(saved_model: Path, folder: Path, page_server: PageServer) -> None:
    rows = [json.dumps({"id": i, "text": f"message {i}"}) + "\n" for i in range(3000)]
    (folder / "in.jsonl").write_text("".join(rows))
    out = folder / "out.jsonl"
    pid = page_server.start(program(folder, *RESUME, "--model", str(saved_model)))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (out.exists() and out.stat().st_size):
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)

    assert page_server.wait() == 130
    assert (folder / "program.out").read_text() == ""
    said = "Interrupted. out.jsonl is intact; run the same command with --resume to continue.\n"
    assert said == (folder / "program.err").read_text()
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    count = len(lines_of(kept))
    assert 0 < count < 3000

    (folder / "in.jsonl").write_text("".join(rows[: count + 3]))
    assert run(saved_model, *RESUME).exit_code == 0
    assert kept == out.read_bytes()[: len(kept)]
    assert list(range(count + 3)) == [line["id"] for line in lines_of(out.read_bytes())]


@pytest.mark.parametrize(
    ("arguments", "message"), [((), "Interrupted.\n"), (("-o", "new.jsonl"), "Interrupted before the first row; nothing was written.\n")]
)
def test_an_interrupt_before_the_first_row_promises_no_output(
    saved_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outlines_cont.cli.model.load_model", interrupt)

    result = run(saved_model, "in.jsonl", "-s", "schema.json", *arguments)

    assert (result.exit_code, result.stdout, result.stderr) == (130, "", message)
    assert not (folder / "new.jsonl").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ")
def test_a_reader_that_goes_away_ends_the_command_quietly(saved_model: Path, folder: Path, page_server: PageServer) -> None:
    (folder / "in.txt").write_text("message\n" * 3000)
    script = program(folder, "in.txt", "-s", "schema.json", "-m", str(saved_model))
    os.mkfifo(folder / "program.out")
    page_server.start(script)
    with (folder / "program.out").open() as reader:
        first = reader.readline()

    assert page_server.wait() == 1
    assert json.loads(first)["_line"] == 1
    assert (folder / "program.err").read_text() == ""
