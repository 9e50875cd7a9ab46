"""Every keyword of JSON Schema, in any combination, against the `jsonschema` validator: with checks, and by the automaton alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, example, given, note, settings
from hypothesis import strategies as st

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded, EmptyLanguage, SchemaError
from fsm.schema import json_schema
from tests.judged import at_least, judged
from tests.walks import RANDOMS, random_text

Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMES = ["a", "b", "ab", "c"]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 3, 4.5, 0.5, -1, "", "a", "b", "ab", "abc"])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^$", "c|^b"])
SMALL = st.integers(0, 3)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


@cache
def values(depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return SCALARS
    below = values(depth - 1)
    return SCALARS | st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=3)


def keywords(below: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """What each keyword may be."""
    some = st.lists(below, min_size=1, max_size=3)
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(values(1), min_size=1, max_size=4),
        "const": values(1),
        "minimum": st.sampled_from([0, 1, 2, 0.5]),
        "exclusiveMaximum": st.sampled_from([1, 3, 4.5]),
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.3]),
        "minLength": SMALL,
        "maxLength": SMALL,
        "pattern": PATTERNS,
        "items": below,
        "prefixItems": some,
        "contains": below,
        "minContains": SMALL,
        "maxContains": SMALL,
        "minItems": SMALL,
        "maxItems": SMALL,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": below,
        "properties": st.dictionaries(st.sampled_from(NAMES), below, max_size=3),
        "patternProperties": st.dictionaries(PATTERNS, below, max_size=2),
        "additionalProperties": below,
        "propertyNames": below,
        "required": names,
        "minProperties": SMALL,
        "maxProperties": SMALL,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), below, max_size=2),
        "unevaluatedProperties": below,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": below,
        "if": below,
        "then": below,
        "else": below,
        "$ref": st.sampled_from(["#/$defs/list", "#/$defs/tree", "#name"]),
    }


DEFINITIONS = {
    "list": {"type": "array", "items": {"$ref": "#/$defs/list"}},
    "tree": {"$anchor": "name", "properties": {"a": {"$ref": "#name"}}, "maxProperties": 1},
}


@st.composite
def drawn(draw: Draw, below: st.SearchStrategy[Any]) -> Any:
    kinds = keywords(below)
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=4, unique=True))
    return {name: draw(kinds[name]) for name in chosen}


@cache
def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return st.booleans() | TYPES.map(lambda name: {"type": name}) | values(1).map(lambda value: {"const": value})
    return schemas(0) | drawn(schemas(depth - 1))


DOCUMENTS = schemas(3).map(lambda s: {"$defs": DEFINITIONS} | s if isinstance(s, dict) else s)
relaxed = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def texts_of(value: Any) -> list[str]:
    return [json.dumps(value, ensure_ascii=False, separators=s) for s in ((",", ":"), (", ", ": "))]


@relaxed
@given(DOCUMENTS, st.lists(values(), min_size=4, max_size=8))
@example({"not": {"type": "integer", "multipleOf": 2}}, [1, 2, 4.5])
@example({"contains": {"const": 1}, "maxContains": 1, "unevaluatedItems": False}, [[1], [1, 1], [1, 2]])
def test_an_instance_is_accepted_exactly_if_it_is_valid(schema: Any, found: list[Any]) -> None:
    try:
        expression = json_schema(schema, key_order="any")
    except EmptyLanguage:
        assert not any(is_valid(schema, value) for value in found)
        return
    except BudgetExceeded as error:
        assume(error.limit != "max_alternatives")  # refused
        raise
    except SchemaError as error:
        if "refers to itself" not in str(error):
            raise
        return
    for value in found:
        note(repr(value))
        assert {expression.accepts(text) for text in texts_of(value)} == {is_valid(schema, value)}


@relaxed
@given(DOCUMENTS, st.lists(values(), min_size=4, max_size=8), st.sampled_from(["any", "schema"]))
def test_a_strict_automaton_alone_accepts_no_invalid_instance(schema: Any, found: list[Any], key_order: Any) -> None:
    try:
        expression = json_schema(schema, key_order=key_order, strict=True)
    except EmptyLanguage:
        assert not any(is_valid(schema, value) for value in found)
        return
    except (SchemaError, BudgetExceeded):
        return
    automaton = Automaton(expression.node)
    for value in found:
        accepted = {automaton.accepts(text.encode()) for text in texts_of(value)}
        valid = is_valid(schema, value)
        note(f"{value!r} {valid}")
        assert accepted == {valid} if key_order == "any" else valid or accepted == {False}


@at_least(30)
@relaxed
@given(DOCUMENTS, RANDOMS, st.integers(0, 40), st.booleans())
def test_every_text_that_passes_is_valid_json(schema: Any, random: Random, steps: int, strict: bool) -> None:
    try:
        expression = json_schema(schema, strict=strict)
    except (EmptyLanguage, SchemaError, BudgetExceeded):
        return
    text = random_text(expression.node, random, steps)
    note(repr(text))
    keys: list[str] = []
    value = json.loads(text, object_pairs_hook=lambda pairs: keys.extend(k for k, _ in pairs) or dict(pairs))
    if strict or expression.accepts(text):
        judged()
        assert is_valid(schema, value)
