"""What is dropped is freed at once, by reference count: nothing of ours waits for the cyclic collector, and no term is left."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fsm
from fsm import Expression, TokenFSM, Vocabulary, choice, grammar, json_schema, regex
from fsm.errors import ExpressionError
from fsm.terms import node as nodes
from fsm.terms.rule import Rules
from tests.terms import num_terms

WORDS = (b'"', b'": ', b'", "', b'{"', b'{"a": ', b"the", b"ab", b"12", b"}}", b"null", b"true", b"[[", b"]", b'"}')
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), *WORDS, None], [256 + len(WORDS)])

CALCULATOR = """
start: expr
expr: expr "+" term | term
term: NUM | "(" expr ")" | NAME
NUM: /[0-9]+/
NAME: /[a-z]+/
%ignore / /
"""


def tree(name: str = "kids") -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "array", "items": {"$ref": "#"}}}, "required": [name]}


def mutual() -> dict[str, Any]:
    """Two definitions that hold each other, with checks."""
    return {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "type": "object",
                "properties": {"b": {"$ref": "#/$defs/b"}, "x": {"not": {"const": "q"}}},
                "additionalProperties": {"$ref": "#/$defs/a"},
            },
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/b"}, "uniqueItems": True}]},
        },
    }


KINDS: dict[str, Callable[[], Expression]] = {
    "regex": lambda: regex("(a|b)*c[a-z]{3,9}"),
    "lookaround": lambda: regex(r"(?:(?!-->).)*-->|\b\w+\b(?<=ab)"),
    "complement": lambda: ~regex("a.*b") & regex("[ab]{0,20}"),
    "choice": lambda: choice([f"word {n}" for n in range(100)]),
    "captures": lambda: regex("[0-9]+").named("n") + "-" + (regex("[a-z]+").named("w") | "none"),
    "repeat": lambda: (regex("ab|c") + ",").repeat(2, 9),
    "substring": lambda: fsm.substring("the quick brown fox"),
    "until": lambda: fsm.until("END"),
    "machine": lambda: json_schema({"type": "integer", "multipleOf": 7}) + "!",
    "type": lambda: fsm.types.json_value + "!",
    "fields": lambda: json_schema({"properties": {"a": {"type": "integer"}, "b": {"pattern": "^a", "maxLength": 9}}}),
    "members": lambda: json_schema({"minProperties": 2, "maxProperties": 4, "patternProperties": {"^x": {}}}),
    "any order": lambda: json_schema({"properties": {"a": {"type": "null"}, "b": True}}, key_order="any"),
    "any value": lambda: json_schema(True),
    "check": lambda: json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    "checked schema": lambda: json_schema({"oneOf": [{"pattern": "(a+)b\\1"}, {"minLength": 2}]}),
    "too many cases": lambda: json_schema({"dependentRequired": {f"k{n}": [f"k{n + 1}"] for n in range(12)}}),
    "negation": lambda: json_schema({"not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}),
    "format": lambda: json_schema({"type": "string", "format": "date-time"}),
    "recursive schema": lambda: json_schema(tree()),
    "definitions that hold each other": lambda: json_schema(mutual()),
    "grammar": lambda: grammar(CALCULATOR),
    "grammar, keywords as names": lambda: grammar(CALCULATOR, lexer="dynamic"),
    "grammar of nothing or more": lambda: grammar('start: ("a" start "b")?'),
    "all together": lambda: "x: " + grammar(CALCULATOR) + ";" + json_schema(tree()).named("tree"),
}


def use(make: Callable[[], Expression]) -> None:
    """Make an expression, and do with it what is done with expressions."""
    expression = make()
    token_fsm = TokenFSM(expression, VOCABULARY)
    state = token_fsm.initial_state
    for step in range(10):
        ids = [token_id for token_id in token_fsm.allowed_token_ids(state).tolist() if VOCABULARY.tokens[token_id]]
        if not ids:
            break
        state = token_fsm.next_state(state, ids[7 * step % len(ids)])
    expression.accepts('{"kids": [{"kids": [')
    expression.blame('{"a": xx')
    expression.captures("12-ab")
    repr(expression)
    VOCABULARY.masks.clear()


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is there already, such as what other tests keep, is not looked through again
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def garbage() -> list[object]:
    """What only the cyclic collector could free, as far as it is ours."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [item for item in gc.garbage if type(item).__module__.partition(".")[0] == "fsm"]
    gc.garbage.clear()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_expression_that_is_dropped_is_freed_at_once(kind: str) -> None:
    use(KINDS[kind])  # what is made once for all, such as classes of characters, stays
    with no_collector():
        before = num_terms()
        use(KINDS[kind])
        assert before == num_terms()
        assert garbage() == []


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "object", "properties": {"b": {"pattern": "("}}}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"enum": [[n] for n in range(20)], "anyOf": [{"minItems": n} for n in range(2000)]},
    ],
)
def test_a_schema_that_is_refused_leaves_nothing(schema: dict[str, Any]) -> None:
    def refuse() -> None:
        with pytest.raises(fsm.FSMError):
            json_schema(schema, limits=fsm.Limits(max_alternatives=100), strict=True)

    refuse()
    with no_collector():
        before = num_terms()
        refuse()
        assert before == num_terms()
        assert garbage() == []


def test_terms_of_many_recursive_schemas_do_not_add_up() -> None:
    use(lambda: json_schema(tree("one")))
    with no_collector():
        before = num_terms()
        for number in range(30):
            use(lambda number=number: json_schema(tree(f"kids {number}")))  # type: ignore[misc]
        assert before == num_terms()


def test_threads_that_make_and_drop_the_same_leave_nothing() -> None:
    for kind in ("recursive schema", "grammar", "regex"):
        KINDS[kind]().accepts("{")
    before, errors = num_terms(), list[Exception]()

    def work() -> None:
        try:
            for _ in range(5):
                assert json_schema(mutual()).accepts('{"b": [{"x": 1}], "y": {}}')
                assert grammar('start: "a" start "b" | "c"').accepts("aacbb")
                assert regex("(?:ab|c)*d").accepts("abcd")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    json_schema(mutual()).accepts("{")
    del threads
    assert num_terms() - before < 100


def test_a_part_of_a_recursive_language_keeps_its_rules() -> None:
    together = Expression(nodes.concat(grammar('start: "a" start "b" | "c"').node, nodes.literal(b"!")))
    assert together.accepts("aacbb!")
    assert together.repeat(2).accepts("c!acb!")
    assert not together.accepts("aacb!")


def test_what_is_left_of_a_language_that_is_gone_says_so() -> None:
    rules = Rules()
    rule = rules.rule("list")
    rule.define(nodes.alternation((nodes.literal(b"x"), nodes.sequence((nodes.literal(b"("), rule.term, nodes.literal(b")"))))))
    whole = rules.entrance(rule)
    inside = rule.term
    del rules
    assert Expression(whole).accepts("((x))")
    assert Expression(inside).accepts("((x))")
    del whole
    with pytest.raises(ExpressionError, match=r"rule 'list' has no body.*keep the expression"):
        Expression(inside).accepts("((x))")
