"""Tables in and out of `outlines-cont extract`."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.cli.growing import summary
from outlines_cont.pipelines import InputError, SetupError
from outlines_cont.pipelines.extraction import Tally
from outlines_cont.pipelines.outcome import InputFormat
from outlines_cont.pipelines.reading import STDIN, RowSource, csv_rows
from tests.stand_in import extracted, extraction

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "in.csv").write_bytes('id,text,note\r\n1,"two ""lamps"",\nplease",é\r\n2,none,\r\n3,fail,\r\n'.encode())
    return tmp_path


def records(prompt: str) -> Any:
    return ValueError("no, thanks") if "fail" in prompt else {"n": len(prompt), "tags": ["a", None]}


def extract(answer: Any = None, **options: Any) -> bytes:
    return extracted(answer or records, **({"input": "in.csv", "schema": "s.json"} | options))


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=5), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_cells_of_a_csv_file_are_read_as_they_were_written(rows: list[list[str]], end: str, has_mark: bool) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([["text", "b c"], *rows])
    data = ("\ufeff" * has_mark + file.getvalue()).encode()
    found = list(RowSource(STDIN, InputFormat.CSV, "text", io.BytesIO(data)))
    assert [row.fields for row in found] == [dict(zip(["text", "b c"], row, strict=True)) for row in rows]
    assert len({row.digest for row in found}) == len(set(map(tuple, rows)))


def test_a_row_of_csv_that_cannot_be_used_fails_alone() -> None:
    data = b'text,id\na,1\nb\n"c\nd",2\n\xff,3\n\ne,4\n'
    found = list(RowSource(STDIN, InputFormat.CSV, "text", io.BytesIO(data)))
    assert [(row.line, row.fields) for row in found if row.error is None] == [
        (2, {"text": "a", "id": "1"}),
        (4, {"text": "c\nd", "id": "2"}),
        (8, {"text": "e", "id": "4"}),
    ]
    assert [(row.line, str(row.error)) for row in found if row.error is not None] == [
        (3, "expected 2 cells, as the header names, got 1"),
        (6, "expected UTF-8, got other bytes. Save the file as UTF-8."),
    ]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_are_told_by_the_first_line(separator: str) -> None:
    text = f'id{separator}text\n1{separator}"a, b"\n2{separator}"c\nd"\n'
    found = [row.fields for row in csv_rows(io.BytesIO(text.encode()))]
    assert found == [{"id": "1", "text": "a, b"}, {"id": "2", "text": "c\nd"}]
    assert [row.fields for row in csv_rows(io.BytesIO(b"a,b;c\n1,2;3\n"))] == [{"a": "1", "b;c": "2;3"}]


@pytest.mark.parametrize(
    ("header", "message"),
    [("", "names its columns, got an empty file"), ("a,b,a", "'a' twice"), ("text,record", "without the column 'record'")],
)
def test_a_header_that_cannot_be_used_is_refused(folder: Path, header: str, message: str) -> None:
    (folder / "in.csv").write_text(header and f"{header}\n1,2,3\n")
    with pytest.raises(SetupError, match=message):
        extract()


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_a_table_without_the_column_of_the_messages_is_refused(folder: Path, name: str) -> None:
    if name == "in.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": [1], "text": ["a"], "note": ["b"]}), name)
    with pytest.raises(SetupError, match="the column 'body', got one with 'id', 'text', 'note'.* --text-field"):
        extract(input=name, text_field="body")
    (folder / "note.jinja").write_text("{{ note }}")
    assert extract(input=name, text_field="body", prompt=Path("note.jinja"))  # no `text`, none is missed


def test_csv_goes_to_lines_and_to_csv(folder: Path) -> None:
    lines = [json.loads(line) for line in extract().splitlines()]
    assert [(line["id"], line["note"], line["_line"]) for line in lines] == [("1", "é", 2), ("2", "", 4), ("3", "", 5)]
    assert lines[0]["record"] == {"n": len('Message: two "lamps",\nplease\nRecord: '), "tags": ["a", None]}
    extract(output=Path("out.csv"))
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["n"] for row in rows] == [str(lines[0]["record"]["n"]), str(lines[1]["record"]["n"]), ""]
    assert [row["tags"] for row in rows] == ['["a", null]', '["a", null]', ""]
    assert [row["error"] for row in rows] == ["", "", "ValueError: no, thanks"]
    assert [row["_digest"] for row in rows] == [line["_digest"] for line in lines]
    assert sorted(path.name for path in folder.iterdir()) == ["in.csv", "out.csv", "s.json"]


def test_a_field_of_a_record_does_not_hide_that_of_the_row(folder: Path) -> None:
    (folder / "in.csv").write_text("text,n\nlamps,7\n")
    extract(output=Path("out.csv"))
    with (folder / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["n"], row["record.n"]) == ("7", str(len("Message: lamps\nRecord: ")))


def test_parquet_goes_to_parquet(folder: Path) -> None:
    table = pyarrow.table(
        {
            "text": ["one", "fail", None],
            "day": [date(2031, 5, 14), None, None],
            "price": [Decimal("1.50"), None, None],
            "data": pyarrow.array([{"x": [1]}, None, None]),
        }
    )
    pyarrow.parquet.write_table(table, folder / "in.parquet")
    extract(input="in.parquet", output=Path("out.parquet"))
    rows = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    assert [(row["day"], row["price"], row["data"]) for row in rows] == [("2031-05-14", "1.50", {"x": [1]}), (None,) * 3, (None,) * 3]
    assert rows[0]["record"] == {"n": len("Message: one\nRecord: "), "tags": ["a", None]}
    assert [row["error"] and row["error"]["type"] for row in rows] == [None, "ValueError", "RowError"]
    assert [row["_line"] for row in rows] == [1, 2, 3]


def test_what_has_no_type_in_common_is_json_in_parquet(folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"text": "a", "x": 1, "y": {}}\n{"text": "b", "x": "two", "y": null}\n')
    extract(input="in.jsonl", output=Path("out.parquet"))
    rows = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    assert [(row["x"], row["y"]) for row in rows] == [("1", "{}"), ('"two"', None)]


def test_records_have_the_types_of_the_schema_in_parquet(folder: Path) -> None:
    kinds = {
        "day": {"type": "string", "format": "date"},
        "n": {"type": "integer"},
        "x": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    }
    schema = {"type": "object", "properties": kinds, "required": [*kinds], "additionalProperties": False}
    (folder / "s.json").write_text(json.dumps(schema))
    record = {"day": "2031-05-14", "n": 3, "x": 4}
    extract(lambda prompt: ValueError("no") if "fail" in prompt else record, output=Path("out.parquet"))
    table = pyarrow.parquet.read_table(folder / "out.parquet")
    assert str(table.schema.field("record").type) == "struct<day: date32[day], n: int64, x: string>"
    assert [{"day": date(2031, 5, 14), "n": 3, "x": "4"}] * 2 + [None] == table["record"].to_pylist()
    record["n"] = 2**64  # more than the type holds: as the values are
    extract(lambda prompt: record, output=Path("big.parquet"))
    assert json.loads(pyarrow.parquet.read_table(folder / "big.parquet")["record"][0].as_py())["n"] == 2**64


def test_a_long_table_is_written_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None, 1, 2.5, "three", {"a": 1}, {"a": None, "b": "x"}, [], ["y"], [None]]
    rows = [{"text": str(i), "v": value, "n": i, "s": {"k": i} if i % 2 else None} for i, value in enumerate(values * 2)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    extract(input="in.jsonl", output=Path("whole.parquet"))
    monkeypatch.setattr("outlines_cont.pipelines.output._CHUNK", 2)
    extract(input="in.jsonl", output=Path("parts.parquet"))
    whole, parts = (pyarrow.parquet.read_table(folder / name) for name in ("whole.parquet", "parts.parquet"))
    assert whole.equals(parts)
    assert pyarrow.parquet.ParquetFile(folder / "parts.parquet").num_row_groups == len(rows) / 2


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_table_that_was_interrupted_is_gone_on_with(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(output=Path(f"whole-{name}"), batch_size=1)
    job = extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name), batch_size=1)
    with pytest.raises(KeyboardInterrupt):
        for tally in job:
            if tally.rows == 2:
                raise KeyboardInterrupt
    del job
    assert not (folder / name).exists()
    assert len((folder / f"{name}.part.jsonl").read_bytes().splitlines()) == 2
    with pytest.raises(SetupError, match="--resume"):
        extract(output=Path(name))
    asked: list[str] = []
    monkeypatch.setitem(globals(), "records", lambda prompt, told=records: asked.append(prompt) or told(prompt))
    extract(output=Path(name), resume=True)
    assert len(asked) == 1
    assert (folder / name).read_bytes() == (folder / f"whole-{name}").read_bytes()
    assert not (folder / f"{name}.part.jsonl").exists()
    extract(output=Path(name), resume=True)  # nothing is left to do
    assert len(asked) == 1
    assert (folder / name).read_bytes() == (folder / f"whole-{name}").read_bytes()
    for change, message in ((b"x", "line 2 of the input is not what row 1"), (b"", "is complete, and the input has grown: its line")):
        before = (folder / "in.csv").read_bytes()
        (folder / "in.csv").write_bytes(before.replace(b"two", b"two" + change, 1) + (b"" if change else b"more,,\n"))
        with pytest.raises(SetupError, match=message):
            extract(output=Path(name), resume=True)
        (folder / "in.csv").write_bytes(before)
    with pytest.raises(SetupError, match="row 1 of '.*' was made with others. Give"):
        extract(output=Path(name), resume=True, seed=5)
    with pytest.raises(SetupError, match="exists"):
        extract(output=Path(name))
    extract(output=Path(name), overwrite=True)
    assert (folder / name).read_bytes() == (folder / f"whole-{name}").read_bytes()


def test_what_is_no_parquet_file_is_refused(folder: Path) -> None:
    (folder / "in.parquet").write_bytes(b"text\nhello\n")
    with pytest.raises(SetupError, match="cannot be read as one"):
        extract(input="in.parquet")
    with pytest.raises(SetupError, match="expected a file with --input-format parquet"):
        extract(input=STDIN, input_format=InputFormat.PARQUET)


def test_a_corrupt_page_ends_the_run_after_the_rows_before_it(folder: Path) -> None:
    table = pyarrow.table({"text": [f"message {number}" for number in range(600)]})
    pyarrow.parquet.write_table(table, "in.parquet", row_group_size=256, use_dictionary=False, write_page_checksum=True)
    good = (folder / "in.parquet").read_bytes()
    extract(input="in.parquet", output=Path("whole.jsonl"))
    at = pyarrow.parquet.ParquetFile("in.parquet").metadata.row_group(1).column(0).data_page_offset + 100
    (folder / "in.parquet").write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])

    with pytest.raises(InputError, match=r"the end of 'in\.parquet', but what follows row 256 cannot be read.* --resume"):
        extract(input="in.parquet", output=Path("out.jsonl"))

    whole = (folder / "whole.jsonl").read_bytes()
    assert (folder / "out.jsonl").read_bytes() == b"".join(whole.splitlines(keepends=True)[:256])
    (folder / "in.parquet").write_bytes(good)
    extract(input="in.parquet", output=Path("out.jsonl"), resume=True)
    assert (folder / "out.jsonl").read_bytes() == whole


def test_a_cell_of_csv_that_never_ends_is_an_error_that_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.pipelines.reading._MAX_CELL", 20)
    (folder / "in.csv").write_text('text\na\n"' + "b" * 30)
    with pytest.raises(InputError, match="the end of 'in.csv', but what follows row 1 cannot be read: Error: field larger"):
        extract()


@pytest.mark.parametrize("name", ["out.xlsx", "out.json", "out", "out.jsonl.gz"])
def test_an_output_of_another_ending_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(SetupError, match=r"ends in '\.jsonl', '\.ndjson', '\.csv', '\.parquet', got 'out"):
        extract(output=Path(name))
    assert not (folder / name).exists()


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_two_runs_do_not_write_one_output(folder: Path, name: str, how: str) -> None:
    extract(output=Path(f"whole-{name}"))
    first = extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name))
    next(first)
    lines = next(folder.glob(f"{name}*")).read_bytes()

    with pytest.raises(SetupError, match=f"no other run writes, but one is writing '{name}"):
        extract(output=Path(name), **{how: True})

    assert next(folder.glob(f"{name}*")).read_bytes() == lines
    assert len([*first]) == 2
    assert (folder / name).read_bytes() == (folder / f"whole-{name}").read_bytes()


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("rest", [b"", b'{"_li'])
@pytest.mark.parametrize("steps", [1, 9])
def test_a_run_does_not_cut_what_another_has_written_since_it_read_the_output(folder: Path, name: str, rest: bytes, steps: int) -> None:
    """Both resume one output, and the first loads its model for longer than the other needs to write some rows, or all."""
    begun = extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name))
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    lines = next(folder.glob(f"{name}*"))
    lines.write_bytes(lines.read_bytes() + rest)

    slow = extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name), resume=True)
    fast = extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name), resume=True)
    for _ in zip(range(steps), fast, strict=False):
        pass
    fast.close()  # type: ignore[attr-defined]
    written = {path: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(SetupError, match="Run the command again with `resume|No such file"):
        next(slow)

    assert written == {path: path.read_bytes() for path in folder.iterdir()}
    assert len([*extraction(records, io.BytesIO(), input="in.csv", schema="s.json", output=Path(name), resume=True)]) == (steps == 1)


def test_fields_that_may_be_missing_are_named_on_the_command_line(folder: Path) -> None:
    (folder / "p.jinja").write_text("{{ text }}{% if note %} ({{ note }}){% endif %}{% if more %}{{ more }}{% endif %}")

    def errors(*names: str) -> list[str | None]:
        found = extract(input="in.jsonl", prompt=Path("p.jinja"), allow_missing=[*names]).splitlines()
        return [json.loads(line).get("error", {}).get("message") for line in found]

    (folder / "in.jsonl").write_text('{"text": "a", "note": null, "more": "x"}\n{"text": "b", "note": "c"}\n')
    note, more = ("expected a value in the field 'note', got None. Where", "expected a field 'more', got 'text', 'note'. Where")
    assert [str(error)[: len(start)] for error, start in zip(errors(), (note, more), strict=True)] == [note, more]
    assert [error is None for error in errors("note")] == [True, False]
    assert [error is None for error in errors("note", "more")] == [True, True]
    assert errors("*") == [None, None]
    with pytest.raises(SetupError, match=r"the template names \('more', 'note', 'text'\) in .*, got 'notes'. Did you mean 'note'"):
        errors("notes")
    with pytest.raises(SetupError, match="the column 'more', got one with 'id', 'text', 'note'.*--allow-missing"):
        extract(prompt=Path("p.jinja"))
    assert extract(prompt=Path("p.jinja"), allow_missing=["more", "note"])


def test_parquet_without_pyarrow_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (folder / "in.parquet").write_bytes(b"PAR1")
    with pytest.raises(SetupError, match=r"pip install 'outlines-cont\[parquet\]'"):
        extract(input="in.parquet")
    with pytest.raises(SetupError, match=r"pip install 'outlines-cont\[parquet\]'"):
        extract(output=Path("out.parquet"))


def test_a_summary_is_silent_on_loading_where_nothing_was_loaded_here() -> None:
    tally = Tally(4, rows=4, loading_seconds=1.0)
    assert summary(tally, None, 2.0, has_workers=True) == "4 rows, 0 failed, 2.0 s"
    assert summary(tally, None, 2.0) == "4 rows, 0 failed, 2.0 s, 1.0 of them loading the model"
