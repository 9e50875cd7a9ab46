"""Masks of grammars by a walk with stacks, against the plain walk, on small grammars of the kinds that programming languages have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest
from lark import Lark
from lark.exceptions import LarkError

from benchmarks.case import languages
from fsm import Limits, TokenFSM, Vocabulary, bitmask, choice, grammar
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import ExpressionError
from fsm.lark.grammar import Lexer
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Kind, Node
from fsm.terms.rule import Rules
from fsm.tokens import stack_walk
from fsm.tokens.stack_walk import StackWalk
from fsm.tokens.stacks import reading
from tests.vocabularies import Tokens

OPERATORS = ["||", "&&", "|", "^", "&", "==", "!=", "<", ">", "<<", ">>", "+", "-", "*", "/", "%", "**", "@"]
NAMES = "NAME: /[a-z_]+/\nINT: /[0-9]+/\n%ignore / +/"
LADDER = (
    "start: e0\n"
    + "\n".join(f'e{i}: e{i + 1} ("{operator}" e{i + 1})*' for i, operator in enumerate(OPERATORS))
    + f'\ne18: NAME | INT | "(" e0 ")"\n{NAMES}'
)
KEYWORDS = "start: s+\ns: " + " | ".join(f'"{a}{b}"i NAME ";"' for a in "abcdef" for b in ("if", "for")) + f' | NAME "=" INT ";"\n{NAMES}'
COMMENTS = (
    'start: item*\nitem: NAME "=" NAME ";"\nNAME: /[a-z_]+|"([^"]|"")+"/\nWS: /[ \\n]+/\nLINE: /\\/\\/[^\\n]*\\n/\n'
    "BLOCK: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//\n%ignore WS\n%ignore LINE\n%ignore BLOCK"
)
DOUBLING = "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}?" for i in range(12)) + '\nr12: "a" | "b" NAME\n' + NAMES
RUNS = (
    'start: (sum ";")+\n?sum: sign (("+" | "-") sign)*\n?sign: "-" sign | "--" sign | last\nlast: value ("--" | "++")*\n'
    'value: NAME | INT NAME? | HEX | "(" sum ")"\nNAME: /[a-z_]+/\nINT: /[0-9]+/\nHEX: /[0-9]+[ex]/\nLINE: /---->[^\\n]*/\n'
    "%ignore / +/\n%ignore LINE"
)
PIECES = ["a", "b", "if", "for", "aif", "foo", "_x", "1", "22", " ", "  ", "\n", ";", "=", "==", "(", ")", "((", ");", "//", "/*", "*/",
          " /* ", "*", "**", "+", " + ", "-", "&&", "||", "<<", ">", '"', '""', " = ", " (", "é", ";\n", "\n// ", "a=", "ea"]  # fmt: skip
TEXTS = {
    "ladder": (LADDER, "foo + b * (22 - a) == x && 1 < 7"),
    "keywords": (KEYWORDS, "AIF foo; bfor x; foo = 22;"),
    "comments": (COMMENTS, 'a = b; /* x */ // y\n"é""" = foo;'),
    "doubling": (DOUBLING, "aab foo"),
    "runs": (RUNS, "a-- - 1x;--2b"),
}
LEXERS: list[Lexer] = ["contextual", "dynamic", "greedy"]


@pytest.fixture(scope="module")
def pieces() -> Vocabulary:
    random = Random(0)
    texts = {"".join(random.choices(PIECES, k=random.randint(1, 4))).encode() for _ in range(900)}
    for before, after in product(["", " ", "a", "(", "1"], ["", "a", "(", ">", " 1", "e", "; --"]):  # lines of dashes
        texts.add(f"{before}{'-' * random.randint(13, 40)}{after}".encode())
    return Vocabulary([*(bytes((byte,)) for byte in range(256)), *sorted(texts), None], [256 + len(texts)])


