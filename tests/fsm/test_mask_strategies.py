"""Each strategy of `mask_strategies.py` alone, in every term that it recognises, against the plain loop over all tokens."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import Expression, TokenFSM, Vocabulary, choice, regex
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.bitmask import to_ids
from fsm.terms.node import Node
from fsm.tokens import mask_strategies
from fsm.tokens.mask_strategies import BELOW, STRATEGIES, MaskMaker, Strategy, mask_key
from fsm.tokens.trie import Trie
from tests.fsm.test_expression import LANGUAGES
from tests.fsm.test_open_walk import patterns
from tests.fsm.test_token_fsm import loops, loops_that_leave_out

PIECES = ["a", "b", "é", "1", ".", ",", '"', " ", "\n", "x", "-"]

RECOGNISED: list[tuple[str, Expression]] = [
    ("alternatives", regex("[^q]*q|x{2,3}")),
    ("character_loop", regex('[^"]{2,9}"')),
    ("text_first", choice(["ab", "ax", "b1"])),
    ("depth_first", choice(["ab", "ax", "b1"])),
    ("breadth_first", regex("[^a]x|[^b]a")),
    ("loop_after_byte", regex("[a-p][a-z0-9]{1,4}x")),
    ("loop_without_language", regex("(?!ab[a-z]*1)[a-z]*1")),
    ("loop_without_words", (regex("[a-z]*") & ~choice(["ab", "x"])) + "1"),
    ("pattern_and_loop", regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]{3,12}")),
    ("pattern_and_loop", regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]*")),
]
"""For each strategy one or more terms that it recognises; `spelled` is for other vocabularies, see `test_spelling.py`."""


@cache
def vocabulary() -> Vocabulary:
    words = [a + b + c for a in PIECES for b in PIECES for c in ["", "a", '"', "1"]]
    found = Vocabulary([None, *(bytes((byte,)) for byte in range(256)), *map(str.encode, words)], [0])
    found.walks_before_a_loop = 0
    return found


def plain(automaton: Automaton, term: Node, before: bytes) -> list[int]:
    """The loop that every strategy replaces, for the tokens that go on after `before`."""
    state, found = automaton.state_of(term), []
    for token_id, token in enumerate(vocabulary().tokens):
        rest = token[len(before) :] if token and token.startswith(before) else b""
        if rest and automaton.next_state(state, rest) != DEAD:
            found.append(token_id)
    return found


def assert_plain(strategies: tuple[Strategy, ...], automaton: Automaton, term: Node, before: bytes) -> list[str]:
    """Compare each strategy that recognises `term` below the trie node of `before`; return their names."""
    maker, place = MaskMaker(automaton, vocabulary()), vocabulary().trie.follow(Trie.root, before)[1]
    masks = {strategy.__name__: strategy(maker, term, place) for strategy in strategies}
    made = {name: to_ids(words).tolist() for name, words in masks.items() if words is not None}
    assert dict.fromkeys(made, plain(automaton, term, before)) == made
    return [*made]


@pytest.mark.parametrize(("name", "expression"), RECOGNISED)
def test_a_strategy_makes_the_mask_of_a_term_that_it_recognises(name: str, expression: Expression) -> None:
    automaton = Automaton(expression.node)
    term = mask_key(expression.node, vocabulary())
    assert name in assert_plain((*STRATEGIES, *BELOW), automaton, term, b"")


def test_every_strategy_has_an_example() -> None:
    assert {strategy.__name__ for strategy in (*STRATEGIES, *BELOW)} == {*dict(RECOGNISED), "spelled"}


@given(
    st.one_of(
        loops(),
        loops_that_leave_out(),
        LANGUAGES.map(lambda language: language[0]),
        patterns().map(regex),
        st.tuples(patterns(), st.sampled_from([".{0,9}", ".{3,}"])).map(lambda pair: regex(pair[0]) & regex(pair[1])),
    ),
    st.sampled_from(PIECES).map(str.encode),
)
@settings(max_examples=25, deadline=None)
def test_each_strategy_that_recognises_a_term_makes_the_mask_of_the_plain_loop(
    expression: Expression, before: bytes
) -> None:
    automaton = Automaton(expression.node)
    if automaton.is_empty():
        return
    for state in {1, automaton.next_state(1, before)} - {DEAD}:
        term = automaton.nodes[state]
        key = mask_key(term, vocabulary())
        assert_plain(STRATEGIES, automaton, key, b"")
        assert key is term or plain(automaton, key, b"") == plain(automaton, term, b"")
        assert_plain(BELOW, automaton, key, before)


def test_a_pattern_beside_a_count_below_a_node_where_no_token_goes_on() -> None:
    term = (regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]{3,12}")).node
    few = Vocabulary([None, *(bytes((byte,)) for byte in range(256)), b"zz"], [0])
    place = few.trie.follow(Trie.root, b"zz")[1]
    words = mask_strategies.pattern_and_loop(MaskMaker(Automaton(term), few), term, place)
    assert words is not None
    assert not words.any()


def test_the_order_of_the_strategies_changes_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    expression, masks = regex('[a-z][a-z0-9]{1,4}"|x{3}'), []
    for strategies in (STRATEGIES, STRATEGIES[-1:], STRATEGIES[:1] + STRATEGIES[:0:-1]):
        monkeypatch.setattr(mask_strategies, "STRATEGIES", strategies)
        vocabulary().clear_cache()
        masks.append(TokenFSM(expression, vocabulary()).bitmask(1).tolist())
    assert masks[:1] * 3 == masks
