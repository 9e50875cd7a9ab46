"""Heads that are read as long as they can be, as lexers do, against their definition over finite sets of words."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes

WORDS = st.frozensets(st.text("ab", max_size=3), min_size=1, max_size=5)


def longest_first(heads: frozenset[str], tails: frozenset[str], rivals: frozenset[str]) -> set[str]:
    """A head, then a tail: the head is left only where no head and no rival could go on with the next character.

    A head that is over in any case is told in full: what is read after it is no text of the rival.
    """

    def is_left(head: str, tail: str) -> bool:
        if not any(other != head and other.startswith(head) for other in heads):
            return not any(head + tail[:end] in rivals for end in range(1, len(tail) + 1))
        return not tail or not any(other.startswith(head + tail[0]) for other in heads | rivals)

    return {head + tail for head in heads for tail in tails if is_left(head, tail)}


def words(texts: frozenset[str]) -> nodes.Node:
    return nodes.words(text.encode() for text in texts)


def check(automaton: Automaton, expected: set[str]) -> None:
    """Its texts, and what may come next after each of their beginnings."""
    assert automaton.is_empty() == (not expected)
    for text in sorted({"", *(whole[:end] for whole in expected for end in range(len(whole) + 1))}):
        state = automaton.next_state(automaton.initial_state, text.encode())
        assert (text in expected) == automaton.is_accepting(state), text
        following = {other[len(text)] for other in expected if other.startswith(text) and other != text}
        assert sorted(following) == sorted(map(chr, automaton.moves(state))), text


@settings(max_examples=150)
@given(WORDS, WORDS)
@example(frozenset({"", "a", "aa"}), frozenset({"", "ab"}))
def test_a_head_is_left_where_it_cannot_go_on(heads: frozenset[str], tails: frozenset[str]) -> None:
    check(Automaton(nodes.munch(words(heads), words(tails))), longest_first(heads, tails, frozenset()))


@settings(max_examples=150)
@given(WORDS, WORDS)
@example(frozenset({"ab", "aa"}), frozenset({"a"}))
@example(frozenset({"ab"}), frozenset({"ab", "abb"}))
@example(frozenset({"aba", "b"}), frozenset({"ab"}))
def test_no_beginning_of_a_tail_is_a_text_of_the_rival(tails: frozenset[str], rivals: frozenset[str]) -> None:
    node = nodes.munch(nodes.EPSILON, words(tails), words(rivals))
    check(Automaton(node), longest_first(frozenset({""}), tails, rivals))


@settings(max_examples=150)
@given(WORDS, WORDS, WORDS)
def test_a_head_is_left_only_where_its_rival_cannot_go_on_either(
    heads: frozenset[str], tails: frozenset[str], rivals: frozenset[str]
) -> None:
    automaton = Automaton(nodes.munch(words(heads), words(tails), words(rivals)))
    expected = longest_first(heads, tails, rivals)
    texts = {head + tail for head in heads for tail in tails}
    assert {text for text in texts if automaton.accepts(text.encode())} <= expected
    sure = {text for text in expected if not any(rival.startswith(text[:end]) for rival in rivals for end in (1, 2))}
    assert sure <= {text for text in texts if automaton.accepts(text.encode())}
