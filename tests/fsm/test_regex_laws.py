"""Patterns against `re` itself: all that `regex` supports, lookarounds at any place, and loose patterns of ECMA-262 in Python's words."""

from __future__ import annotations

import json
import re
import unicodedata
import warnings
from contextlib import suppress
from itertools import pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm import Expression, TokenFSM, Vocabulary, json_schema, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import FSMError, RegexSyntaxError, SchemaError, UnsupportedRegex
from fsm.pattern.ecma_pattern import ecma_search, read_loosely
from fsm.pattern.unicode_sets import unicode_property
from fsm.terms.characters import (
    ALL_CHARACTERS,
    MAX_CODE_POINT,
    Ranges,
    category,
    ecma_space,
    ignoring_case,
    intersect,
    invert,
    json_spelling,
    json_text,
    union,
    utf8,
)
from fsm.terms.derivative import Derivatives
from tests.examples import examples
from tests.strategies import Sample, ecma_patterns, python_patterns, texts_near

SCALARS = [c for c in map(chr, range(MAX_CODE_POINT + 1)) if not 0xD800 <= ord(c) <= 0xDFFF]


_BODIES, _TAILS = st.sampled_from(["a", "ab", "[ab]", "b?a"]), st.sampled_from(["", "b", "c", "a?c", "ba"])
_LOOPS = st.builds(
    lambda body, lo, more, tail: f"(?:{body}){{{lo},{lo + more}}}{tail}", _BODIES, st.integers(0, 1), st.integers(0, 3), _TAILS
)
_BYTES = Vocabulary([*[bytes((byte,)) for byte in range(256)], None], [256])
_SHORT_TEXTS = ["".join(characters) for length in range(5) for characters in product("abc", repeat=length)]


@given(st.lists(_LOOPS, min_size=3, max_size=4))
@example(["a{0,3}b", "a{0,2}c", "ba"])
@settings(max_examples=examples(40), deadline=None)
def test_a_union_of_loops_with_one_body_accepts_what_fullmatch_accepts(parts: list[str]) -> None:
    expected, node = re.compile("|".join(parts)), regex("|".join(parts)).node
    automaton, texts = Automaton(node), [text for text in _SHORT_TEXTS if expected.fullmatch(text)]
    assert texts == [text for text in _SHORT_TEXTS if automaton.accepts(text.encode())]
    first = Derivatives().first_bytes(node)
    assert {text[0] for text in texts if text} <= {byte for byte in "abc" if first >> ord(byte) & 1}
    token_fsm = TokenFSM(regex("|".join(parts)) & ~regex("c+"), _BYTES)
    for text in texts:
        state = token_fsm.initial_state
        for byte in text.encode() if text.strip("c") else b"":
            state = token_fsm.next_state(state, byte)
        assert token_fsm.is_accepting(state) or not text.strip("c")


@given(python_patterns(), st.data())
@example(Sample("(?:^a|b$|\n)*", "a\n"), None)
@example(Sample("(?m)(?:^|a)$\n^b", "\nb"), None)
@example(Sample("(?:a$|\n){2}", "a\n"), None)
@example(Sample("(?i)(?:\\d|\U00010400)", "\U00010400"), None)
@settings(max_examples=examples(80), deadline=None)
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
@settings(max_examples=examples(60), deadline=None)
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


