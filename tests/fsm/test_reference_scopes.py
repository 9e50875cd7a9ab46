"""References to other scopes (`$id`, anchors, relative URIs) beside checked keywords, against the `jsonschema` validator."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, note, settings
from referencing.exceptions import Unresolvable

from fsm.errors import BudgetExceeded, EmptyLanguage
from fsm.schema import json_schema
from tests.judged import at_least, judged
from tests.walks import RANDOMS

ROOT = "https://example.org/root.json"
OUTER = ["#", "#/$defs/d", "#here", "sub/e.json", "sub/e.json#/$defs/d", "sub/e.json#here"]
INNER = ["#", "#/$defs/d", "#here"]
UPWARDS = ["../root.json", "../root.json#here", "/root.json#/$defs/d"]
LEAVES = [True, False, {"uniqueItems": True}, {"type": "array"}, {"type": "object"}, {"const": 1}, {"maxItems": 1}]
KEYWORDS = [
    *("uniqueItems", "enum", "format", "not", "if", "allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"),
    *("items", "additionalProperties", "contains", "prefixItems", "properties"),
]
CONTAINING = {"contains": {"$dynamicRef": "#dynamic"}, "maxContains": 1}
NEVER = {"$dynamicAnchor": "dynamic", "not": {}}
UNIQUE = {"$dynamicAnchor": "dynamic", "uniqueItems": True}
VALUES = [1, [1, 1], [], {"a": [1, 1]}, [[1, 1]]]


def drawn(random: Random, depth: int, same: list[str], below: list[str]) -> Any:
    """A schema whose references name `same` for its own value and `below` for parts of it, so that none leads to itself."""
    leaves = LEAVES + ([{"$ref": random.choice(same)}, {"$dynamicRef": "#dynamic"}] if same else [])
    if not depth or random.random() < 0.15:
        return random.choice(leaves)
    schema: dict[str, Any] = {}
    for keyword in random.sample(KEYWORDS, random.randint(1, 3)):
        beside = [drawn(random, depth - 1, same, below) for _ in range(random.randint(1, 3))]
        parts = [drawn(random, depth - 1, below, below) for _ in range(random.randint(1, 3))]
        match keyword:
            case "uniqueItems":
                schema[keyword] = True
            case "enum":
                schema[keyword] = random.sample(VALUES, 3)
            case "format":
                schema[keyword] = "unknown"
            case "$ref" | "$dynamicRef" if same:
                schema[keyword] = random.choice(same) if keyword == "$ref" else "#dynamic"
            case "if":
                schema |= dict(zip(("if", *random.sample(["then", "else"], 2)), beside, strict=False))
            case "not":
                schema[keyword] = beside[0]
            case "allOf" | "anyOf" | "oneOf":
                schema[keyword] = beside
            case "contains":
                schema |= {"contains": parts[0], "maxContains": 1}
            case "items" | "additionalProperties":
                schema[keyword] = parts[0]
            case "prefixItems":
                schema[keyword] = parts
            case "properties":
                schema[keyword] = dict(zip("ab", parts, strict=False))
    return schema


def resource(random: Random, depth: int, refs: list[str], same: list[str]) -> dict[str, Any]:
    """A schema with definitions that references, anchors and dynamic anchors name."""

    def named(depth: int, names: dict[str, Any], same: list[str] = INNER[:0]) -> dict[str, Any]:
        schema = drawn(random, depth, same, refs)
        return (schema if isinstance(schema, dict) else {"not": {"items": schema}}) | names

    definitions = {"d": named(2, {}), "f": named(2, {"$anchor": "here"}), "g": named(1, {"$dynamicAnchor": "dynamic"})}
    return named(depth, {"$defs": definitions}, same)


def document(random: Random) -> dict[str, Any]:
    is_named = random.random() < 0.5
    root = resource(random, 3, OUTER, OUTER[1:])
    root["$defs"]["e"] = {**resource(random, 2, INNER + UPWARDS * is_named, []), "$id": "sub/e.json"}
    return root | ({"$id": ROOT} if is_named else {})


def value(random: Random, depth: int = 3) -> Any:
    if not depth or random.random() < 0.3:
        return random.choice([0, 1, "a", None, [], [1, 1], [1, 2], {}])
    items = [value(random, depth - 1) for _ in range(random.randint(0, 2))]
    return random.choice([items, items + items[:1], dict(zip("ab", items, strict=False))])


@pytest.mark.filterwarnings("ignore::fsm.errors.SchemaWarning")
@at_least(300)
@settings(max_examples=60, deadline=None)
@given(RANDOMS)
def test_a_checked_value_is_judged_in_the_scope_of_its_schema(random: Random) -> None:
    schema = document(random)
    note(json.dumps(schema))
    try:
        expression = json_schema(schema, key_order="any")
    except EmptyLanguage:
        expression = None
    except BudgetExceeded:
        return
    oracle = jsonschema.Draft202012Validator(
        {"$id": ROOT, **schema}
    )  # without a URI it forgets dynamic anchors of the root
    for _ in range(15):
        found = value(random)
        try:
            is_valid = oracle.is_valid(found)
        except Unresolvable:  # it looks in the wrong resource after some dynamic references
            return
        note(repr(found))
        judged()
        assert is_valid == (expression is not None and expression.accepts(json.dumps(found)))


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"items": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"uniqueItems": True}}},
        {"not": {"items": {"$ref": "#"}}, "uniqueItems": True},
        {"not": {"items": {"$ref": "#here"}}, "$defs": {"d": {"$anchor": "here", "uniqueItems": True}}},
        {"not": {"items": {"$ref": "d"}}, "$defs": {"d": {"$id": "d", "uniqueItems": True}}},
        {"not": {"items": {"$ref": "d#/items"}}, "$defs": {"d": {"$id": "d", "items": {"uniqueItems": True}}}},
        {"not": {"properties": {"a": {"$ref": "#/$defs/d"}}}, "$defs": {"d": {"uniqueItems": True}}},
        {"$ref": "d#/items", "$defs": {"d": {"$id": "d", "items": CONTAINING, "$defs": {"n": NEVER}}, "n": UNIQUE}},
    ],
    ids=json.dumps,
)
def test_a_negated_reference_keeps_its_base(schema: dict[str, Any]) -> None:
    expression, oracle = json_schema(schema), jsonschema.Draft202012Validator({**schema, "$id": ROOT})
    for found in (1, [], [1], [[1, 1]], [[1, 2]], [[[1, 1]]], [[1, 1], [1, 1]], {"a": [1, 1]}, {"a": 1}):
        assert oracle.is_valid(found) == expression.accepts(json.dumps(found)), found


def test_a_negated_reference_into_older_words_is_found_in_their_translation() -> None:
    schema = {"not": {"items": {"$ref": "#/$defs/d/items/0"}}, "$defs": {"d": {"items": [{"uniqueItems": True}]}}}
    expression = json_schema(schema)
    assert [expression.accepts(text) for text in ("[[1,1]]", "[[1,2]]")] == [True, False]
