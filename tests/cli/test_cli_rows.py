"""Rows, schemas and outputs of `outlines-cont extract`, without a model."""

from __future__ import annotations

import datetime
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.cli.extract import prepared
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.pipelines import RowError, SetupError
from outlines_cont.pipelines.outcome import InputFormat, InputRow
from outlines_cont.pipelines.output import file_output
from outlines_cont.pipelines.reading import STDIN, RowSource
from outlines_cont.pipelines.record_schema import RecordSchema, load_schema
from tests import stand_in

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
field_names = st.text().filter(lambda name: name not in ("_line", "_digest", "record", "error", "text"))


def rows_of(data: bytes, input_format: InputFormat = InputFormat.AUTO) -> list[InputRow]:
    return list(RowSource(STDIN, input_format, "text", io.BytesIO(data)))


def extracted(data: bytes, extract: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Run an extraction over `data` with a stand-in for the model, and return its lines."""
    answer = extract or (lambda prompt: {"n": len(prompt)})
    return [json.loads(line) for line in stand_in.extracted(answer, data, **({"input": STDIN} | options)).splitlines()]


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return str(tmp_path / "s.json")


# --- rows


@given(st.lists(st.fixed_dictionaries({"text": st.text()}, optional={"id": json_values}), max_size=5), st.booleans())
def test_json_lines_come_back_as_they_were_written(objects: list[dict[str, Any]], ascii: bool) -> None:
    good = [item for item in objects if _has_utf8(item)]
    data = "\n".join(json.dumps(item, ensure_ascii=ascii) for item in good).encode()

    rows = rows_of(data, InputFormat.JSONL)

    assert good == [row.fields for row in rows]
    assert list(range(1, len(good) + 1)) == [row.line for row in rows]


def _has_utf8(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_blank_lines_are_no_rows_but_count() -> None:
    assert [(r.line, r.fields["text"]) for r in rows_of(b"a\n\n  \t\r\n b \r\n")] == [(1, "a"), (4, " b ")]


def test_only_a_line_feed_ends_a_line() -> None:
    text = "a\u2028b\x0bc\x85d\re"

    assert [text] == [row.fields["text"] for row in rows_of(text.encode())]


def test_a_byte_order_mark_is_no_text() -> None:
    assert [row.fields["text"] for row in rows_of(b"\xef\xbb\xbfa\n")] == ["a"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'\n{"text": "a"}\nnot json\n', [None, RowError]),
        (b'not json\n{"text": "a"}\n', [None, None]),
        (b'[1]\n{"text": "a"}\n', [None, None]),
        (b'"text"\n', [None]),
    ],
)
def test_the_first_line_of_a_stream_decides_what_it_is(data: bytes, expected: list[Any]) -> None:
    assert expected == [row.error and type(row.error) for row in rows_of(data)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "Expecting property name"),
        (b"[1]", "got list"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "Out of range float"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300"),
        (b"[" * 100_000, "recursion"),
        (b'{"text": "\xff"}', "byte 0xff at byte 10"),
        (b'{"text": "a", "record": 1}', "without 'record'"),
        (b'{"text": "a", "_digest": 1}', "without '_digest'"),
    ],
)
def test_an_unusable_line_is_a_row_with_an_error(line: bytes, message: str) -> None:
    (row,) = rows_of(line, InputFormat.JSONL)

    assert message in str(row.error)
    assert row.fields == {}


@given(st.binary(max_size=60))
def test_any_bytes_are_rows(data: bytes) -> None:
    for input_format in (InputFormat.AUTO, InputFormat.JSONL, InputFormat.TXT):
        rows = rows_of(data, input_format)
        assert len(rows) == sum(1 for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip())


@pytest.mark.parametrize("name", ["a.tsv", "a", "a.json"])
def test_a_name_that_says_nothing_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a")

    with pytest.raises(SetupError, match="--input-format"):
        RowSource(str(tmp_path / name), InputFormat.AUTO, "text", io.BytesIO())
    assert RowSource(str(tmp_path / name), InputFormat.TXT, "text", io.BytesIO()).count() == 1


# --- schemas


def test_a_schema_file_is_read(schema_file: str) -> None:
    schema = load_schema(schema_file)

    assert SCHEMA == schema.schema == json.loads(schema.json_schema)


@pytest.mark.parametrize("source", ["shop.models:Order", "shop.models:Order.Line", "shop.models:Lines", "shop/models.py:Order.Line"])
def test_a_type_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "models.py").write_text(
        "from pydantic import BaseModel, Field\n"
        "class Order(BaseModel):\n"
        "    class Line(BaseModel):\n"
        "        n: int = Field(alias='count')\n"
        "Lines = list[Order.Line]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    schema = load_schema(source)

    assert "type" in json.loads(schema.json_schema)
    if source.endswith("Line"):
        assert schema.dump(schema.schema(count=3)) == {"count": 3}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.json", "cannot be read"),
        ("bad.json", "is not JSON"),
        ("list.json", "got list"),
        ("deep.json", "is not JSON"),
        ("missing", "there is no such file"),
        ("nosuch_module:A", "none in .* or among the installed"),
        ("json:JSONDecoderr", "Did you mean 'JSONDecoder'"),
        ("json:Zzz", "It has the types"),
        ("json:loads", "got the function"),
        ("threading:Thread", "expected a pydantic model"),
        ("broken:A", "ZeroDivisionError"),
        ("leaves:A", "SystemExit"),
        ("missing.py:A", "there is no 'missing.py'"),
        ("missing.py", "got 'missing.py', and there is no such file"),
        ("needs.py", "expected `:` and the name of a class after the Python file 'needs.py'"),
        ("broken.py:A", "ZeroDivisionError"),
        ("needs:A", "No module named 'nosuch_other'"),
        (":A", "module:Class"),
        ("json:", "module:Class"),
        (".json", "cannot be read"),
        (".relative:A", "cannot be imported"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str) -> None:
    files = {
        "bad.json": "{",
        "list.json": "[1]",
        "deep.json": "[" * 100_000,
        "broken.py": "1 / 0",
        "leaves.py": "raise SystemExit(3)",
        "needs.py": "import nosuch_other",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(SetupError, match=message):
        load_schema(source)


# --- outputs


def test_a_file_holds_whole_lines_when_a_write_breaks_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"

    class Interrupted(io.FileIO):
        """A file whose writes are interrupted after some bytes, as a signal does it."""

        def write(self, data: Any) -> int:
            count = super().write(data[:8])
            if len(data) > 8:
                raise KeyboardInterrupt
            return count

    monkeypatch.setattr("outlines_cont.pipelines.output.FileIO", Interrupted)
    with pytest.raises(KeyboardInterrupt), file_output(path, None) as write:
        write(b"one\n")
        assert path.read_bytes() == b"one\n"
        write(b"two, but not to its end\n")
    assert path.read_bytes() == b"one\n"


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"precious")

    with pytest.raises(SetupError, match="exists"), file_output(path, None):
        pass
    assert path.read_bytes() == b"precious"


# --- extractions


def test_lines_keep_the_order_and_carry_the_other_fields(schema_file: str) -> None:
    data = b"".join(b'{"id": %d, "text": "%s"}\n' % (i, b"x" * (i + 1)) for i in range(20))

    lines = extracted(data, schema=schema_file, batch_size=3)

    assert [(i, i + 1, {"n": len("Message: \nRecord: ") + i + 1}) for i in range(20)] == [
        (line["id"], line["_line"], line["record"]) for line in lines
    ]
    assert {"id", "_line", "_digest", "record"} == set(lines[0])


def test_the_text_may_have_another_name(schema_file: str) -> None:
    (line,) = extracted(b'{"body": "abc", "text": "other"}\n', schema=schema_file, text_field="body")

    assert {"n": len("Message: abc\nRecord: ")} == line["record"]
    assert line["text"] == "other"


def test_a_template_may_do_without_a_text(schema_file: str, tmp_path: Path) -> None:
    (tmp_path / "p.jinja").write_text("{{ subject }}{{ schema }}")

    (line,) = extracted(b'{"subject": "abc"}\n', schema=schema_file, prompt=tmp_path / "p.jinja")

    assert {"n": 3 + len(json.dumps(SCHEMA, separators=(",", ":")))} == line["record"]


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b"{bad", "RowError", "JSON object"),
        (b'{"id": 1}', "RowError", "expected a field 'text', got 'id'"),
        (b"{}", "RowError", "got no fields"),
        (b'{"text": 3}', "RowError", "got int"),
        (b'{"text": " "}', "RowError", "blank"),
        (b'{"text": "refuse"}', "ValueError", "refused"),
    ],
)
def test_a_row_that_fails_has_an_error_and_the_others_go_on(schema_file: str, line: bytes, kind: str, message: str) -> None:
    def extract(prompt: str) -> Any:
        wrong = {"refuse": ValueError("refused")}
        return next((value for word, value in wrong.items() if word in prompt), {"n": 1})

    lines = extracted(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n', extract, schema=schema_file)

    assert [item.get("record") for item in lines] == [{"n": 1}, None, {"n": 1}]
    assert kind == lines[1]["error"]["type"]
    assert message in lines[1]["error"]["message"]
    assert lines[1]["_line"] == 2


def test_an_empty_input_loads_nothing_and_writes_nothing(schema_file: str, tmp_path: Path) -> None:
    def load() -> Any:
        raise AssertionError("a model was loaded")

    options = ExtractOptions(input=[STDIN], schema=schema_file, output=tmp_path / "out.jsonl")
    job, *_ = prepared(options, io.BytesIO(b"\n\n"), io.BytesIO())

    assert list(job.run(load)) == []
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_schema_of_python_types_dumps_what_the_type_makes(tmp_path: Path) -> None:
    schema = load_schema("datetime:date")

    assert isinstance(schema, RecordSchema)
    assert schema.dump(datetime.date(2030, 1, 2)) == "2030-01-02"
