"""The questions of the benchmark of right answers: each has an answer of its form that counts as right, and others that do not."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import fsm
from benchmarks.quality_page import Interval, html, page
from benchmarks.quality_questions import COUNT, KINDS, Question, questions
from benchmarks.quality_sides import read

QUESTIONS = questions()


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
    shown = [{"kind": "choice", "level": 1, "text": "<b>?", "answer": "a"} for _ in range(count)]
    described = {"date": "", "cpu": "", "cores": 1, "memory_gb": 1, "load_at_start": 0, "python": "", "versions": {}}
    texts = {side: [""] * count for side in scores}
    return {
        "model": "m", "machine": described, "kinds": ["choice"], "questions": shown, "texts": texts, "scores": scores, "withheld": withheld,
    }  # fmt: skip


def test_differences_are_paired_and_withheld_answers_do_not_count() -> None:
    base, better = [0.0, 1.0] * 20, [1.0, 1.0] * 20
    none = [False] * 40
    report = _report({"constrained": [*base], "other": [*better]}, {"constrained": none, "other": [True, False] * 20})
    row = next(line for line in page(report).splitlines() if line.startswith("| other"))
    assert "| 100 [100, 100] | 0 [0, 0] | 20 of 40 |" in row
    shown = page(_report({"constrained": [*base], "other": [*better]}, {"constrained": none, "other": none}))
    assert "| 50 [35, 65] *" in shown
    assert "&lt;b&gt;?" in html([report])


def test_the_interval_covers_the_mean_and_is_that_of_the_normal_law_for_many() -> None:
    values = [float(i % 4 == 0) for i in range(400)]
    found = Interval.of(values)
    assert found.mean == 0.25
    spread = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.25 - spread, 0.25 + spread), abs=0.006)
    assert found.is_clear
    assert not Interval.of([-1.0, 1.0] * 30).is_clear
