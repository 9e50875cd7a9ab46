"""What is made of many outcomes: a report, a calibration, and a file of records with both beside it."""

from __future__ import annotations

import itertools
import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from outlines_cont import Progress, pipelines
from outlines_cont.cli.__main__ import app
from outlines_cont.errors import OptionError
from outlines_cont.pipelines import Answer, Calibration, Report, SetupError
from outlines_cont.pipelines.report import MOST_VALUES, page
from tests.fakes import random_model
from tests.saved_model import save_model

# --- what agreement is worth

answers = st.lists(
    st.builds(
        Answer,
        st.sampled_from(["a", "b.c", "b[0].c", "b[1].c"]),
        st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        st.booleans(),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=20,
)


@given(answers, st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_a_confidence_is_a_chance_that_never_falls_with_agreement(found: list[Answer], levels: list[float]) -> None:
    calibration = Calibration.learned(found)
    for path in ("a", "b[7].c", "unknown"):
        chances = [calibration.confidence(path, level) for level in sorted(levels)]
        assert all(0 < chance < 1 for chance in chances)
        assert all(one <= other + 1e-12 for one, other in itertools.pairwise(chances))


@given(answers)
def test_a_calibration_is_saved_and_loaded(found: list[Answer]) -> None:
    import tempfile

    calibration = Calibration.learned(found)
    with tempfile.TemporaryDirectory() as folder:
        calibration.save(Path(folder) / "c.json")
        assert Calibration.load(Path(folder) / "c.json") == calibration


def test_a_calibration_learns_the_chances_that_there_are() -> None:
    """Held out: the law is known, so every confidence can be compared with it."""
    rng = random.Random(7)
    law = {0.0: 0.05, 0.2: 0.3, 0.4: 0.5, 0.6: 0.8, 0.8: 0.9, 1.0: 0.99}
    drawn = [Answer("f", level, rng.random() < chance) for level, chance in law.items() for _ in range(2000)]
    calibration = Calibration.learned(drawn)
    for level, chance in law.items():
        assert calibration.confidence("f", level) == pytest.approx(chance, abs=0.03)
    assert calibration.confidence("f", 0.7) == pytest.approx(0.85, abs=0.03)
    # Of a field with few values most is known by the others.
    few = Calibration.learned([*drawn, Answer("g", 1.0, False), Answer("g", 1.0, True)])
    assert 0.7 < few.confidence("g", 1.0) < 0.97


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"curves": {}}', '{"curves": {"": []}}', '{"curves": {"": [[0, 2]]}}', '{"curves": {"": [[0]]}}', "[" * 100_000],
)
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(SetupError, match="expected a calibration"):
        Calibration.load(tmp_path / "c.json")


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(SetupError, match="to calibrate by, got none"):
        Calibration.learned([])


# --- the report


def line(number: int, record: Any, gold: Any, agreement: dict[str, float], **more: Any) -> dict[str, Any]:
    details = {"tokens": 10 + number, "prompt_tokens": 5, "agreement": agreement}
    details["logprobs"] = dict.fromkeys(agreement, -1.0 / (1 + number))
    return {"_line": number, "_digest": "", "record": record, "gold": gold, "_details": details, **more}


def test_a_report_counts_what_is_right_and_what_fails() -> None:
    report = Report(gold="gold")
    report.add(line(1, {"a": 1, "b": ["x", "y"]}, {"a": 1, "b": ["x", "z"]}, {"a": 1.0, "b[0]": 1.0, "b[1]": 0.2}))
    report.add(line(2, {"a": True, "b": []}, '{"a": 1, "b": []}', {"a": 0.0, "b": 1.0}))
    report.add(line(3, {"a": 1}, "not JSON", {"a": 1.0}))
    report.add({"_line": 4, "_digest": "", "error": {"type": "RowError", "message": "no"}})
    assert (report.rows, report.failed, report.compared, report.right, report.unreadable) == (4, 1, 2, 0, 1)
    assert {name: (counts.values, counts.compared, counts.right) for name, counts in report.fields.items()} == {
        "a": (3, 2, 1),
        "b[]": (2, 2, 1),
        "b": (1, 1, 1),
    }
    assert [(value.line, value.path) for value in report.least_certain][:2] == [(2, "a"), (1, "b[1]")]
    assert [(value.line, value.path, value.expected) for value in report.wrong] == [(1, "b[1]", "z"), (2, "a", 1)]
    assert report.errors == {"RowError": 1}
    assert report.calibration().confidence("a", 0.0) < report.calibration().confidence("a", 1.0)


