"""`$recursiveRef` of draft 2019-09: the innermost schema, or the outermost one with an anchor where that one has an anchor, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsm.schema import json_schema

DRAFT = "https://json-schema.org/draft/2019-09/schema"


def tree(anchor: bool | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "$schema": DRAFT,
        "$id": "http://x.org/tree",
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$recursiveRef": "#"}}},
    }
    return found if anchor is None else found | {"$recursiveAnchor": anchor}


def strict_tree(anchor: bool | None, inner: bool | None) -> dict[str, Any]:
    """A tree that allows nothing else; whether that holds below, too, is said by the anchors."""
    found: dict[str, Any] = {
        "$schema": DRAFT,
        "$id": "http://x.org/strict",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"t": tree(inner)},
    }
    return found if anchor is None else found | {"$recursiveAnchor": anchor}


def accepts(schema: dict[str, Any], value: Any, **options: Any) -> bool:
    return json_schema(schema, **options).accepts(json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize("anchor", [True, False, None])
def test_alone_it_is_the_schema_around_it(anchor: bool | None) -> None:
    schema = tree(anchor) | {"additionalProperties": False}
    assert accepts(schema, {"below": [{"below": []}, {}]})
    assert not accepts(schema, {"below": [{"x": 1}]})
    assert not accepts(schema, {"below": [1]})


@pytest.mark.parametrize(
    ("outer", "inner", "holds_below"),
    [(True, True, True), (True, False, False), (True, None, False), (False, True, False), (None, True, False)],
)
def test_with_anchors_on_both_it_is_the_outermost(outer: bool | None, inner: bool | None, holds_below: bool) -> None:
    schema = strict_tree(outer, inner)
    assert accepts(schema, {"below": [{}]})
    assert not accepts(schema, {"x": 1})
    assert holds_below is not accepts(schema, {"below": [{"x": 1}]})


def test_what_is_checked_means_the_same() -> None:
    schema = tree(True) | {
        "uniqueItems": True,
        "properties": {"below": {"items": {"$recursiveRef": "#"}, "uniqueItems": True}},
    }
    assert accepts(schema, {"below": [{}, {"below": []}]})
    assert not accepts(schema, {"below": [{}, {}]})
    assert not accepts(schema, {"below": [{"below": [{}, {}]}]})
