"""Terms as text for people: where nothing is left out, the text is a pattern of the same language."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsm import regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms.node import Node
from fsm.terms.rendering import render

ALPHABET = "ab\n.]-^\\+\u00e9"
BYTES = st.sets(st.sampled_from(ALPHABET.replace("\u00e9", "")), min_size=1).map(
    lambda found: nodes.byte_set(sum(1 << ord(c) for c in found))
)
LEAVES = st.text(ALPHABET, max_size=3).map(lambda text: nodes.literal(text.encode())) | BYTES


def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(inner, min_size=1, max_size=3)
    counts = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2))
    return st.one_of(
        some.map(nodes.sequence),
        some.map(nodes.alternation),
        inner.map(nodes.optional),
        st.tuples(inner, counts).map(
            lambda args: nodes.repeat(args[0], args[1][0], None if args[1][1] is None else sum(args[1]))
        ),
    )


@settings(max_examples=80)
@given(st.recursive(LEAVES, grow, max_leaves=6))
def test_what_is_shown_whole_is_a_pattern_of_the_same_language(node: Node) -> None:
    shown = render(node, 1_000)
    assume("<" not in shown and "words)" not in shown and r"\x" not in shown)
    again = regex(shown).node
    for one, other in ((node, again), (again, node)):
        assert Automaton(nodes.intersection((one, nodes.complement(other)))).is_empty(), shown
    if len(shown) > 3:
        assert shown == render(node, max(len(shown), 20))
        assert render(node, len(shown) - 1) == f"{shown[: len(shown) - 4]}..."
