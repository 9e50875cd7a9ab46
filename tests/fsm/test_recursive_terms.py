"""Terms with a rule that refers to itself, against the short texts of their shape; and what a step of ambiguous rules costs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm import grammar, regex
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Kind, Node
from fsm.terms.rule import Rules

LONGEST = 5
TEXTS = ["".join(letters) for length in range(LONGEST + 1) for letters in product("ab", repeat=length)]

Shape = Any
"""A text; "x", which is the rule; or a tuple: "then" or "or" and two shapes, or "loop", a shape, the least and the most iterations."""

LOOPS = st.builds(lambda least, more: ("loop", "x", least, None if more > 2 else least + more), st.integers(0, 2), st.integers(0, 3))
SHAPES = st.recursive(
    st.sampled_from(["", "a", "b", "ab", "x"]) | LOOPS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["then", "then", "or"]), inner, inner),
        st.builds(lambda left, right, loop: ("then", ("or", left, right), loop), inner, inner, LOOPS),
        st.builds(lambda body, least: ("loop", body, least, None), inner, st.integers(0, 2)),
    ),
    max_leaves=6,
)


def texts_of(shape: Shape, of_rule: set[str]) -> set[str]:
    """The texts of a shape with at most `LONGEST` letters."""
    if isinstance(shape, str):
        return of_rule if shape == "x" else {shape}
    kind, left, *rest = shape
    one = texts_of(left, of_rule)
    if kind == "loop":
        least, most = rest
        iterations, known = [{""}], {""}
        while len(iterations) <= LONGEST + least and (most is None or len(iterations) <= most):
            known = joined(known, one)
            iterations.append(known)
        return set().union(*iterations[least:])
    other = texts_of(rest[0], of_rule)
    return one | other if kind == "or" else joined(one, other)


def joined(left: set[str], right: set[str]) -> set[str]:
    return {a + b for a in left for b in right if len(a + b) <= LONGEST}


def term_of(shape: Shape, rule: Node) -> Node:
    if isinstance(shape, str):
        return rule if shape == "x" else nodes.literal(shape.encode())
    kind, left, *rest = shape
    one = term_of(left, rule)
    if kind == "loop":
        return nodes.repeat(one, *rest)
    other = term_of(rest[0], rule)
    return nodes.alternation((one, other)) if kind == "or" else nodes.concat(one, other)


@given(SHAPES, SHAPES)
def test_the_derivatives_of_a_recursive_term_accept_its_texts(body: Shape, shape: Shape) -> None:
    body = ("or", "a", ("then", "b", body))
    rules = Rules()
    rule = rules.rule("x")
    rule.define(term_of(body, rule.term))
    root, of_rule, before = term_of(shape, rules.entrance(rule)), set[str](), {""}
    while of_rule != before:
        before, of_rule = of_rule, texts_of(body, of_rule)
    expected, derivatives = texts_of(shape, of_rule), Derivatives()
    after = {"": root}
    for text in TEXTS:
        if text:
            after[text] = derivatives.after(after[text[:-1]], ord(text[-1]))
        assert after[text].nullable is (text in expected), text


@pytest.mark.parametrize(
    ("text", "letter", "most"),
    [
        ('start: x~1..2 | "a" start+\nx: "aaa"', "a", 200),
        ('start: x~1..2 | "a" "a"? | "a" start+\nx: "a" x* | "("* "a"~1..2 "a"', "a", 500),
        ('start: x\nx: x+ | z* | y\ny: x "i"\nz: "i"', "i", 500),
        ('start: x?\nx: x+ | z* | [y] y\ny: x+ x [x] | [z] | "i"~1..2 "i" y?\nz: "i" "i"~1..2 | z "i"+ y? | "i"', "i", 400),
        ('start: "a" | "a" (start | x)+\nx: "a" | "a" start+ | "a" x+', "a", 800),
    ],
)  # fmt: skip
def test_a_step_of_an_ambiguous_grammar_takes_little_work_after_a_long_text(text: str, letter: str, most: int) -> None:
    """It took 20,000 after 25 to 100 letters, as all earlier unions are parts of the next one, and each of them was derived again."""
    derivatives, term = Derivatives(), grammar(text, lexer="dynamic").node
    for _ in range(100):
        before = work.done()
        term = derivatives.after(term, ord(letter))
        assert work.done() - before < most
    assert term.nullable


@pytest.mark.parametrize(
    ("pattern", "same"),
    [("(?:a?b*)*", "[ab]*"), ("(?:(?:cd)?|a+|(?:ab*)?)*", "(?:cd|a+|ab*)*"), ("(?:a?b*){0,3}", None), ("(?:a?b)*", None)],
)
def test_a_loop_is_empty_in_one_way(pattern: str, same: str | None) -> None:
    node, body = regex(pattern).node, regex(pattern[: pattern.rindex(")") + 1]).node
    assert node is (nodes.intern(Kind.REPEAT, (body, 0, node.args[2]), True, (body,)) if same is None else regex(same).node)