def check(token_fsm: TokenFSM, text: bytes, seed: int) -> None:
    """Compare the masks after each prefix of a text, and after random tokens."""
    vocabulary, random = token_fsm.vocabulary, Random(seed)
    plain = Automaton(token_fsm.expression.node)
    stacks = StackWalk(token_fsm.automaton, vocabulary)
    for length in (*range(len(text) + 1), *random.choices(range(len(text)), k=3)):
        state = plain.next_state(plain.initial_state, text[:length])
        for _ in range(1 + (random.random() < 0.3)):
            term = plain.nodes[state]
            words = stacks.mask(term)
            assert words is not None
            expected = [i for i, token in enumerate(vocabulary.tokens) if token and plain.next_state(state, token) != DEAD]
            assert expected == bitmask.to_ids(words).tolist(), text[:length]
            if not expected:
                break
            token = vocabulary.tokens[random.choice(expected)]
            assert token is not None
            state = plain.next_state(state, token)


@pytest.mark.parametrize("lexer", LEXERS)
@pytest.mark.parametrize("name", TEXTS)
def test_masks_are_those_of_the_plain_walk(name: str, lexer: Lexer, pieces: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    text, written = TEXTS[name]
    token_fsm = TokenFSM(grammar(text, lexer=lexer, limits=Limits(max_work=10**6)), pieces)
    monkeypatch.setattr(reading, "MIN_PRODUCT_TEXTS", 8)
    monkeypatch.setattr(stack_walk, "MAX_PLACES", 3)
    check(token_fsm, written.encode()[: {"doubling": 3, "runs": 13}.get(name, 6)], seed=len(name))


@pytest.mark.parametrize("case", languages(), ids=lambda case: case.name)
def test_programs_are_written_and_a_mask_takes_little_work(case: object, tekken: tuple[Tokens, list[int]]) -> None:
    """At most 4,000 steps of work for the first masks, of which one by sets of alternatives takes up to 500,000."""
    text, written = case.source, case.text.encode()  # type: ignore[attr-defined]
    token_fsm = TokenFSM(grammar(text), Vocabulary(*tekken))
    state, dearest = token_fsm.initial_state, 0
    for size in range(0, 45, 3):
        before = work.done()
        words = token_fsm.bitmask(state)
        dearest = max(dearest, work.done() - before)
        state = token_fsm.automaton.next_state(state, written[size : size + 3])
        assert state != DEAD
        assert words.any()
    assert token_fsm.automaton.accepts(written)
    assert dearest < 4_000


def some(texts: list[str]) -> Iterator[str]:
    """Rows of texts."""
    random = Random(1)
    for _ in range(300):
        yield "".join(random.choices(texts, k=random.randint(1, 7)))


IGNORED = "start: NAME+\nNAME: /[a-z]+/\n"


@pytest.mark.parametrize("ending", ["\\n", ""])
def test_comments_and_white_space_follow_each_other_as_in_lark(ending: str) -> None:
    text = f"{IGNORED}BLANK: / +/\nEND: /\\n/\nCOMMENT: /#[^\\n]*{ending}/\n%ignore BLANK\n%ignore END\n%ignore COMMENT"
    ours, parser = grammar(text), Lark(text)
    read = 0
    for written in some(["a", "b", " ", "\n", "#", "# x\n", "\n "]):
        if ours.accepts(written):
            read += 1
            try:
                parser.parse(written)
            except LarkError:
                pytest.fail(f"Lark does not read {written!r}")
    assert read > 20
    for written in ("a # x\n b", "a# x\n# y\n b", "a\n b", "a \nb", "a\n b # " + "x" * 99 + "\n", "a #\n#\n#\n"):
        assert ours.accepts(written), written
    for written in ("a\n\nb", "a" + " " * 33 + "b", "a\n \nb"):
        assert not ours.accepts(written), written
        assert grammar(text, ignored="any").accepts(written)


def test_what_is_seen_to_be_free_has_a_text_before_any_other() -> None:
    derivatives, ends = Derivatives(), [nodes.literal(text) for text in (b"a", b" ", b"1", b";", b"\n")]
    found = 0
    for text, _ in TEXTS.values():
        for term in list(nodes.all_parts(grammar(text).node))[:400]:
            if term.kind is not Kind.RULE and term.has_munch and derivatives.free_texts.has(term):
                found += 1
                assert all(_has_text(nodes.concat(term, end)) for end in ends)
    assert found > 50


def _has_text(term: Node) -> bool:
    derivatives = Derivatives()
    derivatives.free_texts.has = lambda term: False  # type: ignore[method-assign]
    return derivatives.is_inhabited(term)


def test_the_report_of_a_sum_has_each_line_once() -> None:
    from fsm import json_schema

    language = json_schema({"type": "string", "title": "x"}) + choice([","])
    size = len(language.report)
    for _ in range(12):
        language = language + language
    assert size == len(language.report)


@pytest.mark.parametrize("name", TEXTS)
def test_a_step_by_one_byte_leads_where_the_arcs_do(name: str) -> None:
    """A step reads the alternatives that can begin with its byte alone; the arcs are those of all bytes."""
    text, written = TEXTS[name]
    root = grammar(text, limits=Limits(max_work=10**6)).node
    stepwise, whole, random = Derivatives(), Derivatives(), Random(7)
    for start in range(0, len(written) if name != "doubling" else 3):
        one = other = root
        for byte in (*written.encode()[:start], *random.choices(sorted(set(written.encode())), k=2)):
            arcs = whole.arcs(other)
            first = sum(mask for mask, _ in arcs)
            assert first & ~stepwise.first_bytes(one) == 0
            one = stepwise.after(one, byte)
            other = next((target for mask, target in arcs if mask >> byte & 1), nodes.EMPTY)
            assert one.nullable == other.nullable
            assert stepwise.is_inhabited(one) == whole.is_inhabited(other)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_seen_to_follow_a_text_does(name: str) -> None:
    """Each mask of `left` against the fixed point: a text that begins without some bytes, and then a byte that is not in the mask."""
    text, written = TEXTS[name]
    derivatives, exact, random, seen = Derivatives(), Derivatives(), Random(3), 0
    exact.free_texts.has = lambda term: False  # type: ignore[method-assign]
    term = grammar(text, limits=Limits(max_work=10**6)).node
    for byte in written.encode()[: 12 if name != "doubling" else 3]:
        excluded = sum(1 << one for one in random.sample(sorted(set(written.encode())), k=2))
        for left in derivatives.free_texts.left(term, (excluded,)):
            follow = nodes.concat(term, nodes.byte_set(nodes.ALL_BYTES & ~left))
            seen += 1
            assert exact.is_inhabited(nodes.munch(nodes.EPSILON, follow, nodes.byte_set(excluded)))
        term = derivatives.after(term, byte)
    assert seen


def test_left_recursion_is_refused_by_a_first_step() -> None:
    rules = Rules()  # which keep the bodies
    rule = rules.rule("loop", is_sure=False, has_munch=False)
    rule.define(nodes.alternation((nodes.concat(rule.term, nodes.literal(b"a")), nodes.literal(b"b"))))
    with pytest.raises(ExpressionError, match="left recursion"):
        Derivatives().after(rule.term, ord("b"))


@pytest.mark.parametrize(
    ("written", "bound"), [("a   ", None), (" ", "none before the first terminal"), ("a" + 33 * " ", "at most one text of 32 bytes")]
)
def test_a_rejection_says_which_ignored_white_space_is_bounded(written: str, bound: str | None) -> None:
    language = grammar(IGNORED + "BLANK: / +/\n%ignore BLANK")
    said = language.explain(written + "a")
    if bound is None:
        assert said is None
    else:
        assert f"`%ignore BLANK` ({bound}" in str(said)
    assert "%ignore" not in str(language.explain("a 1"))
    assert grammar(IGNORED + "BLANK: / +/\n%ignore BLANK", ignored="any").explain(" a") is None
