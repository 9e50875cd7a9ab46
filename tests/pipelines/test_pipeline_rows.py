"""Random tables in every kind of container and file, and random damage of an output before it is resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import pipelines
from outlines_cont.pipelines import Failure, Outcome, SetupError
from tests.examples import examples
from tests.fakes import random_model

FIELDS = ("body", "n")
TEMPLATE = '{% if body %}{{ body }}{% endif %}|{% if row["n"] %}{{ row["n"] }}{% endif %}|{{ id }}'


class Told(pipelines.Extractor):
    """An extractor whose record is the prompt of its row, without a model."""

    def outcomes(self, rows: Iterable[Any], show: Any = None) -> Generator[Outcome, None, None]:
        for row in rows:
            try:
                yield Outcome(record={"prompt": self.prompt(row).text})
            except Exception as error:
                yield Outcome(failure=Failure.of(error))


@cache
def told(allowed: tuple[str, ...] = (), template: str = TEMPLATE) -> Told:
    schema = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}
    return Told(random_model("llama"), {**schema, "additionalProperties": False}, template, allow_missing=allowed)


# --- rows


def as_dicts(rows: list[dict[str, Any]]) -> Any:
    """Dicts, which may lack a field, or have NaN in its place."""
    wrong: list[dict[str, Any]] = [{}, {"body": math.nan, "n": math.nan}, {"body": None, "n": None}]
    return [
        {name: value for name, value in {**row, **absent}.items() if name in absent or value is not None}
        for at, row in enumerate(rows)
        for absent in [{name: value for name, value in wrong[at % 3].items() if row[name] is None}]
    ]


def as_columns(rows: list[dict[str, Any]]) -> Any:
    return {name: [row[name] for row in rows] for name in rows[0]}


def as_pandas(rows: list[dict[str, Any]]) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    missing = [None, math.nan, pandas.NA, pandas.NaT]
    cells = [
        {name: missing[(at + len(name)) % 4] if value is None else value for name, value in row.items()} for at, row in enumerate(rows)
    ]
    return pandas.DataFrame(cells, dtype=object, index=[0] * len(rows))


def as_typed_pandas(rows: list[dict[str, Any]]) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(rows).astype({"body": "string", "n": "Int64"})
    return frame.assign(day=pandas.Timestamp("2030-01-02"), data=b"\xff")  # no template names these


def as_polars(rows: list[dict[str, Any]]) -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.DataFrame(rows, schema={"body": polars.String, "n": polars.Float64, "id": polars.Int64})


def as_arrow(rows: list[dict[str, Any]]) -> Any:
    kinds = [("body", pyarrow.string()), ("n", pyarrow.int64()), ("id", pyarrow.int64())]
    return pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(kinds))


def as_dataset(rows: list[dict[str, Any]]) -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    return datasets.Dataset(as_arrow(rows))


def dicts_of(found: Any) -> list[dict[str, Any]]:
    """The rows of any container."""
    if isinstance(found, dict):
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    if hasattr(found, "to_pylist"):
        return list(found.to_pylist())
    if hasattr(found, "to_dicts"):
        return list(found.to_dicts())
    if hasattr(found, "to_dict") and hasattr(found, "iloc"):
        found = found.astype(object).where(found.notna(), None).to_dict("records")
    return [dict(row) for row in found]


def by_file(name: str, write: Callable[[list[dict[str, Any]], Path], Any]) -> Callable[[Told, Any], Any]:
    """Runs the rows from a file to a file."""

    def run(extractor: Told, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with TemporaryDirectory() as folder:
            source, output = Path(folder) / name, Path(folder) / "out.jsonl"
            write(rows, source)
            pipelines.run(source, extractor, output)
            lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        return [
            {"prompt": line["record"]["prompt"] if "record" in line else None, "error": line.get("error", {}).get("message")}
            for line in lines
        ]

    return run


def in_memory(container: Callable[[Any], Any]) -> Callable[[Told, Any], Any]:
    return lambda extractor, rows: dicts_of(extractor(container(rows)))


WAYS = {
    "dicts": in_memory(as_dicts),
    "an iterator": in_memory(lambda rows: iter(as_dicts(rows))),
    "columns": in_memory(as_columns),
    "pandas": in_memory(as_pandas),
    "typed pandas": in_memory(as_typed_pandas),
    "polars": in_memory(as_polars),
    "arrow": in_memory(as_arrow),
    "datasets": in_memory(as_dataset),
    "jsonl": by_file("in.jsonl", lambda rows, path: path.write_text("".join(json.dumps(row) + "\n" for row in rows))),
    "csv": by_file("in.csv", lambda rows, path: pyarrow.csv.write_csv(as_arrow(rows), path)),
    "parquet": by_file("in.parquet", lambda rows, path: pyarrow.parquet.write_table(as_arrow(rows), path)),
}

bodies = st.sampled_from(["two lamps", 'é, "x"', "nan", "", " \t\n", None, None])
tables = st.lists(st.tuples(bodies, st.sampled_from([3, 70, None])), min_size=1, max_size=6)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=examples(9), deadline=None)
@given(tables, st.sets(st.sampled_from(FIELDS)))
def test_a_row_is_a_record_or_an_error_that_names_the_field(
    way: str, cells: list[tuple[str | None, int | None]], allowed: set[str]
) -> None:
    rows = [{"body": body, "n": n, "id": at} for at, (body, n) in enumerate(cells)]
    wrong = [[name for name in FIELDS if row[name] is None or not str(row[name]).strip()] for row in rows]
    needed = {*FIELDS} - allowed
    extractor = told(tuple(sorted(allowed)))
    if way == "dicts" and any(all(name not in row for row in as_dicts(rows)) for name in needed):
        with pytest.raises(SetupError, match="expected a table with the column"):
            extractor(as_dicts(rows))
        return

    found = WAYS[way](extractor, rows)

    assert len(rows) == len(found)
    for row, names, out in zip(rows, wrong, found, strict=True):
        names = [name for name in names if name in needed]
        if names:
            assert out["prompt"] is None
            assert any(f"the field {name!r}" in out["error"] or f"a field {name!r}" in out["error"] for name in names)
        else:
            assert out["error"] is None
            body, n, number = out["prompt"].split("|")
            assert (str(row["id"]), row["body"] or "") == (number, body)
            assert (row["n"] or "") == (n and int(float(n)))


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("an iterator", "jsonl")])
def test_a_table_without_a_column_of_the_template_is_refused(way: str) -> None:
    rows = [{"body": "a", "n": 3, "id": 1}, {"body": "b", "n": 4, "id": 2}]
    with pytest.raises(SetupError, match=r"the column 'bodi', got one with .*'body'.*Did you mean 'body'\?"):
        WAYS[way](told(template="{{ bodi }}{{ id }}"), rows)


# --- resumed outputs


@cache
def input_rows() -> bytes:
    return b"".join(json.dumps({"id": at, "body": None if at == 3 else f"message {at % 4}", "n": 1}).encode() + b"\n" for at in range(7))


def run_in(folder: Path, before: bytes | None, template: str = TEMPLATE) -> bytes:
    """Run to `out.jsonl`, where there is `before` from an earlier run, and return what is there in the end."""
    (folder / "in.jsonl").write_bytes(input_rows())
    if before is not None:
        (folder / "out.jsonl").write_bytes(before)
    with suppress(SetupError):
        pipelines.run(folder / "in.jsonl", told(template=template), folder / "out.jsonl", resume=True)
    return (folder / "out.jsonl").read_bytes()


@cache
def output(template: str = TEMPLATE) -> bytes:
    with TemporaryDirectory() as folder:
        return run_in(Path(folder), None, template)


def edited(line: bytes, at: int) -> bytes:
    """A line with one part changed that a person may change."""
    fields = json.loads(line)
    what = [*fields][at % len(fields)]
    fields[what] = {"prompt": "mine"} if what == "record" else None
    if at % 3 == 0:
        del fields[what]
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def damage(draw: Callable[[st.SearchStrategy[Any]], Any], lines: list[bytes]) -> list[bytes]:
    """Lines after one accident."""
    at, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    foreign = [b"{}\n", b"\n", b"null\n", b"x\n", b'{"_digest": "-", "_line": 1}\n', *output("{{ body }}{{ id }}").splitlines(True)]
    swapped = list(lines)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    byte = draw(st.integers(0, len(lines[at]) - 1))
    flipped = lines[at][:byte] + bytes([draw(st.integers(0, 255))]) + lines[at][byte + 1 :]
    return draw(
        st.sampled_from(
            [
                lines[:at],
                [*lines[:at], lines[at][:byte]],
                lines[:at] + lines[at + 1 :],
                [*lines[:at], lines[other], *lines[at:]],
                swapped,
                [*lines[:at], draw(st.sampled_from(foreign)), *lines[at:]],
                [*lines[:at], flipped, *lines[at + 1 :]],
                [*lines[:at], edited(lines[at], byte), *lines[at + 1 :]],
            ]
        )
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_damaged_output_is_resumed_to_what_one_run_writes_or_refused(data: st.DataObject) -> None:
    before = b"".join(damage(data.draw, output().splitlines(True)))
    with TemporaryDirectory() as folder:
        after = run_in(Path(folder), before)
    assert after in (output(), before)
    whole = before[: before.rfind(b"\n") + 1]
    assert (after == output()) == output().startswith(whole)
