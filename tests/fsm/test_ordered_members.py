"""Members in the order of the schema, with limits of their number: every object of a few keys, against plain counting."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import EmptyLanguage
from fsm.terms import node as nodes
from fsm.terms.members import MemberEntry, MemberTable

NAMES = "abcd"


@settings(max_examples=40)
@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 4), st.integers(0, 5), st.sampled_from(["schema", "any"]))
def test_required_members_are_never_passed_over(required: set[str], least: int, most: int, order: Any) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"const": 1} for name in NAMES},
        "required": sorted(required),
        "additionalProperties": False,
        "minProperties": least,
        "maxProperties": most,
    }
    orders = [keys for size in range(len(NAMES) + 1) for keys in permutations(NAMES, size)]
    wanted = [
        keys
        for keys in orders
        if required <= {*keys} and least <= len(keys) <= most and (order == "any" or [*keys] == sorted(keys))
    ]
    if not wanted:
        with pytest.raises(EmptyLanguage):
            json_schema(schema, key_order=order)
        return
    automaton = Automaton(json_schema(schema, key_order=order).node)
    texts = {keys: "{" + ", ".join(f'"{key}": 1' for key in keys) + "}" for keys in orders}
    dense = {keys: text.replace(" ", "") for keys, text in texts.items()}
    assert wanted == [
        keys for keys in orders if automaton.accepts(texts[keys].encode()) or automaton.accepts(dense[keys].encode())
    ]


@pytest.mark.parametrize(
    ("lo", "hi", "duties", "expected"),
    [
        (0, None, 0, True),
        (1, None, 0, False),
        (0, 5, 0, False),
        (0, None, 1, False),
        (1, 5, 1, False),
        (1, None, 1, False),
    ],
)
def test_members_without_bounds_can_always_be_closed(lo: int, hi: int | None, duties: int, expected: bool) -> None:
    key, value, comma, close = (nodes.literal(text) for text in (b'"a"', b":1", b",", b"}"))
    entries = (MemberEntry(key, value, None, False, 0),)
    options = {"lo": lo, "hi": hi, "duties": duties, "is_ordered": False, "comma": comma, "close": close}
    assert expected is MemberTable(entries, **options).is_free  # type: ignore[arg-type]
