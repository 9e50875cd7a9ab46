"""Terminals that collide: `grammar(..., strict=True)`, beside the strict mode of Lark."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import LarkError

from fsm import BudgetExceeded, Expression, GrammarError, TerminalCollision, grammar
from fsm.lark.conflict import accepted_terminals
from outlines_cont import generate, models
from tests import grammars as known

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
    for part in (
        "'NAME' /[a-z]+/ in line 2",
        "'WORD' /[a-z0-9]{2}/ in line 3",
        "both match 'aa'",
        "NAME.1: ...",
        "`strict`",
    ):
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
    with pytest.raises(
        BudgetExceeded, match="'A' and 'B' match one text was not decided within 20 states.*leave out `strict`"
    ):
        grammar(f"start: A | B\nA: /{hard}/\nB: /(?:a|b)*b(?:a|b){{7}}c?/", lexer="dynamic", strict=True)


def test_generators_take_strict() -> None:
    with pytest.raises(TerminalCollision, match="'NAME'"):
        generate.cfg(models.tiny(), ALPHABETIC, strict=True)


PATTERNS = st.sampled_from(["/[ab]+/", "/a+/", "/b+/", "/a|ab/", "/ab/", "/a*b/", "/[^a]b?/", "/b{2,3}/", "/[AB]/i"])
NAMES = st.sampled_from(["T0", "T1", "T2", '"a"', '"b"', '"c"'])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Two rules over three terminals, which may have priorities, and a few strings."""
    rows = st.lists(NAMES, min_size=1, max_size=3).map(" ".join)
    options = st.lists(rows, min_size=1, max_size=3, unique=True).map(" | ".join)
    lines = [f"start: {draw(rows)} x | {draw(options)}", f"x: {draw(options)}"]
    lines += [f"T{n}{draw(st.sampled_from(['', '', '.1']))}: {draw(PATTERNS)}" for n in range(3)]
    return "\n".join([*lines, *draw(st.sampled_from([[], [], ["%ignore /c+/"]]))])


@given(texts())
@settings(max_examples=30, deadline=None)
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
