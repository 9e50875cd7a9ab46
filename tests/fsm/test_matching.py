"""Patterns inside checks: long valid texts are accepted, and what the matcher cannot tell is an error, never a refusal."""

from __future__ import annotations

import json

import pytest

from fsm import BudgetExceeded, json_schema
from fsm.schema import check

TWO_HALVES = r"^(.+)(.+)-\1\2$"
"""A text of n characters takes some n * n / 4 steps."""


def halves(size: int) -> str:
    return json.dumps("ab" * size + "-" + "ab" * size)


def test_a_long_text_that_takes_many_steps_of_backtracking_is_accepted() -> None:
    expression = json_schema({"type": "string", "pattern": TWO_HALVES})
    assert expression.accepts(halves(1_200))  # more than a million steps, the matcher's own bound
    assert not expression.accepts(halves(20) + " ")
    assert not expression.accepts(json.dumps("ab-ac"))


def test_what_the_matcher_cannot_tell_is_an_error_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_BACKTRACKS", 10_000)
    for schema in ({"pattern": TWO_HALVES}, {"not": {"pattern": TWO_HALVES}}):
        expression = json_schema({"type": "string", **schema})
        with pytest.raises(BudgetExceeded, match=r"not decided within 10,000 steps of backtracking\. Write") as caught:
            expression.accepts(halves(500))
        assert (caught.value.limit, caught.value.value) == ("max_backtracks", 10_000)
        assert expression.accepts(halves(3)) is ("pattern" in schema)


def test_a_regular_pattern_beside_it_is_matched_by_the_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_BACKTRACKS", 1_000)
    far = r"^(?=.*(?:a|aa)*c)(?!.*(?:b|bb)+d)[a-z]*$"
    expression = json_schema({"type": "string", "allOf": [{"pattern": r"^(.).*\1$"}, {"pattern": far}]})
    assert expression.accepts(json.dumps("a" * 400 + "c" + "b" * 400 + "a"))
    assert not expression.accepts(json.dumps("a" * 400 + "c" + "b" * 400 + "da"))


def test_the_report_says_how_such_a_pattern_is_matched() -> None:
    report = json_schema({"type": "string", "pattern": TWO_HALVES}).report
    (line,) = [line for line in report if line.level == "checked"]
    assert line.note == "the pattern is not regular, so it is matched by backtracking, in at most 50,000,000 steps"
