"""`oneOf` whose branches are told apart by tags, required keys and closed objects, against the `jsonschema` validator."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, json_schema

NAMES = ["a", "b"]
VALUES: list[Any] = [5, None, []]
VALUES += [
    {name: value for name, value in zip(NAMES, chosen, strict=True) if value is not None}
    for chosen in itertools.product([None, 0, 1, "x"], repeat=2)
]
NAME_LISTS = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
TAGS = st.lists(st.sampled_from([0, 1, "x"]), min_size=1, max_size=2, unique=True).map(lambda values: {"enum": values})
VALUE_TYPES = st.sampled_from(
    [{"type": "integer"}, {"type": "string"}, {"anyOf": [{"const": 0}, {"const": "x"}]}, False]
)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "required": NAME_LISTS,
        "properties": st.dictionaries(st.sampled_from(NAMES), TAGS | VALUE_TYPES | st.just(True), max_size=2),
        "patternProperties": st.dictionaries(
            st.sampled_from(["^a", "b$", "[^a]"]), st.just(True) | VALUE_TYPES, max_size=1
        ),
        "additionalProperties": st.booleans() | VALUE_TYPES,
    },
)


def around(below: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    keyword = st.sampled_from(["oneOf", "anyOf", "allOf"])
    return st.builds(lambda own, key, parts: {**own, key: parts}, OWN, keyword, st.lists(below, min_size=1, max_size=3))


BRANCHES = st.lists(st.recursive(OWN, around, max_leaves=4), min_size=2, max_size=3)


@settings(max_examples=30, deadline=None)
@given(OWN, BRANCHES)
def test_a_value_is_accepted_exactly_if_one_branch_holds(own: dict[str, Any], branches: list[Any]) -> None:
    schema = {**own, "oneOf": branches}
    validator = jsonschema.Draft202012Validator(schema)
    try:
        expression = json_schema(schema, key_order="any")
    except EmptyLanguage:
        assert not any(validator.is_valid(value) for value in VALUES)
        return
    for value in VALUES:
        note(repr(value))
        assert expression.accepts(json.dumps(value)) == validator.is_valid(value)
