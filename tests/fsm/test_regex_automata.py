"""Regular expressions against the automata of interegular, which share no code with this package."""

from __future__ import annotations

from itertools import product

import interegular
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import regex
from fsm.automaton.lazy_dfa import Automaton

TEXTS = ["".join(t) for n in range(6) for t in product("abc", repeat=n)]
ATOMS = st.sampled_from(["a", "b", "c", "[ab]", "[^a]", ".", "(?:ab)", "(?:b|ca)"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffix = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])
    return st.one_of(
        st.tuples(inner, suffix).map(lambda p: f"(?:{p[0]}){p[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
    )


@given(st.recursive(ATOMS, grow, max_leaves=5))
@settings(max_examples=60, deadline=None)
def test_patterns_accept_what_the_automata_of_interegular_accept(pattern: str) -> None:
    oracle = interegular.parse_pattern(pattern).to_fsm()
    automaton = Automaton(regex(pattern).node)
    assert [t for t in TEXTS if oracle.accepts(t)] == [t for t in TEXTS if automaton.accepts(t.encode())]
