"""Grammars: what they accept, what is refused, what must not hang; their masks; how terminals are read and end."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.common import ParserConf
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError
from lark.grammar import Rule
from lark.parsers.lalr_analysis import LALR_Analyzer

from fsm import BudgetExceeded, EmptyLanguage, GrammarError, Limits, TokenFSM, Vocabulary, bitmask, grammar, regex
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.lark.conflict import MAX_TWINS, is_lalr
from fsm.lark.terminal import TerminalEnd
from fsm.terms import node as nodes
from fsm.terms.node import ALL_BYTES, ANYTHING, EMPTY
from fsm.tokens.walk import walk_wide
from tests import grammars
from tests.examples import examples
from tests.vocabularies import Tokens

ALL = {name: text for name, text in vars(grammars).items() if name.isupper() and name != "INDENTED"}


def parses(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


ACCEPTED: dict[str, list[str]] = {
    "ARITHMETIC": ["1+2*3", "( 1+ 2)*x - 4", "--1", "a_1/(b-c)*2.5"],
    "JSON": ['{"a": [1, -2.5e3, "x\\"y"], "b": null}', "[]", " [ true ] ", '"\\\\"', "{}"],
    "SQL": ["SELECT * FROM t", "SELECT a, b FROM t WHERE a = 1 AND (b >= 'x' OR c<d) LIMIT 5"],
    "CHESS": ["1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. O-O 1-0", "1. d4 d5 2. c4 dxc4", "12. fxe8=Q+ Kxe8"],
    "CSV": ['a,b\n"x, y",""\n', "", "1,,2"],
    "TEMPLATES": ["1, 22,3", "ab CD;", "a b c ;"],
    "STATEMENTS": ["x = 1..2;", "if if_ then print 1.5 .. 2;\nlet y=/**/x ;", "IF = 3;"],
}
REJECTED: dict[str, list[str]] = {
    "ARITHMETIC": ["", "1 2", "x y", "x+", "(1", "3x"],
    "JSON": ["", '{"a" 1}', '"a"b"', '{"a":1', '"\\"', "[1,]"],
    "SQL": ["SELECT a FROM t WHERE", "SELECT FROM t"],
    "CHESS": ["1. e9", "1.e4", "e4", "1. e4e5"],
    "CSV": ['"a', 'a"b'],
    "TEMPLATES": ["1,", "a;", "a b c d;"],
    "STATEMENTS": ["x = 1.;", "x = 1...2;", "if x y = 1;", "x = /* y;"],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_texts_that_lark_parses_are_accepted_and_others_are_not(name: str) -> None:
    expression, parser = grammar(ALL[name], ignored="any"), Lark(ALL[name])
    for text in ACCEPTED[name]:
        assert parses(parser, text)
        assert expression.accepts(text), text
    for text in REJECTED[name]:
        assert not parses(parser, text), text
        assert not expression.accepts(text), text


READ: list[tuple[str, list[str], list[str]]] = [
    # where both may come, a keyword is no name, and what goes on like a name is no keyword
    ('start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "', ["if x", "iff = x"], ["ifx", "if = x"]),
    # where only one may come, it is that one
    ('start: "let" NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "', ["let let = let", "letx=y"], ["x = y"]),
    ('start: NAME "in" NAME\nNAME: /[a-z]+/\n%ignore " "', ["in in in", "x inx", "inx in y"], ["inx", "x y"]),
    ('start: "a" x | x "b"\nx: NAME | "if"\nNAME: /[a-z]+/\n%ignore " "', ["a a", "a if", "if b", "x b", "a b"], ["b a"]),
    # the order of a lexer: priority, longest possible text, length of the pattern
    ("start: INT | FLOAT\nINT: /[0-9]+/\nFLOAT: /[0-9]+[.][0-9]+/", ["1", "1.5"], ["1."]),
    ('start: IF | NAME\nIF.2: "if"\nNAME: /[a-z]+/', ["if", "fi"], ["iffy"]),
    ('start: A+ B*\nA: "<" | "<="\nB: "="', ["<=", "<==", "<<"], []),
    ('start: NAME "!" | "select"i\nNAME: /[a-z]+/i', ["x!", "SELECT", "select"], ["SELECT!", "select!"]),
    ('start: NAME "!" | "select"i\nNAME: /[a-zA-Z]+/', ["select", "SeLECT", "x!"], ["SELECT!", "select!"]),
    ('start: NAME "!" | "select"i\nNAME: /[a-z]+/', ["select", "SELECT", "x!"], ["seLECT", "select!"]),
    # of alternatives the first that fits, of a lazy repetition the least
    ('start: T "z"\nT: /x|xy/', ["xz"], ["xyz"]),
    ('start: T "y"? "z"\nT: /x|xy/', ["xz", "xyz"], ["xyyz"]),
    ('start: T+\nT: /"(?:[^"]|"")*?"/', ['"a"', '"a""b"', '""'], ['"a', '"a"b"']),
    ("start: T+\nT: /a+?b?/", ["ab", "aab"], ["b", "abb"]),
    # a text is left where what comes next completes no longer one
    ('start: N ".." N\nN: /[0-9]+([.][0-9]+)?/', ["1..2", "1.5..2", "1..2.5"], ["1.5.2", "1...2", "1."]),
    ("start: (INT | FLOAT) DOTS INT\nINT: /[0-9]+/\nFLOAT: /[0-9]+[.][0-9]+/\nDOTS: /[.]{2}/", ["1..2", "1.5..2"], ["1.2"]),
    ('start: "aa" "b" | T "a"?\nT: /[ab]+/', ["a", "ab", "aab"], ["aa"]),
    # what must not come next
    ('start: (IF | NAME | "!")+\nIF.2: /if\\b/\nNAME: /[a-z]+/\n%ignore " "', ["if x", "ifx", "if!", "xif"], ["if1"]),
    ("start: (A | B | C)+\nA: /a(?!bc)/\nB: /b/\nC: /c/", ["ab", "abb", "ac", "aabb"], ["abc", "aabc"]),
    ("start: A B?\nA: /a\\b/\nB: /[é÷]/", ["a", "a÷"], ["aé"]),
    ('start: "a" ("b" | "c") | T "c"\nT: /a(?!b)/', ["ac"], ["ab"]),
    # what is ignored is a terminal, too
    ('start: "a" EOL "b"\nEOL: /\\n/\n%ignore / +/', ["a \n b", "a\nb"], ["a b"]),
    ('start: "a" /<!--(?:(?!-->).)*-->/ "b"', ["a<!-- - > -->b"], ["a<!-- --> -->b"]),
]


@pytest.mark.parametrize(("text", "accepted", "rejected"), READ)
def test_terminals_are_what_both_lexers_of_lark_take_them_for(text: str, accepted: list[str], rejected: list[str]) -> None:
    expression, parsers = grammar(text, ignored="any"), [Lark(text), Lark(text, parser="lalr")]
    for sample in accepted:
        assert expression.accepts(sample), sample
        assert all(parses(parser, sample) for parser in parsers), sample
    for sample in rejected:
        assert not expression.accepts(sample), sample
        assert not all(parses(parser, sample) for parser in parsers), sample


def test_by_the_dynamic_lexer_alone_a_name_may_be_a_keyword() -> None:
    text = 'start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "'
    for sample in ("if = x", "ifx", "if x"):
        assert grammar(text, lexer="dynamic").accepts(sample)
        assert parses(Lark(text), sample)
    with pytest.raises(GrammarError, match="`lexer`"):
        grammar(text, lexer="basic")  # type: ignore[arg-type]


def test_where_lalr_has_conflicts_keywords_are_still_no_names() -> None:
    text = 'start: start "or" start | NAME\nNAME: /[a-z]+/\n%ignore " "'
    assert grammar(text).accepts("x or y or z")
    assert grammar(text).accepts("or or or")  # after a name only the keyword may come, after a keyword only a name
    assert not grammar(text + '\n%ignore "#"').accepts("x y")
    both = 'start: start "or" start | "not" start | NAME\nNAME: /[a-z]+/\n%ignore " "'
    assert grammar(both).accepts("not x or not y")
    assert not grammar(both).accepts("x or not")
    assert not grammar(both).accepts("notx or not")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (grammars.INDENTED, "declared and has no pattern"),
        ("start: x", "rule 'x' used but not defined"),
        ("start: OP", "terminal 'OP' used but not defined"),
        ("start: (", "cannot be read"),
        ("%import .secrets.KEY\nstart: KEY", "no file is ever read"),
        ("%import ..lib.x\nstart: x", "expects a name"),
        ("%import common.x.KEY\nstart: KEY", "no file is ever read"),
        ("%importmine.x\nstart: x", "no file is ever read"),
        ("%import mine.x\nstart: x", "no file is ever read"),
        ("start: /(a)\\1/", "back-reference"),
        ("start: A\nA: /(?!b)/", "matches the empty text"),
        ('start: "a" T\nT: /x(?<!x)/', "'T' matches no text"),
        ('start: "a" T\nT: /(?!)x/', "'T' matches no text"),
        ('start: "a" ""i', "empty terminals are not allowed.* Leave it out"),
        ("start: A\nA: /(/", r"regular expression /\(/ at line 2 column 4 is malformed: missing \)"),
        ("start: /[z-a]/", "at line 1 column 8 is malformed: bad character range z-a"),
        ("start: /*/i", "at line 1 column 8 is malformed: nothing to repeat"),
        ('start: A "b"\nA: /a(?=b)/', "looks at the text around"),
        ('start: A "b"\nA: /[ab]+(?!b)/', "looks at the text around"),
        ('start: A "b"\nA: /-\\b/', "looks at the text around"),
        ('start: "b" A\nA: /\\ba/', "looks at the text around"),
        ("start: A\nA: /a$/", "looks at the text around"),
        ("start: A\nA: /(?<=b)a/", "looks at the text around"),
        ('other: "a"', "start"),
        (5, "as text"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "grammar"),
    ],
)
def test_what_is_refused(text: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        grammar(text)


def test_a_grammar_without_an_end_has_no_texts() -> None:
    for text in ('start: "a" start', "start: start", 'start: a\na: "(" a ")"', "start: T+ T\nT: /a+/"):
        with pytest.raises(EmptyLanguage, match="never ends"):
            grammar(text)


def test_what_is_ignored_is_little_unless_asked_for() -> None:
    text = 'start: "a" "b"\n%ignore /[ \\n]+/'
    assert [grammar(text).accepts(t) for t in ("ab", "a b", "a \n b", " ab", "ab ")] == [True, True, True, False, True]
    assert not grammar(text).accepts("a" + " " * 33 + "b")
    assert grammar(text, ignored="any").accepts("  a" + " " * 33 + "b\n")
    with pytest.raises(GrammarError, match="`ignored`"):
        grammar(text, ignored="some")  # type: ignore[arg-type]


def test_limits() -> None:
    with pytest.raises(BudgetExceeded, match="max_grammar_characters"):
        grammar('start: "a"', limits=Limits(max_grammar_characters=5))
    with pytest.raises(BudgetExceeded, match="max_left_recursion"):
        grammar('start: a "b" | "c"\na: start "d" | "e"', limits=Limits(max_left_recursion=1))


def test_rules_that_derive_each_other_alone_are_one_loop() -> None:
    text = 'start: ";"? y\nx: y~1..2 ";" | A? [y] | y+\ny: y? x\nA.2: "a"\n'
    automaton = Automaton(grammar(text, lexer="dynamic").node)
    states = [automaton.initial_state]
    for byte in b"aa;;;a;" * 8:  # as two loops inside each other the 25th step took more work than one may
        states.append(automaton.next_state(states[-1], bytes([byte])))
    assert all(map(automaton.is_accepting, states[1:]))
    assert automaton.next_state(states[-1], b"b") == DEAD


def test_deep_nesting_needs_no_recursion() -> None:
    expression = grammar(grammars.ARITHMETIC)
    assert expression.accepts("(" * 3000 + "1" + ")" * 3000)
    assert not expression.accepts("(" * 3000 + "1" + ")" * 2999)
    assert grammar(grammars.AMBIGUOUS).accepts("a" * 500)


MANY_USES = (
    "a{t}: a1{t}\n"
    + "".join(f"a{n}{{t}}: a{n + 1}{{l{{t}}}} a{n + 1}{{r{{t}}}}\n" for n in range(1, 30))
    + 'a30{t}: t\nl{t}: "l" t\nr{t}: "r" t'
)


@pytest.mark.parametrize(
    "rules",
    ["a{t}: t | a{b{t}}\nb{t}: t t", 'a{t}: "(" b{t} ")" | t\nb{t}: a{b{t}}', "a{t}: t | a{a{a{t}}}", MANY_USES],
    ids=["growing", "through another", "in itself", "many"],
)
def test_templates_that_are_used_with_endlessly_many_arguments_end_in_a_budget(rules: str) -> None:
    with pytest.raises(BudgetExceeded, match="uses of templates .* `max_templates`") as caught:
        grammar(f'start: a{{"x"}}\n{rules}\n')
    assert caught.value.limit == "max_templates"


def test_a_template_that_uses_itself_with_what_it_was_given_is_a_rule() -> None:
    expression = grammar('start: c{"y"} c{d{"z"}}\nc{t}: "(" c{t} ")" | t\nd{t}: t t\n', limits=Limits(max_templates=3))
    assert expression.accepts("((y))(zz)")
    assert not expression.accepts("((y)(zz)")


def test_a_thousand_rules_are_read_in_their_order() -> None:
    rules = "".join(f'r{n}: "a{n}" r{n + 1}? "b"\n' for n in range(300))
    expression = grammar(f'start: r0\n{rules}r300: "z"\n')
    assert expression.accepts("a0a1a2bbb")
    assert not expression.accepts("a0a2bb")


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('start: A | B "!"\nA: "x"\nB: "x"\n', ["x"]),
        ('start: B | A "!"\nA: "x"\nB: "x"\n', ["x!"]),
        ('start: A "?" | B "!" | C\nA: "x"\nB: "x"\nC: /[xy]/\n', ["y", "x?"]),
        ('start: A B\nA: "x"\nB: "x"\n', ["xx"]),
    ],
)
def test_of_two_strings_of_one_text_one_is_read_as_lark_reads_it(source: str, texts: list[str]) -> None:
    automaton = Automaton(grammar(source).node)
    found = ["".join(letters) for size in range(4) for letters in product("xy!?", repeat=size)]
    assert texts == [text for text in found if automaton.accepts(text.encode())]


def test_the_caret_of_lark_stays_below_what_it_points_at() -> None:
    with pytest.raises(GrammarError) as caught:
        grammar('start: a\na: "x" "y"!\n')
    problem, line, caret = str(caught.value).splitlines()
    assert problem == "the grammar cannot be read: unexpected input at line 2 column 11. Correct it at the caret."
    assert (line, caret) == ('a: "x" "y"!', " " * 10 + "^")


TEXTS = {
    "ARITHMETIC": "(price + 1.5 * quantity) / 100 - (rate - 3.25e2) * -(a + b)",
    "JSON": '{"name": "Ana \\"N\\"", "tags": ["two words", -3e10, true, null], "more": {"n": [[1, 2], [], {}]}}',
    "SQL": "SELECT name, city FROM customers WHERE (city = 'São Paulo' AND total >= 10) OR region < 12 LIMIT 25",
    "CHESS": "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. O-O exd5+ 1-0",
    "CSV": 'name,city\nAna Novak,"Zürich, ""CH"""\n',
    "TEMPLATES": "one TWO three;",
    "STATEMENTS": "if total_2 then let ifx = 1..2.5;\nprinter = /* a * b **/ x; print y;",
}


