"""Patterns against `re` itself: everything `regex` supports, and the part of ECMA-262 that can be put in Python's words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import RegexSyntaxError, UnsupportedRegex
from fsm.pattern.ecma_pattern import ecma_search
from fsm.pattern.python_pattern import regex
from fsm.terms.character_class import category, general_category, ignoring_case, unicode_property, union
from fsm.terms.characters import (
    ALL_CHARACTERS,
    MAX_CODE_POINT,
    Ranges,
    intersect,
    invert,
    json_spelling,
    json_text,
    utf8,
)
from tests.strategies import Sample, ecma_patterns, python_patterns, texts_near

SCALARS = [c for c in map(chr, range(MAX_CODE_POINT + 1)) if not 0xD800 <= ord(c) <= 0xDFFF]


@given(python_patterns(), st.data())
@example(Sample("(?:^a|b$|\n)*", "a\n"), None)
@example(Sample("(?m)(?:^|a)$\n^b", "\nb"), None)
@example(Sample("(?:a$|\n){2}", "a\n"), None)
@example(Sample("(?i)(?:\\d|\U00010400)", "\U00010400"), None)
@settings(max_examples=80, deadline=None)
def test_regex_accepts_what_fullmatch_accepts(sample: Sample, data: st.DataObject | None) -> None:
    try:
        expected = re.compile(sample.python)
    except re.error:
        with pytest.raises(RegexSyntaxError):
            regex(sample.python)
        return
    try:
        automaton = Automaton(regex(sample.python).node)
    except UnsupportedRegex as refusal:
        assert "anchor" in str(refusal)  # noqa: PT017 - the only construct in the strategy that may be refused
        assume(False)
    near = [data.draw(texts_near(sample.text)) for _ in range(8)] if data else []
    for text in ["", "\n", sample.text, sample.text + "\n", *near]:
        assert bool(expected.fullmatch(text)) == automaton.accepts(text.encode()), text


@given(ecma_patterns(), st.data())
@settings(max_examples=60, deadline=None)
def test_ecma_search_finds_what_search_finds(sample: Sample, data: st.DataObject) -> None:
    expected = re.compile(sample.python)
    plain = Automaton(ecma_search(sample.ecma, utf8))
    spelled = Automaton(ecma_search(sample.ecma, json_spelling))
    for text in ["", sample.text, sample.text + "\n", *(data.draw(texts_near(sample.text)) for _ in range(6))]:
        found = bool(expected.search(text))
        assert found == plain.accepts(text.encode()), text
        assert found == spelled.accepts(json_text(text)), text


def members(ranges: Ranges) -> set[str]:
    return {chr(c) for first, last in ranges for c in range(first, last + 1)}


@pytest.mark.parametrize("letter", "dwsDWS")
@pytest.mark.parametrize("ascii", [False, True])
def test_a_category_is_what_re_means_by_it_for_every_character(letter: str, ascii: bool) -> None:
    everything = "".join(map(chr, range(MAX_CODE_POINT + 1)))
    runs = re.finditer(rf"\{letter}+", everything, re.ASCII if ascii else re.UNICODE)
    expected = tuple((run.start(), run.end() - 1) for run in runs)
    assert intersect(expected, ALL_CHARACTERS) == category(letter, ascii)


def test_general_categories_are_those_of_unicodedata_for_every_character() -> None:
    names = list(map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1))))
    for name, count in Counter(map(unicodedata.category, SCALARS)).items():
        ranges = general_category(name) or ()
        assert all(last < first for (_, last), (first, _) in pairwise(ranges))
        assert {name} == {found for first, last in ranges for found in names[first : last + 1]}
        assert count == sum(last + 1 - first for first, last in ranges)
    assert general_category("Lu") == general_category("Uppercase_Letter") == unicode_property("gc=Lu")
    assert invert(general_category("Cn") or ()) == unicode_property("Assigned")
    cased = union(general_category(name) or () for name in ("Lu", "Ll", "Lt"))
    assert cased == general_category("LC") == unicode_property("General_Category=Cased_Letter")


def test_no_character_beyond_the_first_planes_has_case() -> None:
    assert [c for c in SCALARS if ord(c) > 0x1FFFF and (c.lower() != c or c.upper() != c)] == []


CASED = "".join(c for c in SCALARS[:0x20000] if c.lower() != c or c.upper() != c)
CODE_POINTS = st.sampled_from([ord(c) for c in CASED]) | st.integers(0x21, 0x1E950)


@given(st.lists(st.tuples(CODE_POINTS, st.sampled_from([0, 0, 1, 30])), min_size=1, max_size=4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_class_that_ignores_case_holds_what_re_finds(items: list[tuple[int, int]], ascii: bool) -> None:
    written = [(c, c + more) for c, more in items]
    inside = "".join(re.escape(chr(a)) + ("-" + re.escape(chr(b)) if b > a else "") for a, b in written)
    expected = re.compile(f"[{inside}]", re.IGNORECASE | (re.ASCII if ascii else re.UNICODE))
    found = members(ignoring_case(tuple(written), ascii))
    for text in (CASED, "".join(map(chr, {c + d for pair in written for c in pair for d in (-1, 0, 1)}))):
        assert {*expected.findall(text)} == found.intersection(text)


@given(st.lists(st.text("ab", max_size=4), min_size=1, max_size=30))
def test_an_alternation_of_words_is_the_set_of_them(words: list[str]) -> None:
    automaton = Automaton(regex("|".join(words)).node)
    for text in {*words, *(w[:-1] for w in words), *(w + "a" for w in words)}:
        assert (text in words) == automaton.accepts(text.encode())
