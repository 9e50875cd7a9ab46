"""Small automata as terms of loops."""

from __future__ import annotations

import re
from itertools import product

import pytest

from fsm.automaton.lazy_dfa import Automaton, as_loop
from fsm.pattern.python_pattern import preferred_texts, regex
from fsm.terms.node import EMPTY, Kind
from fsm.terms.state_elimination import MAX_STATES, as_loops

PATTERNS = [
    "a|ab",
    "a+?b?",
    "(?:a|b)*a[ab]b",
    "a(?:(?!b).)*b",
    "(?:ab?)+",
    "a??b",
    r"(?<!a)b.*?(?<!b)a",
    "b(?!b)a|a",
    "(?:a|bb){2,3}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_language_stays_the_same(pattern: str) -> None:
    found = as_loops(preferred_texts(pattern))
    assert found is not None
    automaton = Automaton(found)
    for text in ("".join(letters) for length in range(8) for letters in product("ab", repeat=length)):
        match = re.match(pattern, text)
        assert (match is not None and match.end() == len(text)) == automaton.accepts(text.encode()), text


def test_a_string_is_a_loop_between_quotes() -> None:
    found = as_loops(preferred_texts(r'".*?(?<!\\)(\\\\)*?"'))
    assert found is not None
    assert found.args[0].args[0] == b'"'
    loop = as_loop(found.args[1])
    assert loop is not None
    assert loop[1:3] == (0, None)
    assert loop[3].kind is Kind.LITERAL


def test_what_has_too_many_states_is_left_alone() -> None:
    assert as_loops(regex(f"(?:a|b)*a(?:a|b){{{MAX_STATES}}}").node) is None


def test_no_text_is_the_empty_language() -> None:
    assert as_loops(EMPTY) is EMPTY


def test_the_bound_on_states_is_the_last_that_is_allowed() -> None:
    assert as_loops(regex(f"a{{{MAX_STATES - 1}}}").node) is not None
    assert as_loops(regex(f"a{{{MAX_STATES}}}").node) is None