def test_general_categories_are_those_of_unicodedata_where_a_character_is_assigned() -> None:
    names = list(map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1))))
    changed = list[int]()
    for name in {*map(unicodedata.category, SCALARS)} - {"Cn"}:
        ranges = unicode_property(name) or ()
        assert all(last < first for (_, last), (first, _) in pairwise(ranges))
        changed += [c for first, last in ranges for c in range(first, last + 1) if names[c] not in (name, "Cn")]
    assert len(changed) < 10  # between the version of Unicode of this Python and ours, as U+0295
    assert unicode_property("Lu") == unicode_property("Uppercase_Letter") == unicode_property("gc=Lu")
    assert invert(unicode_property("Cn") or ()) == unicode_property("Assigned")
    controls = ((0x09, 0x0D), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
    assert ecma_space() == union((controls, unicode_property("Zs") or ()))
    cased = union(unicode_property(name) or () for name in ("Lu", "Ll", "Lt"))
    assert cased == unicode_property("LC") == unicode_property("General_Category=Cased_Letter")


def test_no_character_beyond_the_first_planes_has_case() -> None:
    assert [c for c in SCALARS if ord(c) > 0x1FFFF and (c.lower() != c or c.upper() != c)] == []


CASED = "".join(c for c in SCALARS[:0x20000] if c.lower() != c or c.upper() != c)
CODE_POINTS = st.sampled_from([ord(c) for c in CASED]) | st.integers(0x21, 0x1E950)


@given(st.lists(st.tuples(CODE_POINTS, st.sampled_from([0, 0, 1, 30])), min_size=1, max_size=4), st.booleans())
@settings(max_examples=examples(100), deadline=None)
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
@settings(max_examples=examples(100), deadline=None)
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
@settings(max_examples=examples(24), deadline=None)
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


PIECES = [
    *"ab()|*+?[]^$.-A_1é{},\\ \n", r"\b", r"\B", r"\d", r"\w", r"\s", r"\D", r"\W", "(?:", "(?=", "(?!", "(?<=", "(?<!", "{2}",
    "{1,2}", "{,2}", "{1,}", "*?", "+?", "??", "[a-b]", "[^a]", r"[^\w]", r"\n", r"\.", "a|b", "(a|b)", "(?i)", "(?s:", "(?-i:",
    "(?P<n>", "(?>", r"\1", r"\A", r"\Z", "(?m:", r"\x41", r"\u00e9", "[]a]", "(?#",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("(?<=a|)")
@settings(max_examples=examples(200), deadline=None)
def test_pieces_without_sense_are_read_exactly_where_re_reads_them(pattern: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        with suppress(FSMError):  # and nothing else
            ecma_search(pattern, utf8)
        try:
            expected = re.compile(pattern)
        except (re.error, OverflowError) as error:
            if "fixed-width" not in str(error):  # a lookbehind of texts of several lengths
                with pytest.raises(FSMError):
                    regex(pattern)
            return
        try:
            automaton = Automaton(regex(pattern).node)
        except RegexSyntaxError:
            raise AssertionError("`re` reads it") from None
        except FSMError:
            return
    assert [text for text in TEXTS if bool(expected.fullmatch(text)) != automaton.accepts(text.encode())] == []


class Part(NamedTuple):
    """A part of a pattern as a schema has it, what Python calls it, and what is told of it."""

    loose: str
    python: str
    told: frozenset[str] = frozenset()


def part(loose: str, python: str, *told: str) -> Part:
    return Part(loose, python, frozenset(told))


LOOSE_ATOMS = st.sampled_from(
    [
        *(part(same, same) for same in ("a", "b", "S", ".", "[a-b]", "[^a]", r"\w", "ab", "Sb", r"\n", r"\.")),
        part("]", r"\]", "a lone ']'"),
        part("}", r"\}", "a lone '}'"),
        part(r"\-", "-", r"'\-'"),
        part(r"\a", "a", r"'\a'"),
        part(r"\_", "_", r"'\_'"),
        part(r"[\w-.]", r"[\w.\-]", "'-' beside a class"),
        part(r"[+-\d]", r"[+\-0-9]", "'-' beside a class"),
        part(r"[-a]", r"[\-a]"),
        part(r"[a-]", r"[\-a]"),
        part(r"[^-a]", r"[^\-a]"),
        part(r"[\-b]", r"[\-b]"),
        part(r"[\b]", r"\x08"),
        part(r"\062", "2", r"'\0'"),
        part(r"[\142]", "b", r"'\1'"),
        part(r"(?:\x6)", "(?:x6)", r"'\x'"),  # in groups, as an `a` behind them would make them whole
        part(r"\x61", "a"),
        part(r"(?:\u61)", "(?:u61)", r"'\u'"),
        part(r"\u0061", "a"),
        part(r"\u{62}", "b"),
        part(r"\cJ", r"\n"),
        part(r"\c!", r"\\c!", r"'\c'"),
        part("(?P<n_NUMBER>a)", "(?:a)", "(?P<...>)"),
        part("(?<m_NUMBER>a)", "(?:a)"),
    ]
)


def loose_grow(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    def row(parts: list[Part]) -> Part:
        return Part("".join(p.loose for p in parts), "".join(p.python for p in parts), frozenset().union(*(p.told for p in parts)))

    def either(parts: list[Part]) -> Part:
        both = row(parts)
        return Part(f"(?:{'|'.join(p.loose for p in parts)})", f"(?:{'|'.join(p.python for p in parts)})", both.told)

    def times(args: tuple[Part, str]) -> Part:
        body, count = args
        return Part(f"(?:{body.loose}){count}", f"(?:{body.python}){count}", body.told)

    def flagged(args: tuple[str, Part]) -> Part:
        flags, body = args
        return Part(f"(?{flags}:{body.loose})", f"(?{flags}:{body.python})", body.told)

    def from_here(args: tuple[Part, str, Part]) -> Part:
        before, flags, after = args
        told = before.told | after.told | {f"(?{flags})"}
        return Part(f"(?:{before.loose}(?{flags}){after.loose})", f"(?:{before.python}(?{flags}:{after.python}))", told)

    flags = st.sampled_from(["i", "s", "is", "i-s", "-i", "-s", "-is"])
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,2}?"])
    rows = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        rows.map(row),
        rows.map(either),
        st.tuples(inner, counts).map(times),
        st.tuples(flags, inner).map(flagged),
        st.tuples(inner, flags, inner).map(from_here),
    )


LOOSE_PATTERNS = st.recursive(LOOSE_ATOMS, loose_grow, max_leaves=8)
LOOSE_TEXTS = st.lists(st.text("abABS.\n-]}_+x6u1\\c!\b", max_size=5), min_size=2, max_size=8)


def written(loose: str) -> str:
    """The pattern with a name of its own for each group."""
    pieces = loose.split("NUMBER")
    return "".join(f"{piece}{number}" for number, piece in enumerate(pieces[:-1])) + pieces[-1]


def accepts(expression: Expression, text: str) -> bool:
    return expression.accepts(json.dumps(text, ensure_ascii=False))


@settings(max_examples=examples(200))
@given(LOOSE_PATTERNS, LOOSE_TEXTS)
@example(part("(?i)Sb(?-i)ab", "(?i:Sb(?-i:ab))", "(?i)", "(?-i)"), ["sBab", "sBaB", "SB"])
@example(part("(?:a(?s).)b.", "(?:a(?s:.))b.", "(?s)"), ["a\nb\n", "a\nbx"])
def test_a_loose_pattern_is_read_as_python_reads_the_same(pattern: Part, texts: list[str]) -> None:
    loose = written(pattern.loose)
    expression = json_schema({"type": "string", "pattern": f"^(?:{loose})$"})
    python = re.compile(rf"(?:{pattern.python})\Z", re.ASCII)
    for text in texts:
        assert bool(python.match(text)) == accepts(expression, text), text
    (line,) = (line for line in expression.report if line.keyword == "pattern")
    assert pattern.told == set(read_loosely(loose))
    assert [said for said in pattern.told if said not in line.note] == []
    assert bool(pattern.told) == ("ECMA-262 refuses it" in line.note)


@pytest.mark.parametrize(
    ("loose", "python"),
    [
        ("^(?i)ab|c$", r"^(?i:ab)|(?i:c)\Z"),
        ("^(?:(?i)ab|c)d$", r"^(?:(?i:ab)|(?i:c))d\Z"),
        ("^a{$", r"^a\{\Z"),
        ("^a{,2}$", r"^a\{,2\}\Z"),
        ("^a{2}{$", r"^aa\{\Z"),
        (r"^(a)[\1]$", r"^a\x01\Z"),
        (r"^\08$", r"^\x008\Z"),
        (r"^[\8]$", r"^8\Z"),
        (r"^[\40]0$", r"^ 0\Z"),
        (r"^(?i)aab{2}$", r"^(?i:aabb)\Z"),
        (r"^(?i)(?:ab|b)c$", r"^(?i:(?:ab|b)c)\Z"),
    ],
)
def test_where_loose_flags_and_signs_end(loose: str, python: str) -> None:
    expression = json_schema({"type": "string", "pattern": loose})
    texts = [
        "ab", "AB", "c", "C", "abd", "ABd", "ABD", "cd", "Cd", "CD", "a{", "a{,2}", "aa{", "aa", "a", "A", "a\x02", "\x008",
        "8", " 0",
    ]  # fmt: skip
    texts += ["aabb", "AABB", "aab", "bc", "BC", "abc", "ABC", "xab", "abx", "xc", "cx"]
    for text in texts:
        assert bool(re.search(python, text)) == accepts(expression, text), text
