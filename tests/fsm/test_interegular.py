"""Automata of interegular, both ways: `from_interegular` and `to_interegular`, against each other and against `re`."""

from __future__ import annotations

import gc
import re
from itertools import product

import interegular
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from interegular.fsm import FSM, Alphabet, anything_else

import fsm
from fsm import BudgetExceeded, Expression, ExpressionError, from_interegular, regex
from fsm.automaton.character_dfa import CharacterDFA
from fsm.automaton.lazy_dfa import Automaton
from tests.examples import examples
from tests.terms import num_terms

TEXT = regex("(?s).*")
LETTERS = "ab\néè€😀\x7f\u0800\uffff"
EDGES = "\x00\x80\u07ff\u0fff\u1000\ud7ff\ue000\U00010000\U0003ffff\U00040000\U0010ffff"
SHORT = [*EDGES, *("".join(text) for length in range(3) for text in product(LETTERS, repeat=length))]
ATOMS = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "(?:ab)", "é", "[^é]", "[à-ÿ]", "(?:b|€a)", "😀", r"[^\n-\x7f]", "[\u0700-\u0900]"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffix = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])
    return st.one_of(
        st.tuples(inner, suffix).map(lambda p: f"(?:{p[0]}){p[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
    )


PATTERNS = st.recursive(ATOMS, grow, max_leaves=5)


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5)


def are_equal(left: Expression, right: Expression) -> bool:
    """True when no text belongs to one of both only."""
    return all((one & ~other & TEXT).is_empty() for one, other in ((left, right), (right, left)))


@given(PATTERNS, TEXTS)
@settings(max_examples=examples(40))
def test_an_automaton_of_interegular_becomes_the_texts_of_its_pattern(pattern: str, texts: list[str]) -> None:
    oracle = interegular.parse_pattern(pattern).to_fsm()
    found = from_interegular(oracle)
    assert are_equal(regex(pattern), found)
    automaton = Automaton(found.node)
    for text in [*SHORT, *texts]:
        assert bool(re.fullmatch(pattern, text)) == oracle.accepts(text) == automaton.accepts(text.encode()), text


@given(PATTERNS, PATTERNS, st.sampled_from("|&~-+"), TEXTS)
@example("", "a", "&", [])
@settings(max_examples=examples(40))
def test_there_and_back_is_the_same_language(left: str, right: str, sign: str, texts: list[str]) -> None:
    one, other = regex(left), regex(right)
    expression = {"|": one | other, "&": one & other, "~": ~one & TEXT, "-": one & ~other, "+": one + other}[sign]
    there = expression.to_interegular()
    assert are_equal(expression, from_interegular(there))
    automaton = Automaton(expression.node)
    for text in [*SHORT, *texts]:
        assert automaton.accepts(text.encode()) == there.accepts(text), text


@given(PATTERNS, PATTERNS)
@settings(max_examples=examples(25))
def test_the_algebra_of_interegular_is_ours(left: str, right: str) -> None:
    one, other = regex(left), regex(right)
    mine, yours = one.to_interegular(), other.to_interegular()
    assert are_equal(one & other, from_interegular(mine & yours))
    assert are_equal(one | other, from_interegular(mine | yours))
    assert (one & other).is_empty() == (mine & yours).empty()


def test_automata_that_come_back_to_where_they_began_meet_others() -> None:
    assert not regex("(?:ab)*a").to_interegular().isdisjoint(regex("(?:ab)*ab?a").to_interegular())


def test_the_largest_set_of_characters_is_anything_else() -> None:
    automaton = regex('[^"a]*').to_interegular()
    assert {'"', "a", anything_else} == set(automaton.alphabet)
    assert set("abc") | {anything_else} == set(regex("[a-c]").to_interegular().alphabet)


def test_every_character_that_is_named_is_a_symbol_and_counts() -> None:
    expression = regex("[a-z]") + regex("[^x]")
    assert set(map(chr, range(ord("a"), ord("z") + 1))) | {anything_else} == set(expression.to_interegular().alphabet)
    assert len(expression.to_interegular(max_symbols=26).alphabet) == 27
    with pytest.raises(BudgetExceeded, match="received one with 26"):
        expression.to_interegular(max_symbols=25)


def test_automata_are_equal_where_their_states_are() -> None:
    one, same, other = (CharacterDFA([[(((97, 99),), 1)], []], accepting) for accepting in ([1], [1], [0, 1]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.language() is same.language()
    assert one.language() is not other.language()


def test_no_text_is_an_automaton_without_an_end() -> None:
    assert (regex("a") & "b").to_interegular().empty()
    empty = FSM(Alphabet.from_groups({"a"}), {0, 1}, 0, {1}, {0: {}})
    assert from_interegular(empty).is_empty()
    assert from_interegular(FSM(Alphabet({}), {7}, 7, {7}, {})).accepts("")


def test_states_may_be_anything_and_what_is_not_named_leads_nowhere() -> None:
    alphabet = Alphabet.from_groups({"a", "\ud800"}, {"b"})
    found = from_interegular(FSM(alphabet, {"x", ("y",)}, "x", {("y",)}, {"x": {0: ("y",), 1: "x"}}))
    assert [text for text in ("a", "bba", "", "b", "ab", "c", "ca") if found.accepts(text)] == ["a", "bba"]
    assert not found.accepts("\ud800")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[a-z]", "call `fsm.regex`"),
        (interegular.parse_pattern("a"), "to_fsm()"),
        (FSM(Alphabet.from_groups({"ab"}), {0}, 0, {0}, {0: {0: 0}}), "received one with the symbol 'ab'"),
        (FSM(Alphabet.from_groups({7}), {0}, 0, {0}, {0: {0: 0}}), "received one with the symbol 7"),
    ],
)
def test_what_is_no_automaton_over_characters_is_refused(given: object, message: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(message)):
        from_interegular(given)


def test_what_is_not_regular_is_refused() -> None:
    with pytest.raises(ExpressionError, match="'to_interegular' takes regular expressions only.*recursive rule"):
        fsm.grammar('start: "(" start? ")"').to_interegular()
    with pytest.raises(ExpressionError, match="'to_interegular' takes regular expressions only.*has a check"):
        fsm.json_schema({"type": "array", "uniqueItems": True, "items": {"type": "number"}, "maxItems": 3}).to_interegular()


@pytest.mark.parametrize(
    ("expression", "limit"),
    [(regex("(?:a|b)*a(?:a|b){12}"), "max_states"), (regex(r"\w+"), "max_symbols"), (regex("a") + "bc", "max_states")],
)
def test_what_is_too_large_names_the_bound(expression: Expression, limit: str) -> None:
    bound = 1_000 if expression.accepts("a" * 13) else 3
    with pytest.raises(BudgetExceeded, match=f"raise `{limit}`") as caught:
        expression.to_interegular(**{limit: bound})
    assert (limit, bound) == (caught.value.limit, caught.value.value)
    assert len((regex("a") + "bc").to_interegular(max_states=4, max_symbols=3).states) == 4


def test_what_was_dropped_is_freed() -> None:
    gc.collect()
    before = num_terms()
    expression = from_interegular(regex("[a-f]{40}q|é+").to_interegular())
    assert expression.accepts("abcdef" * 6 + "abcdq")
    del expression
    assert num_terms() <= before + 20  # classes of characters are remembered
