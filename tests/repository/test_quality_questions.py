"""The questions of the benchmark of right answers: each has an answer of its form that counts as right, and others that do not."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsm
from benchmarks import table
from benchmarks.quality import empty_report, empty_side, main
from benchmarks.quality_certainty import WAYS, auroc, judged, right_among
from benchmarks.quality_page import Interval, certain_rows, html, page
from benchmarks.quality_questions import COUNT, KINDS, Question, questions
from benchmarks.quality_sides import read

QUESTIONS = questions()
MACHINE = {"date": "", "cpu": "", "cores": 1, "memory_gb": 1, "load_at_start": 0, "python": "", "versions": {}}


def _language(question: Question) -> fsm.Expression:
    if question.schema is not None:
        return fsm.json_schema(question.schema)
    return fsm.choice(list(question.options)) if question.options else fsm.regex(question.pattern or "")


def test_there_are_as_many_of_each_kind_and_level_and_no_two_are_the_same() -> None:
    assert dict.fromkeys(KINDS, COUNT) == Counter(question.kind for question in QUESTIONS)
    assert len(QUESTIONS) >= 300
    assert {*Counter((question.kind, question.level) for question in QUESTIONS).values()} <= {17, 18}
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS)
    assert {question.kind for question in QUESTIONS[:6]} == {*KINDS}
    assert [question.text for question in questions()] == [question.text for question in QUESTIONS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_right_and_has_the_form_and_those_of_other_questions_are_not(kind: str) -> None:
    own = [question for question in QUESTIONS if question.kind == kind]
    for question in own[::4]:
        assert question.check(question.answer) == 1.0
        assert _language(question).accepts(question.answer)
        assert question.check("") == question.check("nothing") == 0.0
        assert question.answer == read(question, f"Well. {question.answer}\nThat is it.")
    wrong = [question.check(other.answer) for question, other in zip(own, own[3:], strict=False)]
    assert sum(wrong) < 0.5 * len(wrong)


def test_what_is_half_right_counts_half() -> None:
    question = next(one for one in QUESTIONS if one.kind == "record" and one.level == 1)
    answer = json.loads(question.answer)
    assert question.check(json.dumps({**answer, "item": "nothing"})) == pytest.approx(2 / 3)
    assert question.check(json.dumps({**answer, "quantity": str(answer["quantity"])})) == pytest.approx(2 / 3)


def _report(scores: dict[str, list[float | None]], withheld: dict[str, list[bool]]) -> dict[str, Any]:
    count = len(next(iter(scores.values())))
    report = empty_report("m", {**MACHINE}, [])
    report["questions"] = [{"kind": "choice", "level": 1, "text": "<b>?", "answer": "a"} for _ in range(count)]
    for side, numbers in scores.items():
        known = {"texts": [""] * count, "scores": numbers, "withheld": withheld[side], "errors": [""] * count}
        report["sides"][side] = {**empty_side(count), **known}
    return report


def test_differences_are_paired_and_withheld_answers_do_not_count() -> None:
    base, better = [0.0, 1.0] * 20, [1.0, 1.0] * 20
    none = [False] * 40
    report = _report({"constrained": [*base], "other": [*better]}, {"constrained": none, "other": [True, False] * 20})
    row = next(line for line in page(report).splitlines() if line.startswith("| other"))
    assert "| 100 [100, 100] | 0 [0, 0] | 20 of 40 |" in row
    shown = page(_report({"constrained": [*base], "other": [*better]}, {"constrained": none, "other": none}))
    assert "| 50 [35, 65] *" in shown
    assert "&lt;b&gt;?" in html([report])


def test_a_side_that_was_asked_some_of_the_questions_is_compared_on_these() -> None:
    some: list[float | None] = [1.0, 1.0, None, None]
    shown = page(_report({"constrained": [0.0, 1.0, 1.0, 1.0], "other": some}, {"constrained": [False] * 4, "other": [False] * 4}))
    row = next(line for line in shown.splitlines() if line.startswith("| other"))
    assert "| 50 [0, 100] | 2 of 2 |" in row


def test_what_a_run_has_left_out_is_asked_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["quality", "--sides", "constrained", "--questions", "2", "--kinds", "choice,record"])
    main()
    (tmp_path / "quality.html").unlink()
    first = json.loads((tmp_path / "quality_bundled.json").read_text())["sides"]["constrained"]
    assert [i for i, text in enumerate(first["texts"]) if text is not None] == [0, 1]
    assert set(first["certainty"][0]) == {*WAYS[1:]}
    assert set(first["certainty"][0]["entropy"]) == {*json.loads(first["texts"][0])}
    monkeypatch.setattr("sys.argv", ["quality", "--sides", "constrained", "--questions", "8", "--kinds", "choice", "--resume"])
    main()
    second = json.loads((tmp_path / "quality_bundled.json").read_text())["sides"]["constrained"]
    assert [i for i, text in enumerate(second["texts"]) if text is not None] == [0, 1, 7]
    assert first["texts"][:2] == second["texts"][:2]
    assert second["forwards"] > first["forwards"] > 0
    assert "constrained" in (tmp_path / "quality.html").read_text()
    assert "runs" not in first
    assert [run["questions"] for run in second["runs"]] == [1]
    assert f"constrained (1 questions, {second['runs'][0]['date']}, load" in (tmp_path / "quality.md").read_text()
    monkeypatch.setattr("sys.argv", ["quality", "--sides", "constraint"])
    with pytest.raises(SystemExit, match="expected sides of free text, .*, got constraint"):
        main()


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.6, 1.0]), st.booleans()), min_size=1, max_size=12), st.sampled_from([0.4, 0.8, 1.0]))
def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(values: list[tuple[float, bool]], share: float) -> None:
    right, wrong = ([sure for sure, is_right in values if is_right is wanted] for wanted in (True, False))
    pairs = [1.0 if one > other else 0.5 if one == other else 0.0 for one in right for other in wrong]
    assert auroc(values) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
    count = max(round(share * len(values)), 1)
    orders = [sorted(shuffled, key=lambda one: -one[0])[:count] for shuffled in permutations(values)] if len(values) < 6 else []
    if orders:  # equal ones in any order
        expected = sum(is_right for order in orders for _, is_right in order) / (count * len(orders))
        assert right_among(values, share) == pytest.approx(expected)


def test_ways_to_tell_certainty_are_compared_on_the_answers_that_both_sides_have() -> None:
    sure, count = [0.9, 0.2, 0.8, 0.4], 40
    report = _report(
        {"constrained": [1.0] * count, "abstaining": [1.0] * count}, {"constrained": [False] * count, "abstaining": [False] * count}
    )
    for i, question in enumerate(report["questions"]):
        question |= {"kind": "record", "answer": json.dumps({"a": 1 if i % 2 == 0 else 2})}
        for side, ways in (("constrained", WAYS[1:]), ("abstaining", WAYS[:1])):
            report["sides"][side]["texts"][i] = '{"a": 1}'
            report["sides"][side]["certainty"][i] = {way: {"a": sure[i % 4] if side == "constrained" else 0.6} for way in ways}
    report["sides"]["abstaining"]["texts"][1] = '{"a": 2}'
    rows = certain_rows(report)
    assert [(kind, way) for kind in ("record", "all") for way in WAYS] == [tuple(row[:2]) for row in rows]
    assert [row[2:] for row in rows[:4]] == [row[2:] for row in rows[4:]]
    assert rows[0][2:5] == [count - 1, "0.50 [0.50, 0.50]", "-"]
    for row in rows[1:4]:
        assert row[2:5] == [count - 1, "1.00 [1.00, 1.00]", "[0.50, 0.50]"]
        assert row[-1] == "100"  # of the surest 40 %
    assert "| record | agreement |" in page(report)


def test_values_of_a_record_are_judged_by_their_paths() -> None:
    certainty = {"customer": 0.9, "lines[0].item": 0.4, "lines[1].item": 0.2}
    text = '{"customer": "ada", "lines": [{"item": "cups"}, {"item": "pens"}]}'
    assert judged(text, '{"customer": "Ada", "lines": [{"item": "pens"}]}', certainty) == [(0.9, True), (0.4, False), (0.2, False)]
    assert not judged('{"customer": "a', "{}", {})


def test_the_interval_covers_the_mean_and_is_that_of_the_normal_law_for_many() -> None:
    values = [float(i % 4 == 0) for i in range(400)]
    found = Interval.of(values)
    assert found.mean == 0.25
    spread = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.25 - spread, 0.25 + spread), abs=0.006)
    assert found.is_clear
    assert not Interval.of([-1.0, 1.0] * 30).is_clear
