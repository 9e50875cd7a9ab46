"""What large schemas cost: values of their own kind are built when a text comes there, negations have a bound, searches are shared."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema_rs
import pytest

import fsm
from fsm.schema.documents import cases
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Kind, Node
from fsm.terms.rule import Rule


def rules_of(root: Node) -> list[Rule]:
    """The rules of a term that can be seen without building one."""
    seen, queue = {root}, [root]
    for node in queue:
        if node.kind is Kind.RULE and not node.args[0].is_built:
            continue
        new = [child for child in nodes.children(node) if child not in seen]
        seen.update(new)
        queue += new
    return [node.args[0] for node in queue if node.kind is Kind.RULE]


def circle(size: int) -> dict[str, Any]:
    """Definitions that all hold each other, with keys that only a search finds possible."""
    links = {f"to{n}": {"$ref": f"#/$defs/d{n}"} for n in range(size)}
    one = {"type": "object", "properties": links, "patternProperties": {"^x[0-9]*y": {}, "z": {"type": "null"}}}
    schema = {"$defs": {f"d{n}": one | {"title": str(n)} for n in range(size)}, "$ref": "#/$defs/d0"}
    return dict(json.loads(json.dumps(schema)))  # so that no part is the same object as another


def test_definitions_that_hold_each_other_are_built_once_and_not_at_every_depth() -> None:
    expression = fsm.json_schema(circle(12))
    rules = [
        rule for rule in rules_of(expression.node) if rule.name.startswith("/$defs")
    ]  # any value is shared with others
    assert rules
    assert not any(rule.is_built for rule in rules)
    assert expression.accepts('{"to3": {"to5": {"to3": {"xy": 1, "z": null}}}}')
    assert not expression.accepts('{"to3": {"to5": {"to3": {"z": 1}}}}')


def test_the_report_names_keywords_at_every_place() -> None:
    report = {line.pointer for line in fsm.json_schema(circle(5)).report}
    assert {f"#/$defs/d{n}/properties/to{n}/$ref" for n in range(5)} <= report


def tangled(size: int) -> dict[str, Any]:
    """Branches of `oneOf` that may hold together, and hold each other."""
    branches = [
        {"type": "object", "properties": {f"k{n}": {"$ref": "#"}, "v": {"minimum": n}}, "required": [f"k{n}"]}
        for n in range(size)
    ]
    return {"oneOf": [{"type": "integer"}, *branches]}


def values(depth: int) -> list[Any]:
    inner: list[Any] = [1, "a"] if depth == 0 else [1, *values(depth - 1)[:6]]
    found: list[Any] = [1, None]
    for first, second in itertools.product(range(4), repeat=2):
        found += [{f"k{first}": value, f"k{second}": 5, "v": second} for value in inner]
    return found


def test_negations_beyond_the_bound_are_checked_and_right() -> None:
    schema = tangled(8)
    expression = fsm.json_schema(schema, key_order="any")
    validator = jsonschema_rs.validator_for(schema)
    assert "checked" in {line.level for line in expression.report if line.keyword == "oneOf"}
    for value in values(2):
        assert validator.is_valid(value) == expression.accepts(json.dumps(value)), value


def test_small_negations_stay_exact_where_large_ones_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}
    schema = {"properties": {"small": small, "large": {"$ref": "#/$defs/large"}}, "$defs": {"large": tangled(3)}}
    schema["$defs"]["large"]["oneOf"][1]["properties"]["k0"] = {"$ref": "#/$defs/large"}  # type: ignore[index]
    monkeypatch.setattr(cases, "MAX_SPENT", 150)
    levels = {line.pointer: line.level for line in fsm.json_schema(schema).report}
    assert levels["#/properties/small/oneOf"] == "exact"
    assert levels["#/$defs/large/oneOf"] == "checked"


def test_strict_refuses_what_goes_beyond_the_bound() -> None:
    with pytest.raises(fsm.SchemaError):
        fsm.json_schema(tangled(8), strict=True)


def test_all_but_finitely_many_texts_of_an_endless_language_are_never_empty() -> None:
    characters = nodes.repeat(nodes.byte_range(ord("a"), ord("z")))
    few = nodes.complement(nodes.words([b"", b"a", b"abc"]))
    open_keys = nodes.intersection((characters, few))
    assert open_keys.is_plain
    assert not nodes.intersection((nodes.repeat(characters, 0, 1), nodes.complement(characters))).is_plain
    assert not nodes.intersection((nodes.byte_range(97, 99), few)).is_plain
    queue, derivatives = [open_keys], Derivatives()
    for node in queue:
        assert derivatives.is_inhabited(nodes.intersection((node, nodes.repeat(nodes.byte_range(0, 255)))))
        queue += [target for _, target in derivatives.arcs(node) if target not in queue]


def test_alternatives_with_one_check_are_checked_together() -> None:
    class Never:
        telling_bytes = frozenset[int]()

        def holds(self, data: bytes) -> bool:
            return False

        def fault(self, data: bytes) -> int | None:
            return None

    check = Never()
    one, other = nodes.literal(b"a"), nodes.literal(b"bc")
    both = nodes.alternation((nodes.checked(one, check), nodes.checked(other, check), nodes.literal(b"d")))
    assert nodes.alternation((nodes.checked(nodes.alternation((one, other)), check), nodes.literal(b"d"))) is both


def test_a_reference_is_resolved_in_the_root_even_if_the_registry_has_its_uri() -> None:
    uri = "https://example.org/a"
    only_checked = {"type": "integer", "allOf": [{"not": {"multipleOf": prime}} for prime in (2, 3, 5, 7)]}
    schema = {"$id": uri, "items": {"$ref": "#/$defs/n"}, "$defs": {"n": only_checked}}
    expression = fsm.json_schema(schema, registry={uri: {"$id": uri, "type": "string", "$defs": {"n": False}}})
    assert expression.has_checks
    assert expression.accepts("[11]")
    assert not expression.accepts("[14]")


def test_a_rule_is_built_when_its_body_is_asked_for_and_not_to_tell_how_large_a_term_is() -> None:
    rule = Rule("late", lambda: nodes.words([b"a" * 1_000, b"b" * 1_000]))
    term = nodes.concat(nodes.literal(b"("), rule.term)
    assert not rule.is_built
    small = nodes.memory(term)
    assert not rule.is_built
    assert rule.body is nodes.words([b"a" * 1_000, b"b" * 1_000])
    assert rule.is_built
    assert nodes.memory(term) > small + 2_000
