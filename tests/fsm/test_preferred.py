"""What `re.match` takes whole, against `re.match`."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import UnsupportedRegex
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import looks_outside, preferred_texts, regex

TEXTS = ["".join(text) for length in range(6) for text in product("abx", repeat=length)]
ATOMS = st.sampled_from(["a", "b", "ab", "[ab]", ".", "x", "", "(?!b)", "(?<!a)", "(?=a|x)", r"(?<=b)"])
COUNTS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{1,3}?", "{2,}?"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.builds("(?:{}){}".format, inner, COUNTS),
    )


@given(st.recursive(ATOMS, grow, max_leaves=10))
@example("x|xa")
@example("a?(?:ab)?")
@example("(?:|a)*")
@example("(?:a??b)*?x")
@example("(?:a|a)a+")
@example("(?:(?!b)|[ab]){1,3}")
@example("(?:|a|)*a+?b")
@settings(max_examples=150, deadline=None)
def test_it_is_what_match_takes(pattern: str) -> None:
    pattern = f"[ab]{pattern}[bx]" if re.search("[!=]", pattern) else pattern
    assume(not looks_outside(pattern))
    try:
        taken = preferred_texts(pattern)
    except UnsupportedRegex:
        assume(False)
    expected = re.compile(pattern)
    automaton = Automaton(taken)
    wrong = []
    for text in TEXTS:
        found = expected.match(text)
        if automaton.accepts(text.encode()) != (found is not None and found.end() == len(text)):
            wrong.append(text)
    assert not wrong
    language = regex(pattern).node
    whole = Automaton(language)
    is_all = all(automaton.accepts(text.encode()) == whole.accepts(text.encode()) for text in TEXTS)
    assert is_all or simplest(taken, language) is taken
