"""Small random grammars against Lark itself, its parsers and its strict mode."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from itertools import product
from random import Random
from typing import Literal

import pytest
from hypothesis import assume, event, example, given, note, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError

from fsm import BudgetExceeded, EmptyLanguage, Expression, FSMError, GrammarError, TerminalCollision, grammar
from fsm.automaton.lazy_dfa import Automaton
from fsm.lark.conflict import accepted_terminals, is_lalr
from outlines_cont import generate, models
from tests import grammars as known
from tests.examples import examples
from tests.walks import RANDOMS

TEXTS = ["".join(text) for length in range(6) for text in product("ab ", repeat=length)]
TEXTS += ["".join(text) for length in range(1, 5) for text in product("abA", repeat=length) if "A" in text]
STRINGS = st.sampled_from(['"a"', '"b"', '"ab"', '"aa"', '"ba"', '"ab"i', '"a"i'])
PATTERNS = st.sampled_from(
    [
        "/[ab]+/", "/a+/", "/b+/", "/a|ab/", "/ab|a/", "/a*b/", "/a+?b?/", "/[ab]/", "/b(?!b)a/", "/[ab]+/i", "/[abA]+/",
        "/a??b/", "/(?:ab?)+/", "/a(?!b)/", "/b(?!aa)/", "/(?i:ab(?!a))/", "/[ab]+\\b/",
    ]
)  # fmt: skip


POINTS = ["".join(text) for length in range(8) for text in product("1.", repeat=length)]
POINT_STRINGS = st.sampled_from(['"."', '".."', '"1"', '"..."'])
NUMBERS = st.sampled_from(["/1+/", "/1+([.]1+)?/", "/1+[.]1*/", "/[.]1+/", "/1+([.]1)*/", "/[.]+/", "/1+(?![.])/", "/1(?![.]1)/"])


@st.composite
def grammars(draw: st.DrawFn, strings: st.SearchStrategy[str], terminals: st.SearchStrategy[str] | None = None) -> str:
    """Up to three rules over some strings and up to two named terminals, which may have a priority."""
    names = ["start", "x", "y"][: draw(st.integers(1, 3))]
    named = [f"T{n}" for n in range(draw(st.integers(0, 2)) if terminals is not None else 0)]
    lines = []
    letters = strings | st.sampled_from(named or ['"a"'])
    atoms = st.sampled_from(names) | letters
    items = st.builds("{}{}".format, atoms, st.sampled_from(["", "", "", "?", "*", "+", "~1..2"]))
    rows = st.lists(items, min_size=1, max_size=3).map(" ".join)
    for name in names:
        last = draw(st.lists(letters, min_size=1, max_size=2).map(" ".join))
        options = list(dict.fromkeys([*draw(st.lists(rows, max_size=2)), last]))
        lines.append(f"{draw(st.sampled_from(['', '?'])) if name != 'start' else ''}{name}: {' | '.join(options)}")
    for name in named:
        priority = draw(st.sampled_from(["", "", ".1"]))
        lines.append(f"{name}{priority}: {draw(strings if terminals is None else terminals)}")
    if draw(st.booleans()):
        lines.append('%ignore " "')
    return "\n".join(lines)


def reads(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


def made(text: str) -> tuple[Automaton, Lark, Lark | None]:
    """Our automaton, the default parser of Lark, and its LALR parser where that has no conflicts."""
    try:
        earley = Lark(text)
    except (LarkError, AssertionError):
        assume(False)
    try:
        automaton = Automaton(grammar(text, ignored="any").node)
    except (EmptyLanguage, GrammarError):
        assume(False)
    try:
        lalr = Lark(text, parser="lalr") if is_lalr(earley.rules, "start") else None
    except LarkGrammarError:
        lalr = None
    return automaton, earley, lalr


def check_with_both(text: str, texts: list[str]) -> None:
    """What is accepted of some texts is read by both parsers of Lark."""
    automaton, earley, lalr = made(text)
    accepted = [t for t in texts if automaton.accepts(t.encode())]
    event("LALR" if lalr else "Earley only")
    assert [t for t in accepted if not reads(earley, t)] == []
    assert [t for t in accepted if lalr and not reads(lalr, t)] == []


@given(grammars(STRINGS, STRINGS | PATTERNS))
@settings(max_examples=examples(40), deadline=None)
def test_what_is_accepted_is_read_by_both_parsers_of_lark(text: str) -> None:
    check_with_both(text, TEXTS)


@example('start: start x | "." "."\nx: start | T0 | "1" "."\nT0.1: /1+([.]1+)?/')
@given(grammars(POINT_STRINGS, POINT_STRINGS | NUMBERS))
@settings(max_examples=examples(40), deadline=None)
def test_numbers_and_points_are_read_by_both_parsers_of_lark(text: str) -> None:
    check_with_both(text, POINTS)


@given(grammars(st.sampled_from(['"a"', '"b"'])))
@settings(max_examples=examples(12), deadline=None)
def test_with_terminals_of_one_letter_the_languages_are_equal(text: str) -> None:
    automaton, earley, _ = made(text)
    assert [t for t in TEXTS if automaton.accepts(t.encode()) != reads(earley, t)] == []


@st.composite
def grammars_with_gaps(draw: st.DrawFn) -> str:
    """Rows of terminals with a rule between them that may be empty, so that what follows a terminal is found behind it, too."""
    atoms = st.sampled_from(["n", "n", "x", "T0", "T1", '"a"', '"b"', '"ab"'])
    row = st.lists(atoms, min_size=2, max_size=4).map(" ".join)
    lines = ["start: " + " | ".join(draw(st.lists(row, min_size=1, max_size=2, unique=True)))]
    lines.append("x: " + draw(st.sampled_from(["T0", '"b"', 'n "b"', "T1 n", '"a" | T1'])))
    lines.append("n: " + draw(st.sampled_from(["T0?", '"b"?', '"ab"?', "T1?", '("a" "b")?'])))
    for number in range(2):
        priority = draw(st.sampled_from(["", ".1", ".2"]))
        pattern = draw(st.sampled_from(["/[ab]+/", "/a+/", "/b/", "/[ab]/", '"ab"', '"a"', "/ab?/"]))
        lines.append(f"T{number}{priority}: {pattern}")
    return "\n".join(lines)


@given(grammars_with_gaps())
@settings(max_examples=examples(24), deadline=None)
@example('start: x n "ab" n\nx: "a" | T1\nn: "b"?\nT0.2: /b/\nT1: /[ab]+/')
@example('start: "b" "b" n\nn: T0?\nT0.1: /b/')
def test_what_follows_behind_an_empty_rule_is_read_by_both_parsers_of_lark(text: str) -> None:
    check_with_both(text, TEXTS)


@pytest.mark.parametrize(
    "text",
    ['start: (/a/ | "ab" | /a+/)*', 'start: ("a" | /a+b/ | /b+/)*', 'start: (/a+/ | /ab?/)* "b"', 'start: x*\nx: /a/ | "ab" | /a+/ "b"?'],
)
def test_by_the_dynamic_lexer_rounds_of_overlapping_terminals_are_those_of_its_parser(text: str) -> None:
    automaton, earley = Automaton(grammar(text, lexer="dynamic").node), Lark(text)
    assert [t for t in TEXTS if automaton.accepts(t.encode()) != reads(earley, t)] == []


@pytest.mark.parametrize(("pattern", "without"), [("/a*/", "/a+/"), ("/(ab)?/", "/ab/"), ("/b|a{0,2}/", "/b|a{1,2}/")])
@pytest.mark.parametrize("shape", ['T "b" T', '(T "b")*', "T", 'start T | "b"', 'T U "a"', 'T U? "b"'])
@pytest.mark.parametrize("lexer", ["contextual", "dynamic"])
def test_a_terminal_that_matches_the_empty_text_is_an_optional_one(
    pattern: str, without: str, shape: str, lexer: Literal["contextual", "dynamic"]
) -> None:
    """Lark refuses it, and other readers of its language do not."""
    rest = "\nU: /[b ]+/\nIGNORED: / /\n%ignore IGNORED"
    plain = grammar(f"start: {shape}\nT: {pattern}{rest}", lexer=lexer)
    written = grammar(f"start: {shape.replace('T', '[T]')}\nT: {without}{rest}", lexer=lexer)
    one, other = Automaton(plain.node), Automaton(written.node)
    if lexer == "dynamic":
        assert [t for t in TEXTS if one.accepts(t.encode())] == [t for t in TEXTS if other.accepts(t.encode())]
    else:  # the plain one need not be read by the LALR parser
        assert all(one.accepts(text.encode()) for text in TEXTS if other.accepts(text.encode()))


GOOD = [value for name, value in vars(known).items() if name.isupper()] + [
    'start: A B?\nA: /[a-z]+/i\nB: "x".."z" | /\\d{1,3}/\n%ignore /[ \\t]+/\n',
    'start: sep{x, ","}\nsep{a, b}: a (b a)*\n!x: "a"~2..3 -> y\n | [X]\nX.2: "q"i | /(?!a)[a-c]/\n%import common.INT\n',
    '?start: e\n_e: "(" start ")"\ne: _e | N+\nN: /\\w+(?!x)/\n%declare Q\n%override N: "1"\n%extend N: "2"\n',
]
BITS = [
    *'()[]{}|*+?/\\".:~!-><,%_^$ \nabAB01\0\ud800é', "->", "..", "~3", "%ignore ", "%import ", "%declare ", '""', "//",
]  # fmt: skip
BITS += ["/*/", "/(/", "/[z-a]/", "\\x", "\\u12", "/a/xx", "start", "%extend ", ".-1", "(?", "(?P<n>", "\\1", "\\p{L}"]


@settings(max_examples=examples(60))
@given(RANDOMS)
def test_a_grammar_with_mistakes_is_read_or_refused_by_an_error_of_this_package(random: Random) -> None:
    text = random.choice(GOOD)
    for _ in range(random.randint(1, 4)):
        at, other = random.randint(0, len(text)), random.randint(0, len(text))
        new = random.choice(["", random.choice(BITS), text[other : other + random.randint(1, 12)]])
        text = text[:at] + new + text[at + random.randint(0, 4) * (not new) :]
    note(text)
    with suppress(FSMError), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the parser of `re`
        grammar(text)


ALPHABETIC = "start: NAME | WORD\nNAME: /[a-z]+/\nWORD: /[a-z0-9]{2}/\n"


def refused(text: str, **options: object) -> TerminalCollision:
    assert isinstance(grammar(text, **{**options, "strict": False}), Expression)  # type: ignore[arg-type]
    with pytest.raises(TerminalCollision) as caught:
        grammar(text, strict=True, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("lexer", ["contextual", "dynamic"])
def test_a_collision_names_both_terminals_their_lines_and_a_text(lexer: str) -> None:
    error = refused(ALPHABETIC, lexer=lexer)
    assert error.terminals == ("NAME", "WORD")
    assert error.text == "aa"
    assert isinstance(error, GrammarError)
    for part in ("'NAME' /[a-z]+/ in line 2", "'WORD' /[a-z0-9]{2}/ in line 3", "both match 'aa'", "NAME.1: ...", "`strict`"):
        assert part in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "start: NAME | WORD\nNAME.1: /[a-z]+/\nWORD: /[a-z0-9]{2}/",  # a priority says which
        'start: NAME "." NUMBER\nNAME: /[a-z0-9]+/\nNUMBER: /[0-9]+/',  # never at one place
        'start: "if" NAME | NAME\nNAME: /[a-z]+/',  # a keyword is meant to be a name
        'start: NAME | "if"i\nNAME: /[a-z]+/',
        "start: A | B\nA: /[a-m]+/\nB: /[n-z]+/",
        *(text for name, text in vars(known).items() if name in ("ARITHMETIC", "JSON", "CSV")),
    ],
)
def test_a_grammar_without_collisions_is_the_same_with_strict(text: str) -> None:
    assert grammar(text).source == grammar(text, strict=True).source


@pytest.mark.parametrize(
    ("text", "common"),
    [
        ("start: A | B\nA: /\\w+/\nB: /é+/", "é"),  # \w is not only ASCII
        ("start: A | B\nA: /a(?!c)/\nB: /[ab]/", "a"),
        ("start: (A | B)+\nA: /(?i:ab)/\nB: /aB|x/", "aB"),
        ('start: "x" NAME\nNAME: /[ a]+/\n%ignore /[ ]+/', " "),  # what is ignored may come anywhere
        ("start: A B?\nA: /a/\nB: /[bc]+/\n%ignore /[cd]{2}/", "cc"),
        ("start: A | A B | B A\nA: /[ab]/\nB: /a+/", "a"),
    ],
)
def test_both_terminals_match_the_whole_text_that_is_named(text: str, common: str) -> None:
    error = refused(text)
    assert common == error.text
    patterns = {t.name: t.pattern.to_regexp() for t in Lark(text).terminals}
    assert all(re.fullmatch(patterns[name], common) for name in error.terminals)


def test_of_a_grammar_that_is_not_lalr_whatever_follows_a_terminal_may_come() -> None:
    text = 'start: x | y\nx: NAME "!"\ny: NAME "!" | NAME WORD | NAME NAME\nNAME: /[a-z]/\nWORD: /[a-z]{1,2}/'
    assert accepted_terminals(Lark(text).rules, "start") is None
    assert refused(text).terminals == ("NAME", "WORD")


def test_what_cannot_be_told_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsm.lark.terminal.MAX_COMMON", 20)
    hard = "(?:a|b)*a(?:a|b){7}"
    with pytest.raises(BudgetExceeded, match="'A' and 'B' match one text was not decided within 20 states.*leave out `strict`"):
        grammar(f"start: A | B\nA: /{hard}/\nB: /(?:a|b)*b(?:a|b){{7}}c?/", lexer="dynamic", strict=True)


def test_generators_take_strict() -> None:
    with pytest.raises(TerminalCollision, match="'NAME'"):
        generate.cfg(models.tiny(), ALPHABETIC, strict=True)


COLLISION_PATTERNS = st.sampled_from(["/[ab]+/", "/a+/", "/b+/", "/a|ab/", "/ab/", "/a*b/", "/[^a]b?/", "/b{2,3}/", "/[AB]/i"])
NAMES = st.sampled_from(["T0", "T1", "T2", '"a"', '"b"', '"c"'])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Two rules over three terminals, which may have priorities, and a few strings."""
    rows = st.lists(NAMES, min_size=1, max_size=3).map(" ".join)
    options = st.lists(rows, min_size=1, max_size=3, unique=True).map(" | ".join)
    lines = [f"start: {draw(rows)} x | {draw(options)}", f"x: {draw(options)}"]
    lines += [f"T{n}{draw(st.sampled_from(['', '', '.1']))}: {draw(COLLISION_PATTERNS)}" for n in range(3)]
    return "\n".join([*lines, *draw(st.sampled_from([[], [], ["%ignore /c+/"]]))])


@given(texts())
@settings(max_examples=examples(30), deadline=None)
def test_strict_refuses_what_the_strict_mode_of_lark_refuses(text: str) -> None:
    try:
        assume(accepted_terminals(Lark(text).rules, "start") is not None)
        grammar(text)
    except (LarkError, GrammarError, ValueError):
        assume(False)
    try:
        Lark(text, parser="lalr", strict=True)
        expected = False
    except LarkError as error:
        expected = "Collision" in str(error)
    event("collides" if expected else "does not")
    try:
        grammar(text, strict=True)
        found = False
    except TerminalCollision:
        found = True
    assert expected == found
