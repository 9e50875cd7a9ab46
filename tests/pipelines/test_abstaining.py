"""Confidence of values, values that are withheld, their report, and the curve of right answers against answered ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from outlines_cont import continuous, generate, models
from outlines_cont.cli.__main__ import app
from outlines_cont.errors import OptionError
from outlines_cont.events.json_paths import leaves
from outlines_cont.pipelines import Answer, Calibration, Extractor, Report, run
from outlines_cont.pipelines.abstaining import abstained, token_confidence
from outlines_cont.pipelines.answer_curve import answer_curve
from outlines_cont.pipelines.report import page

SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string", "maxLength": 30}, "kind": {"enum": ["order", "invoice", "complaint"]}},
    "required": ["customer", "kind"],
    "additionalProperties": False,
}
ROWS = ["Two lamps, please. Ada Lovelace", "Where is my invoice? Lena Vogel", "Hello, this is Marta Keller from Porto."]
KEYS = st.text("ab", min_size=1, max_size=2)
RECORDS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text("xy", max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@given(RECORDS, st.data())
def test_what_is_below_the_limit_is_none_and_all_else_stays(record: Any, data: st.DataObject) -> None:
    values = leaves(record)
    sure = {path: data.draw(st.floats(0, 1), label=path) for path in data.draw(st.sets(st.sampled_from(sorted(values))))}
    before = json.dumps(record)
    found, withheld = abstained(record, sure, 0.5)
    assert before == json.dumps(record)
    expected = {path for path, number in sure.items() if number < 0.5 and values[path] is not None}
    assert expected == set(withheld)
    assert {path: None if path in expected else value for path, value in values.items()} == leaves(found)
    for path, one in withheld.items():
        assert (one.value, one.confidence) == (values[path], sure[path])
        assert f"{sure[path]:.2f}, below 0.5" in one.reason


def _extractor(**options: Any) -> Extractor:
    return Extractor(models.tiny(), SCHEMA, max_tokens=60, **options)


def test_values_on_which_samples_do_not_agree_are_withheld() -> None:
    plain = [*_extractor(samples=5).outcomes(ROWS)]
    found = [*_extractor(abstain_below=0.9).outcomes(ROWS)]  # with 5 samples, too
    assert any(outcome.withheld for outcome in found)
    for one, other in zip(plain, found, strict=True):
        assert one.agreement == other.agreement == other.confidence
        uncertain = {path for path, share in one.agreement.items() if share < 0.9}
        assert uncertain == set(other.withheld)
        values = leaves(one.record)
        assert {path: None if path in uncertain else value for path, value in values.items()} == leaves(other.record)
        assert (other.value is None) == bool(uncertain)
    table = _extractor(abstain_below=0.9)(ROWS)
    assert [outcome.record for outcome in found] == [{name: row[name] for name in ("customer", "kind")} for row in table]


def test_the_cheap_confidence_is_the_probability_of_a_value() -> None:
    model = models.tiny()
    (outcome,) = _extractor(confidence="cheap").outcomes(ROWS[:1])
    state = continuous(generate.json(model, SCHEMA))(f"Message: {ROWS[0]}\nRecord: ", max_tokens=60)
    row = state.rows[0][0]
    assert row.piece is not None
    assert json.dumps(outcome.record) == json.dumps(row.value)
    assert outcome.confidence == outcome.certainty == token_confidence(row, model.tokenizer)
    assert not outcome.agreement
    tokens = [model.tokenizer.text_bytes([token_id]) for token_id in row.token_ids[row.piece.start :]]
    text, logs = b"".join(tokens), row.sampling_logprobs[row.piece.start :]
    for path, value in leaves(row.value).items():
        start = text.index(json.dumps(value).encode(), text.index(f'"{path}"'.encode()) + len(path) + 2)
        stop, offset, inside = start + len(json.dumps(value)), 0, []
        for token, log in zip(tokens, logs, strict=True):
            if offset < stop and offset + len(token) > start:
                inside.append(math.exp(log))
            offset += len(token)
        assert math.prod(inside) == pytest.approx(outcome.confidence[path])


def test_a_calibration_decides_what_is_withheld() -> None:
    answers = [
        Answer("customer", 0.0, False, 50),
        Answer("customer", 1.0, False, 40),
        Answer("kind", 1.0, True, 50),
        Answer("kind", 0.0, True, 50),
    ]
    calibration = Calibration.learned(answers)
    found = [*_extractor(abstain_below=0.5, samples=3, calibration=calibration).outcomes(ROWS)]
    for outcome in found:
        assert set(outcome.withheld) == {"customer"}
        assert {path: calibration.confidence(path, share) for path, share in outcome.agreement.items()} == outcome.confidence


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.booleans(), st.integers(1, 3)), min_size=1, max_size=8))
def test_the_curve_counts_what_is_answered_at_each_limit(values: list[tuple[float, bool, int]]) -> None:
    curve = answer_curve(values)
    assert [point.confidence for point in curve] == sorted({level for level, *_ in values}, reverse=True)
    for point in curve:
        answered = [(is_right, count) for level, is_right, count in values if level >= point.confidence]
        assert point.answered == sum(count for _, count in answered)
        assert point.right == sum(count for is_right, count in answered if is_right)


@pytest.mark.parametrize("confidence", ["agreement", "cheap"])
def test_the_report_counts_what_is_withheld(tmp_path: Path, confidence: Any) -> None:
    golds = [
        {"customer": "Ada Lovelace", "kind": "order"},
        {"customer": "Nobody", "kind": "order"},
        {"customer": "Marta Keller", "kind": "invoice"},
    ]
    lines = [json.dumps({"text": text, "gold": gold}) for text, gold in zip(ROWS, golds, strict=True)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    extractor = _extractor(confidence=confidence, abstain_below=0.97, samples=2 if confidence == "agreement" else 0)
    run(tmp_path / "in.jsonl", extractor, tmp_path / "out.jsonl", report=tmp_path / "out.html", gold="gold")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    withheld = [(line["_line"], path) for line in written for path in line["_details"].get("withheld", ())]
    assert withheld
    assert all(leaves(written[number - 1]["record"])[path] is None for number, path in withheld)

    report = Report(gold="gold")
    report.add_file(tmp_path / "out.jsonl")
    assert report.withheld == len(withheld)
    assert sum(counts.compared for counts in report.fields.values()) == 6 - len(withheld)
    assert report.curve[-1].answered == 6
    plain = [outcome.record for outcome in _extractor().outcomes(ROWS)]
    right = sum(plain[at][name] == gold[name] for at, gold in enumerate(golds) for name in gold)
    assert report.curve[-1].right == right
    assert 0 < right < 6
    assert report.calibration().curves
    shown = page(report, "t")
    assert "values withheld" in shown
    assert "if the least certain are withheld" in shown
    assert shown == (tmp_path / "out.html").read_text().replace("in.jsonl → out.jsonl", "t")


def test_a_line_without_details_says_what_is_withheld(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(ROWS[2] + "\n")
    run(tmp_path / "in.txt", _extractor(confidence="cheap", abstain_below=1.0), tmp_path / "out.jsonl")
    (line,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert set(line["_details"]) == {"withheld"}
    assert set(line["_details"]["withheld"]["customer"]) == {"value", "confidence", "reason"}


def test_the_command_withholds_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text(json.dumps(SCHEMA))
    Path("in.txt").write_text("\n".join(ROWS) + "\n")
    base = ["extract", "in.txt", "--schema", "s.json", "--max-tokens", "60", "--output", "out.jsonl", "--whitespace", "one_space"]

    def lines(*options: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(app, [*base, *options])
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]

    found = lines("--abstain-below", "0.9")
    expected = [*_extractor(abstain_below=0.9).outcomes(ROWS)]
    assert any(outcome.withheld for outcome in expected)
    assert [outcome.record for outcome in expected] == [line["record"] for line in found]
    assert [{*outcome.withheld} for outcome in expected] == [{*line["_details"].get("withheld", {})} for line in found]

    result = CliRunner().invoke(app, [*base, "--confidence", "cheap", "--resume"])
    assert result.exit_code == 2
    assert "`--confidence` was not set, and is 'cheap'" in " ".join(result.stderr.split())
    calibration = Calibration.learned([Answer("kind", 0.0, True, 50), Answer("customer", 0.0, False, 50)])
    calibration.save(tmp_path / "c.json")
    found = lines("--confidence", "cheap", "--abstain-below", "0.5", "--calibration", "c.json", "--overwrite")
    cheap = [*_extractor(confidence="cheap", abstain_below=0.5, calibration=calibration).outcomes(ROWS)]
    assert [{"customer"}] * 3 == [{*line["_details"]["withheld"]} for line in found]
    for line, outcome in zip(found, cheap, strict=True):
        assert "agreement" not in line["_details"]
        assert line["_details"]["confidence"] == pytest.approx(outcome.confidence, abs=6e-4)


def test_what_is_refused_says_why() -> None:
    for options in ({"abstain_below": 1.2}, {"confidence": "loud"}, {"calibration": 0.5}):
        with pytest.raises(OptionError, match=next(iter(options))):
            _extractor(**options)