@given(st.lists(st.floats(-50, 0), max_size=150))
def test_the_least_certain_values_are_kept_and_no_more(logprobs: list[float]) -> None:
    report = Report()
    for number, logprob in enumerate(logprobs):
        report.add({"_line": number, "record": 1, "_details": {"logprobs": {"": logprob}}})
    expected = sorted(range(len(logprobs)), key=lambda number: (logprobs[number], -number))[:MOST_VALUES]
    assert sorted(logprobs)[:MOST_VALUES] == [value.logprob for value in report.least_certain]
    assert len(expected) == len({value.line for value in report.least_certain})


class Strict(HTMLParser):
    """A parser that wants every tag closed, and notes those that it meets."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


EVIL = "</title></table><script>alert('1')</script><img src=x onerror=\"alert(1)\">&amp;"


def test_a_page_needs_nothing_else_and_escapes_everything() -> None:
    report = Report("text", "gold")
    for number, agreement in enumerate((0.0, 0.2, 1.0)):
        record = {EVIL: EVIL * (1 + 20 * number)}
        report.add(line(number, record, {EVIL: EVIL if number else "other"}, {EVIL: agreement}, text=EVIL))
        report.chances[10 * number, number > 1] += 1
    report.add({"_line": 9, "_digest": "", "error": {"type": EVIL, "message": EVIL}})
    parser = Strict()
    text = page(report, EVIL)
    parser.feed(text)
    parser.close()
    assert not parser.open
    assert not parser.tags & {"script", "img", "link", "iframe", "object"}
    assert not {name for name in parser.attributes if name.startswith("on")} | parser.attributes & {"src", "href"}
    assert "Look at these first" in text
    assert "Wrong values" in text
    assert "How far agreement can be trusted" in text
    assert "url(" not in text
    assert "http" not in text


def test_the_page_of_an_empty_output_is_a_page() -> None:
    parser = Strict()
    parser.feed(page(Report(), "nothing"))
    assert not parser.open


# --- a file to a file

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["order", "invoice"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    gold = [{"kind": "order", "n": number} for number in range(4)]
    rows = [{"text": f"message {number}", "gold": gold[number]} for number in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": " "}]))
    return tmp_path


def test_a_pipeline_writes_records_a_report_and_how_far_it_has_come(folder: Path) -> None:
    made = pipelines.Extractor(random_model("llama"), SCHEMA, samples=2)
    seen: list[Progress] = []
    tally = pipelines.run("in.jsonl", made, "out.parquet", report="r.html", gold="gold", on_progress=seen.append, keep_text=True)
    assert (tally.rows, tally.failed) == (5, 1)
    assert [(p.rows, p.done, p.is_over) for p in seen][-2:] == [(5, 5, False), (5, 5, True)]
    rows = pyarrow.parquet.read_table("out.parquet").to_pylist()
    assert all(row["record"]["kind"] in ("order", "invoice") for row in rows[:4])
    assert {"weight", "logprobs", "agreement", "tokens"} <= set(rows[0]["_details"])
    assert "message 0" in (folder / "r.html").read_text()


@pytest.mark.usefixtures("folder")
def test_the_progress_of_a_pipeline_that_is_interrupted_ends() -> None:
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)
        if not progress.is_over:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipelines.run("in.jsonl", pipelines.Extractor(random_model("llama"), SCHEMA), "out.jsonl", on_progress=report)
    assert [progress.is_over for progress in seen] == [False, True]


def test_a_pipeline_is_gone_on_with_by_the_same_extractor_only(folder: Path) -> None:
    made = pipelines.Extractor(random_model("llama"), SCHEMA)
    pipelines.run("in.jsonl", made, "out.jsonl")
    whole = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").write_bytes(whole[: len(whole) // 2])
    tally = pipelines.run("in.jsonl", made, "out.jsonl", resume=True)
    assert tally.skipped
    assert tally.skipped + tally.rows == 5
    assert (folder / "out.jsonl").read_bytes() == whole
    other = pipelines.Extractor(random_model("llama"), SCHEMA, "Other: {{ text }}")
    differs = r"was made with others: `prompt` was 'Message: .*', and is 'Other: \{\{ text \}\}'\. Give"
    with pytest.raises(SetupError, match=differs):
        pipelines.run("in.jsonl", other, "out.jsonl", resume=True)
    differs = r"`model` was '.* Llama.* layers \([0-9a-f]{12}\)', and is '.* GPT2.*; `settings` was not set, and is 'b'\. Give"
    with pytest.raises(SetupError, match=differs):
        pipelines.run("in.jsonl", pipelines.Extractor(random_model("gpt2"), SCHEMA), "out.jsonl", settings="b", resume=True)
    with pytest.raises(SetupError, match="exists"):
        pipelines.run("in.jsonl", made, "out.jsonl")
    with pytest.raises(OptionError, match="expected `settings`"):
        pipelines.run("in.jsonl", lambda: made, "out.jsonl", resume=True)
    pipelines.run("in.jsonl", lambda: made, "other.jsonl", settings="1")
    records = [json.loads(text).get("record") for text in (folder / "other.jsonl").read_text().splitlines()]
    assert records == [json.loads(text).get("record") for text in whole.splitlines()]


def test_the_command_writes_a_report_and_learns_what_agreement_is_worth(folder: Path) -> None:
    (folder / "model").mkdir()
    save_model(folder / "model")
    base = ["extract", "in.jsonl", "-s", "s.json", "-m", "model", "-o", "out.jsonl"]
    votes = ["--samples", "2", "--gold", "gold"]
    result = CliRunner().invoke(app, [*base, *votes, "--save-calibration", "c.json", "--report", "r.html", "--progress"])
    assert result.exit_code == 1, result.stderr
    assert "rows/s" in result.stderr
    assert "in.jsonl → s.json" in (folder / "r.html").read_text()
    again = CliRunner().invoke(app, [*base, "--overwrite", *votes, "--calibration", "c.json", "--report", "r.html"])
    first = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert again.exit_code == 1
    assert set(first["_details"]["confidence"]) == {"kind", "n"}
    assert "confidence" in (folder / "r.html").read_text()
    plain = CliRunner().invoke(app, [*base, "--overwrite"])
    assert plain.exit_code == 1
    line = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert "_details" not in line
    assert line["record"] == first["record"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "r.html"], "expected --output FILE with --report"),
        (["-o", "o.jsonl", "--report", "r.pdf"], "expected a file that ends in .html or .htm as --report, got 'r.pdf'"),
        (["-o", "o.jsonl", "--report", "no/r.html"], "expected a folder that exists for --report"),
        (["-o", "o.jsonl", "--save-calibration", "c.json"], "expected --gold NAME, and --samples N or --confidence"),
        (["-o", "o.jsonl", "--gold", "gold"], "expected --report FILE or --save-calibration FILE with --gold"),
        (["-o", "o.jsonl", "--calibration", "c.json"], "expected --samples N or --confidence with --calibration"),
        (["-o", "o.jsonl", "--calibration", "c.json", "--samples", "2"], "expected a calibration"),
        (["--abstain-below", "1.5"], "Invalid value for '--abstain-below'"),
        (["--workers", "2", "--stream"], "expected --stream or --workers"),
    ],
)
def test_options_that_need_others_are_refused_before_anything_runs(folder: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["extract", "in.jsonl", "-s", "s.json", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_table_without_the_column_of_right_records_is_refused(folder: Path) -> None:
    (folder / "in.csv").write_text("text,gold\nmessage,{}\n")
    options = ["extract", "in.csv", "-s", "s.json", "-o", "o.jsonl", "--report", "r.html", "--gold", "gld"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 2
    assert "expected a table with the column 'gld', got one with 'text', 'gold'" in " ".join(result.stderr.split())
    assert not (folder / "o.jsonl").exists()
    made = pipelines.Extractor(random_model("llama"), SCHEMA)
    with pytest.raises(SetupError, match="with --gold, or `gold=`"):
        pipelines.run("in.csv", made, "o.jsonl", report="r.html", gold="gld")
    with pytest.raises(OptionError, match="expected `report` with `gold='gold'`"):
        pipelines.run("in.csv", made, "o.jsonl", gold="gold")


def test_a_tenth_of_confidence_stands_at_the_mean_of_what_was_said_in_it() -> None:
    report = Report("text", "gold")
    report.add(line(0, {"a": "b"}, {"a": "b"}, {"a": 1.0}))
    report.chances[95, True] = 3
    report.chances[91, False] = 1
    text = page(report, "means")
    assert "confidence 0.94: 3 of 4 right (75%)" in text
