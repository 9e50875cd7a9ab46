"""Lookarounds, word boundaries and anchors at any place, also inside repetitions, against `re`."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm import regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import SchemaError, UnsupportedRegex
from fsm.pattern.ecma_pattern import ecma_search
from fsm.terms.characters import json_spelling, json_text

ALPHABET = "ab \n"
TEXTS = ["".join(text) for length in range(5) for text in product(ALPHABET, repeat=length)]
ATOMS = st.sampled_from(["a", "b", "ab", "[ab]", ".", " ", "[^a]", r"\w", "a*", "b?", "\n", ""])
ANCHORS = st.sampled_from([r"\b", r"\B", "^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)"])
BEHIND = st.sampled_from(["a", "b", "ab", r"\w", ".b", "(?<!a)b", "a|b", "^a", r"\b"])
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{10}", "{2,12}"])


def look_behind(inner: str, is_negative: bool) -> str:
    return f"(?<{'!' if is_negative else '='}{inner})"


def look_ahead(inner: str, is_negative: bool) -> str:
    return f"(?{'!' if is_negative else '='}{inner})"


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.builds("(?:{}){}".format, inner, COUNTS),
        st.builds(look_ahead, inner, st.booleans()),
    )


PATTERNS = st.recursive(ATOMS | ATOMS | ANCHORS | st.builds(look_behind, BEHIND, st.booleans()), grow, max_leaves=10)


@given(PATTERNS)
@example(r"(?:(?!ab)[ab ])*")
@example(r"(?:(?<=a)b|a)*")
@example(r"(?:a\b ?)*")
@example(r"(?:(?=a)|b){3}")
@example(r"(?:(?=a)|b){2,}a*")
@example(r"(?m)(?:^a$\n?)*")
@example(r"(?:(?!(?:(?!b)a)*b)a)*b?")
@example(r"(?:a|(?<=(?<!b)a)b)*")
@example(r"(?:\b|a){10}")
@example(r"(?:(?:(?!b)){2})*")
@example(r"(?:(?:(?!b)a?){2})*b")
@settings(max_examples=100, deadline=None)
def test_what_looks_around_in_a_loop_means_what_it_means_to_re(pattern: str) -> None:
    try:
        expected = re.compile(pattern)
    except re.error:
        assume(False)
    try:
        automaton = Automaton(regex(pattern).node)
    except UnsupportedRegex:
        assume(False)
    wrong = [text for text in TEXTS if bool(expected.fullmatch(text)) != automaton.accepts(text.encode())]
    assert not wrong


@given(PATTERNS)
@example("a(?<=^a)")
@settings(max_examples=40, deadline=None)
def test_what_is_found_in_json_text_is_what_re_finds(pattern: str) -> None:
    ecma = re.sub(r"\\Z|\$", "$", pattern).replace(r"\A", "^")
    assume("(?m" not in ecma)
    try:
        expected = re.compile(ecma.replace("$", r"\Z").replace(r"\w", "[a-z]"))
        automaton = Automaton(ecma_search(ecma, json_spelling))
    except (re.error, SchemaError):
        assume(False)
    texts = TEXTS[1:] if r"\B" in ecma else TEXTS  # before Python 3.14 it does not hold in the empty text
    wrong = [text for text in texts if bool(expected.search(text)) != automaton.accepts(json_text(text))]
    assert not wrong
