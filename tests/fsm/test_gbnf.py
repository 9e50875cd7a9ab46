"""Grammars in the notation of llama.cpp: what they accept, beside a plain recogniser of context-free grammars, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from tests.examples import examples

VALUES = r"""
root   ::= value   # arrays of words and numbers
value  ::= "[" ws (value ("," ws value)*)? "]" ws | word | number
word   ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{1,3}) ws
ws     ::=
  [ \t\n]{0,2}
"""
SUMS = 'root ::= (sum "=" term "\\n")+\nsum ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" sum ")"'


@pytest.mark.parametrize(
    ("grammar", "accepted", "denied"),
    [
        (SUMS, ["1+2=3\n", "((1))=1\n(2-1)*3=3\n"], ["1=1", "1+=1\n", "(1=1\n", ""]),
        ('root ::= "a" | | "b" "c"?', ["a", "", "b", "bc"], ["c", "ab"]),
        ("root ::= [^a-c] .", ["d\n", "ß€", "\x00a"], ["ad", "d"]),
        (r'root ::= "\x41\u00e9\U0001F600\t\"" [\]\\^-]', ['Aé😀\t"]', 'Aé😀\t"-'], ['Aé😀\t"a']),
        ('root ::= ( # a group\n "a" |\n "b" ){2,} "c"{1} "d"{0,1}', ["abc", "bbacd"], ["ac", "abcc"]),
        ('root ::= pair pair\npair ::= "(" pair? ")"', ["()()", "(())()"], ["()", "(()"]),
        ('root ::= a "x"\na ::= u a | ""\nu ::= "q" u', ["x"], ["qx"]),  # `u` never ends
        ('root ::= "" root2\nroot2 ::= "a" root2 | ""', ["", "aa"], ["b"]),
    ],
)  # fmt: skip
def test_texts_of_a_grammar(grammar: str, accepted: list[str], denied: list[str]) -> None:
    language = fsm.gbnf(grammar)
    assert accepted == [text for text in (*accepted, *denied) if language.accepts(text)]


def test_a_grammar_with_comments_and_line_breaks() -> None:
    language = fsm.gbnf(VALUES)
    texts = ['["a\\n", -12, []]', '[ "\\u00e9",1]', "7", '["\n"]', "[1", "01", '"\\x"', "[1 1]"]
    assert texts[:3] == [text for text in texts if language.accepts(text)]
    assert fsm.gbnf("other ::= [0-9]+", start="other").accepts("12")


def test_a_grammar_without_recursion_is_a_regular_language() -> None:
    two = fsm.gbnf('root ::= letter letter "x"{0,3}\nletter ::= [a-d]')
    assert (two & ~fsm.regex("a.*")).accepts("bax")
    same = fsm.regex("[a-d][a-d]x{0,3}")
    for fewer in (two & ~same, same & ~two):
        assert not fewer.accepts("abxx")
        with pytest.raises(fsm.EmptyLanguage):
            fsm.TokenFSM(fewer, fsm.Vocabulary([b"a", None], [1]))


def test_rules_that_double_each_other_stay_small() -> None:
    doubled = "".join(f"a{n + 1} ::= a{n} a{n}\n" for n in range(60))
    assert not fsm.gbnf(f"a0 ::= [ab]\n{doubled}root ::= a60").accepts("ab")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("root ::= a", "the rule 'a' in line 1 is not there"),
        ('x ::= "a"', "expected a rule 'root'"),
        ('root ::= "a', "line 1 column 10: unclosed text or set"),
        ("root ::= [a", "line 1 column 10: unclosed text or set"),
        ('root ::= "b"\na ::= ("a"', "line 2 column 7: unclosed group"),
        ('root ::= "a")', "column 13: expected a text in quotes"),
        ('root = "a"', "rules with `=` are not read"),
        ('root ::= "a"\n| "b"', "line 2 column 1: a rule ends with its line"),
        ("root ::= [b-a]", "the ends of a range"),
        ('root ::= "a"{3,2}', "the counts of a repetition"),
        ('root ::= "a"{x}', "expected counts such as"),
        (r'root ::= "\q"', "expected an escape"),
        (r'root ::= "\ud800"', "is no character"),
        ('root ::= "a"\nroot ::= "b"', "the rule 'root' is there twice"),
        ("root ::= !<think>", "token ids and negated tokens are not supported"),
        ("root ::= <[42]>", "token ids and negated tokens are not supported"),
        ("root ::= <think", "expected a special token"),
        ('root ::= root "a" | "b"', "left recursion: the rule 'root'"),
        ('root ::= a\na ::= b "x"\nb ::= "y"? a', "left recursion: the rule 'a'"),
        (7, "expected a grammar as text"),
    ],
)
def test_a_grammar_that_is_refused(grammar: Any, said: str) -> None:
    with pytest.raises(fsm.GrammarError) as caught:
        fsm.gbnf(grammar)
    assert said in str(caught.value)


def test_a_special_token_is_a_symbol() -> None:
    grammar = fsm.gbnf('root ::= <think> [a-z]+ </think> answer\nanswer ::= "(" answer? ")"')
    think, end = fsm.special("<think>"), fsm.special("</think>")
    assert grammar.specials == {"<think>", "</think>"}
    assert grammar.accepts([think, "ab", end, "(())"])
    assert not grammar.accepts("<think>ab</think>(())")


def test_a_rule_that_never_ends_has_no_text() -> None:
    with pytest.raises(fsm.EmptyLanguage, match="never ends"):
        fsm.gbnf('root ::= "a" root')


Tree = tuple[Any, ...]
"""("text", t), ("set", characters), ("name", n), ("join" or "choose", trees), ("loop", tree, lo, hi)."""


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.one_of(
        st.tuples(st.just("text"), st.text("ab", max_size=2)),
        st.tuples(st.just("set"), st.sampled_from(["a", "b", "ab"])),
        st.tuples(st.just("name"), st.sampled_from(["root", "x", "y"])),
    )
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 0)])
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.tuples(st.sampled_from(["join", "choose"]), st.lists(parts, min_size=1, max_size=3)),
            st.builds(lambda part, count: ("loop", part, *count), parts, counts),
        ),
        max_leaves=6,
    )


def written(tree: Tree) -> str:
    kind, value = tree[:2]
    if kind == "text":
        return f'"{value}"'
    if kind == "set":
        return f"[{value}]"
    if kind == "name":
        return str(value)
    if kind == "loop":
        lo, hi = tree[2:]
        return f"({written(value)}){{{lo},{'' if hi is None else hi}}}"
    return f"({(' ' if kind == 'join' else ' | ').join(map(written, value))})"


def ends(tree: Tree, text: str, start: int, known: dict[tuple[str, int], set[int]]) -> set[int]:
    """Where a text of the tree that begins at `start` may end, given where those of the rules may."""
    kind, value = tree[:2]
    if kind == "text":
        return {start + len(value)} if text.startswith(value, start) else set()
    if kind == "set":
        return {start + 1} if text[start : start + 1] and text[start] in value else set()
    if kind == "name":
        return known.get((value, start), set())
    if kind == "choose":
        return set().union(*(ends(part, text, start, known) for part in value))
    if kind == "join":
        found = {start}
        for part in value:
            found = {end for first in found for end in ends(part, text, first, known)}
        return found
    lo, hi = tree[2:]
    most, found, reached = lo + len(text) + 1 if hi is None else hi, {start}, {start} if lo == 0 else set[int]()
    for count in range(1, most + 1):
        found = {end for first in found for end in ends(value, text, first, known)}
        reached |= found if count >= lo else set()
    return reached


def belongs(rules: dict[str, Tree], text: str) -> bool:
    """Whether a text is one of `root`, by the least fixed point over all spans of the text."""
    known: dict[tuple[str, int], set[int]] = {}
    while True:
        found = {(name, start): ends(tree, text, start, known) for name, tree in rules.items() for start in range(len(text) + 1)}
        if found == known:
            return len(text) in known["root", 0]
        known = found


@settings(max_examples=examples(120), deadline=None)
@given(st.fixed_dictionaries({"root": trees(), "x": trees(), "y": trees()}))
def test_a_grammar_accepts_what_a_plain_recogniser_accepts(rules: dict[str, Tree]) -> None:
    texts = ["".join(letters) for size in range(5) for letters in product("ab", repeat=size)]
    try:
        language = fsm.gbnf("\n".join(f"{name} ::= {written(tree)}" for name, tree in rules.items()))
    except fsm.EmptyLanguage:
        assert not any(belongs(rules, text) for text in texts)
    except fsm.GrammarError as error:
        if "left recursion" not in str(error):
            raise
    else:
        assert [text for text in texts if belongs(rules, text)] == [text for text in texts if language.accepts(text)]
