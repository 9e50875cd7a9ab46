"""The algebra of expressions against sets of strings: every text over a small alphabet, up to a length."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import Expression, ExpressionError, choice
from fsm.automaton.lazy_dfa import Automaton
from fsm.expression import lift
from fsm.terms import node as nodes
from fsm.terms.rule import Rule

ALPHABET = b"ab"
MOST = 5
UNIVERSE = frozenset(bytes(t) for n in range(MOST + 1) for t in product(ALPHABET, repeat=n))
Language = tuple[Expression, frozenset[bytes]]


def cut(texts: set[bytes]) -> frozenset[bytes]:
    return frozenset(t for t in texts if len(t) <= MOST)


def joined(left: frozenset[bytes], right: frozenset[bytes]) -> frozenset[bytes]:
    return cut({a + b for a in left for b in right if len(a) + len(b) <= MOST})


def repeated(body: frozenset[bytes], lo: int, hi: int | None) -> frozenset[bytes]:
    out, power = set[bytes](), frozenset({b""})
    for count in range((MOST + lo if hi is None else hi) + 1):
        if count >= lo:
            out |= power
        power = joined(power, body)
    return cut(out)


def leaf(texts: list[bytes]) -> Language:
    return Expression(nodes.words(texts)), cut(set(texts))


LEAVES = st.lists(st.text("ab", max_size=3).map(str.encode), min_size=0, max_size=4).map(leaf)


def grow(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    pairs = st.tuples(inner, inner)
    counts = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 3)))

    def repeat(args: tuple[Language, tuple[int, int | None]]) -> Language:
        (expression, texts), (lo, extra) = args
        hi = None if extra is None else lo + extra
        return expression.repeat(lo, hi), repeated(texts, lo, hi)

    return st.one_of(
        pairs.map(lambda p: (p[0][0] | p[1][0], p[0][1] | p[1][1])),
        pairs.map(lambda p: (p[0][0] + p[1][0], joined(p[0][1], p[1][1]))),
        pairs.map(lambda p: (p[0][0] & p[1][0], p[0][1] & p[1][1])),
        inner.map(lambda p: (~p[0], UNIVERSE - p[1])),
        st.tuples(inner, counts).map(repeat),
    )


LANGUAGES = st.recursive(LEAVES, grow, max_leaves=8)


@given(LANGUAGES)
@settings(max_examples=150)
def test_expressions_accept_exactly_what_set_algebra_says(language: Language) -> None:
    expression, texts = language
    automaton = Automaton(expression.node)
    assert texts == {t for t in UNIVERSE if automaton.accepts(t)}


@given(LANGUAGES)
@settings(max_examples=100)
def test_live_moves_are_those_from_which_something_is_accepted(language: Language) -> None:
    """Every live state must reach an accepting one; a search over the automaton itself is the proof."""
    automaton = Automaton(language[0].node)
    if automaton.is_empty():
        assert not language[1]
        return
    seen, queue, back = {1}, [1], dict[int, set[int]]()
    for state in queue:
        for target in automaton.moves(state).values():
            back.setdefault(target, set()).add(state)
            if target not in seen:
                seen.add(target)
                queue.append(target)
    reaches = [s for s in seen if automaton.is_accepting(s)]
    alive = set(reaches)
    for state in reaches:
        new = back.get(state, set()) - alive
        alive |= new
        reaches.extend(new)
    assert seen == alive


@given(LANGUAGES, LANGUAGES)
def test_interning_makes_equal_terms_one_object(left: Language, right: Language) -> None:
    assert (left[0] | right[0]) == (right[0] | left[0])
    assert hash(left[0] & right[0]) == hash(right[0] & left[0])
    assert ~~left[0] == left[0]


@given(st.lists(st.binary(max_size=6), max_size=30), st.binary(max_size=6))
def test_words_accept_their_words_only(texts: list[bytes], other: bytes) -> None:
    automaton = Automaton(nodes.words(texts))
    assert all(automaton.accepts(t) for t in texts)
    assert (other in texts) == automaton.accepts(other)


def test_operators_refuse_recursive_operands() -> None:
    rule = Rule("list")
    rule.define(
        nodes.alternation(
            (
                nodes.literal(b"x"),
                nodes.sequence([nodes.literal(b"("), rule.term, nodes.literal(b")")]),
            )
        )
    )
    nested = Expression(rule.term)
    assert nested.accepts("(((x)))")
    assert not nested.accepts("((x)")
    with pytest.raises(ExpressionError, match="recursive rule"):
        ~nested
    with pytest.raises(ExpressionError, match="recursive rule"):
        nested & "x"


def test_a_rule_that_needs_itself_is_empty() -> None:
    rule = Rule("forever")
    rule.define(nodes.concat(nodes.literal(b"("), rule.term))
    assert Expression(rule.term).is_empty()


def test_left_recursion_is_refused_with_the_name_of_the_rule() -> None:
    rule = Rule("sum")
    rule.define(nodes.alternation((nodes.literal(b"1"), nodes.concat(rule.term, nodes.literal(b"+1")))))
    with pytest.raises(ExpressionError, match="left recursion.*'sum'"):
        Expression(rule.term).accepts("1+1")


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="a & b"):
        bool(lift("a"))


def test_text_is_lifted_on_both_sides() -> None:
    assert ("a" + choice(["b", "c"]) + "d").accepts("acd")
    assert ("x" | lift("y")).accepts("x")
    assert not ("x" & lift("y")).accepts("x")


def test_counters_and_deep_terms_cost_no_recursion_and_no_unrolling() -> None:
    deep = lift("a")
    for _ in range(20_000):
        deep = ("(" + deep + ")").repeat(0, 2)
    assert deep.accepts("")
    counted = lift("a").repeat(3, 1_000_000_000)
    automaton = Automaton(counted.node)
    assert automaton.accepts(b"a" * 50)
    assert len(automaton) < 60
