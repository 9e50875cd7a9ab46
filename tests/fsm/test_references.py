"""References: other scopes, `$recursiveRef`, parts that are built when a text comes there, and patterns inside checks."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, note, settings
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable

import fsm
from fsm import BudgetExceeded, json_schema
from fsm.errors import EmptyLanguage
from fsm.pattern import ecma_matcher
from fsm.schema.documents import cases
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Kind, Node
from fsm.terms.rule import Rule
from tests.examples import examples
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
@settings(max_examples=examples(36), deadline=None)
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
    # Without a URI it forgets dynamic anchors of the root; without a registry it fetches what it does not find.
    oracle = jsonschema.Draft202012Validator({"$id": ROOT, **schema}, registry=REGISTRY)
    for _ in range(15):
        found = value(random)
        try:
            is_valid = oracle.is_valid(found)
        except Unresolvable:  # it looks in the wrong resource after some dynamic references
            return
        note(repr(found))
        judged()
        assert is_valid == (expression is not None and expression.accepts(json.dumps(found)))


@pytest.mark.filterwarnings("ignore::fsm.errors.SchemaWarning")
@pytest.mark.parametrize("root", [{}, {"$id": ROOT}])
@pytest.mark.parametrize("rewritten", [{"format": "unknown"}, {"dependencies": {}}, {"nullable": True}])
def test_the_identifier_of_a_resource_that_is_rewritten_is_applied_once(root: dict[str, Any], rewritten: dict[str, Any]) -> None:
    resource = {"$id": "sub/e.json", "items": {"$ref": "#/$defs/one"}, "$defs": {"one": {"const": 1}}, **rewritten}
    schema = {**root, "additionalProperties": {"$ref": "sub/e.json"}, "$defs": {"e": resource}}
    accepts = json_schema(schema).accepts
    assert accepts('{"a":[1,1]}')
    assert not accepts('{"a":[2]}')


def test_a_reference_into_a_resource_that_redefines_a_dynamic_anchor_has_that_one() -> None:
    containing = {"contains": {"$dynamicRef": "#dynamic"}, "maxContains": 1}
    never, unique = ({"$dynamicAnchor": "dynamic", **more} for more in ({"not": {}}, {"uniqueItems": True}))
    schema = {"$ref": "d#/items", "$defs": {"d": {"$id": "d", "items": containing, "$defs": {"n": never}}, "n": unique}}
    expression, oracle = json_schema(schema), jsonschema.Draft202012Validator({**schema, "$id": ROOT})
    for found in (1, [], [1], [[1, 1]], [[1, 2]], [[1, 1], [1, 1]], {"a": [1, 1]}):
        assert oracle.is_valid(found) == expression.accepts(json.dumps(found)), found


def test_a_negated_reference_into_older_words_is_found_in_their_translation() -> None:
    schema = {"not": {"items": {"$ref": "#/$defs/d/items/0"}}, "$defs": {"d": {"items": [{"uniqueItems": True}]}}}
    expression = json_schema(schema)
    assert [expression.accepts(text) for text in ("[[1,1]]", "[[1,2]]")] == [True, False]


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
    schema = tree(True) | {"uniqueItems": True, "properties": {"below": {"items": {"$recursiveRef": "#"}, "uniqueItems": True}}}
    assert accepts(schema, {"below": [{}, {"below": []}]})
    assert not accepts(schema, {"below": [{}, {}]})
    assert not accepts(schema, {"below": [{"below": [{}, {}]}]})


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
    rules = [rule for rule in rules_of(expression.node) if rule.name.startswith("/$defs")]  # any value is shared with others
    assert rules
    assert not any(rule.is_built for rule in rules)
    assert expression.accepts('{"to3": {"to5": {"to3": {"xy": 1, "z": null}}}}')
    assert not expression.accepts('{"to3": {"to5": {"to3": {"z": 1}}}}')
    assert {f"#/$defs/d{n}/properties/to{n}/$ref" for n in range(12)} <= {line.pointer for line in expression.report}


def tangled(size: int) -> dict[str, Any]:
    """Branches of `oneOf` that may hold together, and hold each other."""
    branches = [{"type": "object", "properties": {f"k{n}": {"$ref": "#"}, "v": {"minimum": n}}, "required": [f"k{n}"]} for n in range(size)]
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
    for value in values(2)[::5]:
        assert validator.is_valid(value) == expression.accepts(json.dumps(value)), value
    with pytest.raises(fsm.SchemaError):
        fsm.json_schema(schema, strict=True)


def test_small_negations_stay_exact_where_large_ones_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}
    schema = {"properties": {"small": small, "large": {"$ref": "#/$defs/large"}}, "$defs": {"large": tangled(3)}}
    schema["$defs"]["large"]["oneOf"][1]["properties"]["k0"] = {"$ref": "#/$defs/large"}  # type: ignore[index]
    monkeypatch.setattr(cases, "MAX_SPENT", 150)
    levels = {line.pointer: line.level for line in fsm.json_schema(schema).report}
    assert levels["#/properties/small/oneOf"] == "exact"
    assert levels["#/$defs/large/oneOf"] == "checked"


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


def test_an_identifier_beside_a_reference_is_ignored_by_the_drafts_that_ignore_what_is_beside_it() -> None:
    given = {"http://x.test/dir/t.json": {"type": "string"}, "http://x.test/t.json": {"type": "integer"}}
    beside = {"allOf": [{"$id": "dir/", "$ref": "t.json"}]}
    around = {
        "definitions": {"a": {"$id": "dir/", "$ref": "#", "definitions": {"b": {"$ref": "t.json"}}}},
        "$ref": "#/definitions/a/definitions/b",
    }
    alone = {"properties": {"a": {"$id": "dir/", "properties": {"b": {"$ref": "t.json"}}}}}
    for draft, is_ignored in (("draft-07/schema#", True), ("draft/2020-12/schema", False)):
        head = {"$schema": f"http{'s' * (not is_ignored)}://json-schema.org/{draft}", "$id": "http://x.test/"}
        for schema in (beside, around):
            found = json_schema(head | schema, registry=given)
            assert (found.accepts("1"), found.accepts('"a"')) == (is_ignored, not is_ignored)
        found = json_schema(head | alone, registry=given)
        assert (found.accepts('{"a":{"b":1}}'), found.accepts('{"a":{"b":"a"}}')) == (False, True)


def test_a_rule_is_built_when_its_body_is_asked_for_and_not_to_tell_how_large_a_term_is() -> None:
    rule = Rule("late", lambda: nodes.words([b"a" * 1_000, b"b" * 1_000]))
    term = nodes.concat(nodes.literal(b"("), rule.term)
    assert not rule.is_built
    small = nodes.memory(term)
    assert not rule.is_built
    assert rule.body is nodes.words([b"a" * 1_000, b"b" * 1_000])
    assert rule.is_built
    assert nodes.memory(term) > small + 2_000


TWO_HALVES = r"^(.+)(.+)-\1\2$"
"""A text of n characters takes some n * n / 4 steps."""


def halves(size: int) -> str:
    return json.dumps("ab" * size + "-" + "ab" * size)


def test_a_long_text_that_takes_many_steps_of_backtracking_is_accepted() -> None:
    expression = json_schema({"type": "string", "pattern": TWO_HALVES})
    assert expression.accepts(halves(1_200))  # some three million ways to divide it
    assert not expression.accepts(halves(20) + " ")
    assert not expression.accepts(json.dumps("ab-ac"))


def test_what_the_matcher_cannot_tell_is_an_error_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecma_matcher, "MAX_STEPS", 10_000)
    for schema in ({"pattern": TWO_HALVES}, {"not": {"pattern": TWO_HALVES}}):
        expression = json_schema({"type": "string", **schema})
        with pytest.raises(BudgetExceeded, match=r"not decided within 10,000 steps of backtracking\. Write") as caught:
            expression.accepts(halves(500))
        assert (caught.value.limit, caught.value.value) == ("max_backtracks", 10_000)
        assert expression.accepts(halves(3)) is ("pattern" in schema)


def test_a_regular_pattern_beside_it_is_matched_by_the_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecma_matcher, "MAX_STEPS", 1_000)
    far = r"^(?=.*(?:a|aa)*c)(?!.*(?:b|bb)+d)[a-z]*$"
    expression = json_schema({"type": "string", "allOf": [{"pattern": r"^(.).*\1$"}, {"pattern": far}]})
    assert expression.accepts(json.dumps("a" * 400 + "c" + "b" * 400 + "a"))
    assert not expression.accepts(json.dumps("a" * 400 + "c" + "b" * 400 + "da"))


def test_the_report_says_how_such_a_pattern_is_matched() -> None:
    report = json_schema({"type": "string", "pattern": TWO_HALVES}).report
    (line,) = [line for line in report if line.level == "checked"]
    assert line.note == "the pattern is not regular, so it is matched by backtracking, in at most 250,000 steps"
