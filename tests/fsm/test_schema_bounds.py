"""What the bounds of compiling leave to checks, or refuse: whatever they are, texts are accepted as the validator says."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, SchemaError, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded
from fsm.schema.documents import cases
from tests.fsm.test_json_schema_keywords import DOCUMENTS, is_valid, relaxed, texts_of, values

BOUNDS = {
    "MAX_EXACT": (0, 1, 2, 5),
    "_FEW_STEPS": (0, 3, 10),
    "MAX_STEPS": (2, 10, 30),
    "MAX_JOINED": (0, 3, 20),
    "_MAX_MULTIPLIED": (1, 2, 4),
    "_MAX_APART": (1, 2),
    "MAX_SPENT": (0, 1, 4, 10),
    "_CASE_COST": (0, 1),
    "_MAX_SMALL": (0, 1, 2),
    "_MAX_SUBSETS": (1, 2),
    "_MAX_KEPT": (0, 1),
}
"""Bounds of the cases of one value, each with some that are soon reached."""

SOME_BOUNDS = st.fixed_dictionaries({}, optional={name: st.sampled_from(small) for name, small in BOUNDS.items()})


@settings(relaxed, max_examples=80)
@given(DOCUMENTS, SOME_BOUNDS, st.lists(values(), min_size=4, max_size=8), st.booleans())
@example(
    {"anyOf": [{"minimum": 1}, {"maxLength": 1}], "oneOf": [{"type": "string"}, {"not": {"const": 3}}]},
    {"MAX_JOINED": 0},
    ["a", "ab", 0, 2, 3],
    False,
)
def test_texts_are_accepted_exactly_if_valid_whatever_is_left_to_checks(
    schema: Any, bounds: dict[str, int], found: list[Any], strict: bool
) -> None:
    try:
        with patch.multiple(cases, **{"MAX_EXACT": cases.MAX_EXACT} | bounds):
            expression = json_schema(schema, key_order="any", strict=strict)
    except EmptyLanguage:
        assert not any(is_valid(schema, value) for value in found)
        return
    except (SchemaError, BudgetExceeded):
        return
    is_exact = all(line.level == "exact" for line in expression.report)
    assert is_exact or not strict
    automaton = Automaton(expression.node)
    for value in found:
        note(repr(value))
        valid = is_valid(schema, value)
        assert {valid} == {expression.accepts(text) for text in texts_of(value)}
        alone = {automaton.accepts(text.encode()) for text in texts_of(value)}
        assert alone <= {valid} if is_exact else alone == {True} or not valid