@pytest.fixture(scope="module")
def vocabulary(tekken: tuple[Tokens, list[int]]) -> Vocabulary:
    return Vocabulary(*tekken)


@pytest.mark.parametrize("name", TEXTS)
def test_masks_along_a_text_are_those_of_a_plain_walk(name: str, vocabulary: Vocabulary) -> None:
    fsm = TokenFSM(grammar(vars(grammars)[name]), vocabulary)
    plain = TokenFSM(fsm.expression, vocabulary).automaton
    text = TEXTS[name].encode()
    for length in (*range(0, len(text), 2), len(text)):  # of every other place
        state = fsm.automaton.next_state(fsm.initial_state, text[:length])
        expected = bitmask.pack(walk_wide(plain, vocabulary.trie, plain.next_state(plain.initial_state, text[:length])))
        if fsm.is_accepting(state):
            expected |= vocabulary.eos_mask
        assert np.array_equal(expected, fsm.bitmask(state)), text[:length]
    assert fsm.is_accepting(state)


GRAMMARS = {
    "keywords before a name": "start: (K NAME)+",
    "keywords that may be left out": "start: K? NAME K?",
    "a dangling choice": "start: K start | K start ELSE start | NAME",
    "two ways to the same": "start: a NAME | b NAME\na: K\nb: K",
    "two ways that differ later": "start: a NAME | b ELSE\na: K\nb: K",
    "keywords as operators": "start: start K start | NAME",
    "a list of keywords": "start: x+ NAME\nx: K | K K",
    "keywords behind one another": "start: x NAME\nx: K | x K",
    "keywords that nest": "start: K start ELSE | NAME",
    "one of them stands elsewhere, too": 'start: K NAME | "k0" ELSE',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_many_keywords_are_as_few(name: str) -> None:
    keywords = " | ".join(f'"k{n}"' for n in range(MAX_TWINS + 3))
    text = GRAMMARS[name].replace("K", f"({keywords})") + '\nNAME: "n"\nELSE: "e"\n'
    rules = Lark(text).rules
    assert _is_lalr_with_all(rules) == is_lalr(rules, "start")


def _is_lalr_with_all(rules: list[Rule]) -> bool:
    try:
        LALR_Analyzer(ParserConf(rules, {}, ["start"]), strict=True).compute_lalr()  # type: ignore[no-untyped-call]
    except LarkGrammarError:
        return False
    return True


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


@settings(max_examples=examples(150))
@given(WORDS, WORDS)
@example(frozenset({"", "a", "aa"}), frozenset({"", "ab"}))
def test_a_head_is_left_where_it_cannot_go_on(heads: frozenset[str], tails: frozenset[str]) -> None:
    check(Automaton(nodes.munch(words(heads), words(tails))), longest_first(heads, tails, frozenset()))


@settings(max_examples=examples(150))
@given(WORDS, WORDS)
@example(frozenset({"ab", "aa"}), frozenset({"a"}))
@example(frozenset({"ab"}), frozenset({"ab", "abb"}))
@example(frozenset({"aba", "b"}), frozenset({"ab"}))
def test_no_beginning_of_a_tail_is_a_text_of_the_rival(tails: frozenset[str], rivals: frozenset[str]) -> None:
    node = nodes.munch(nodes.EPSILON, words(tails), words(rivals))
    check(Automaton(node), longest_first(frozenset({""}), tails, rivals))


@settings(max_examples=examples(150))
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


ENDING_TEXTS = ["".join(letters) for length in range(8) for letters in product("1.", repeat=length)]
HEADS = ["1+", r"1+(?:\.1+)?", r"1(?:\.\.1)*", "1", r"1*\.", r"\.+|1"]
RIVALS = ["[^1.]", r"11\.1", r"\.+", "1+"]


def _ends(text: str, head: str, rival: str, avoided: str) -> bool:
    """True where the text can be cut so that the head does not go on, nor the rival, and what is avoided does not follow."""
    for end in range(1, len(text) + 1):
        longer = [text[:length] for length in range(end + 1, len(text) + 1)]
        if not re.fullmatch(head, text[:end]) or any(re.fullmatch(p, more) for p in (head, rival) for more in longer):
            continue
        if not avoided or not re.match(avoided, text[end:]):
            return True
    return False


@pytest.mark.parametrize("avoided", ["", r"\.1"])
@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("head", HEADS)
def test_a_text_ends_where_nothing_longer_is_completed(head: str, rival: str, avoided: str) -> None:
    ending = TerminalEnd(regex(head).node, Automaton(regex(rival).node), regex(avoided).node if avoided else EMPTY)
    automaton = Automaton(nodes.concat(ending.before(ALL_BYTES), ANYTHING))
    for text in ENDING_TEXTS:
        assert _ends(text, head, rival, avoided) == automaton.accepts(text.encode()), text


def test_what_cannot_come_next_needs_no_look() -> None:
    ending = TerminalEnd(regex("[a-z]+").node, Automaton(EMPTY))
    assert regex("[a-z]+").node is ending.before(1 << ord(" "))
    assert regex("[a-z]+").node is not ending.before(1 << ord("a"))
