"""Masks of random languages, the same in every run of CI, against the plain loop; `python -m tests.fuzz masks` goes on for longer."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from fsm import Expression, TokenFSM, grammar, json_schema, regex
from fsm.terms.node import Node
from fsm.tokens import mask_strategies
from fsm.tokens.mask_strategies import MaskMaker, Words
from tests.fuzz.languages import draw, is_valid, smaller
from tests.fuzz.masks import Counts, Example, check, failure, plain, run, shrunk, vocabulary
from tests.fuzz.seeds import first_seed


@pytest.mark.parametrize(("tekken", "count"), [(0, 20), (1, 2)])
def test_masks_of_random_languages_are_those_of_the_plain_loop(tekken: float, count: int) -> None:
    counts, seed = Counts(), first_seed()
    for name in ["tekken"] if tekken else ["bytes", "mixed"]:
        vocabulary(name)
    findings = list(run(seed, 60, counts, count=count, tekken=tekken))
    assert not findings, f"repeat with `python -m tests.fuzz masks --seed {seed} --tekken {tekken}`\n" + "\n".join(findings)
    assert counts.of


_DEAD_RESTS = r"""
start: x z* "if"+ | D z | z C~1..2 A~1..2
x: y | A? | B?
y: E
z: B D* | A+ C~1..2 | x? B
A: "i"
B: /\w+/
C.2: /[a-z]+\b/
D: /[0-9]+(\.[0-9]+)?/
E: /"[^"]*"/
"""
ONE_KEY = {"type": "object", "not": {"propertyNames": {"not": {"enum": ["1"]}}}}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (json_schema(ONE_KEY), b'{"'),
        (json_schema({"pattern": r"\bz"}), b""),
        (regex(r".*\bz.*"), b""),
        (regex(r".*\b(?:yes|no)"), b""),
        (regex(r"[a-z ]{0,20}\bend"), b"a "),
        (regex(r"[\s\S]*?\bANSWER: \d+"), b"- "),
        (regex(r"a[a-z]*?\b[^b]\d"), b"a"),
        (regex(r"[^q]*\x00\d|[^q]{2,4}"), b"aa"),
        (regex(r"[^ ]{0,9}") & ~regex("a.*"), b""),
        (((regex(".{2,9}") & ~regex("ab+")) + (regex("a*") & regex("b*"))), b"c"),
        (grammar('start: stmt+\nstmt: "if" N | N\nN: /[a-z]+/'), b""),
        (grammar('start: B* A A | B? "if"\nA: /[a-z]+\\b/\nB: /[^a ]+/', lexer="dynamic"), b""),
        # `D D` has no text, as the first takes all digits.
        (grammar("start: x | D D\nx: /\\wb/\nD: /[0-9]+(0-)?/", lexer="dynamic"), b""),
        (grammar("start: x | x D~5 | D\nx: /\\wb/\nD: /[0-9]+(0-9]+)?/", lexer="dynamic"), b""),
        (grammar(_DEAD_RESTS, lexer="dynamic"), b""),
    ],
)
@pytest.mark.parametrize("name", ["bytes", "mixed"])
def test_a_mask_is_that_of_the_plain_loop(expression: Expression, text: bytes, name: str) -> None:
    tokens, tree = vocabulary(name)
    token_fsm = TokenFSM(expression, tokens)
    state = token_fsm.automaton.next_state(token_fsm.initial_state, text)
    found = [token_id for token_id in token_fsm.allowed_token_ids(state).tolist() if tokens.tokens[token_id]]
    assert plain(token_fsm.automaton, state, tree) == found


@pytest.mark.parametrize(
    ("text", "read", "following"),
    [
        ('start: B* A A | B? "if"\nA: /[a-z]+\\b/\nB: /[^a ]+/', b"", "i"),  # after `A` the boundary forbids a letter
        ('start: z "if"\nx: A x\ny: [x] "if" A\nz: y?\nA.2: /[^ ]+/', b"if", ""),
        *((f'start: {start}\nx: A\ny: "f" x\nz: y A\nw: A | x\nA: /[^f]+/', b"", "") for start in ("z?", "(z | y A)?", "[A~2]", "(w w)?")),
    ],
)
def test_a_terminal_after_one_that_takes_its_letters_is_no_way_on(text: str, read: bytes, following: str) -> None:
    automaton = TokenFSM(grammar(text, lexer="dynamic" if following else None), vocabulary("bytes")[0]).automaton
    assert following == "".join(map(chr, automaton.moves(automaton.next_state(automaton.initial_state, read))))


def test_word_boundaries_of_another_library_are_those_of_ascii() -> None:
    assert is_valid("schema", {"pattern": r"\b3"}, '"ਰ3"')
    assert is_valid("schema", {"patternProperties": {r"\Bé": False}}, '{"é": 1}') is False
    assert is_valid("schema", {"pattern": r"\\b"}, r'"\\b"')


def test_a_seed_draws_the_same_language_again() -> None:
    assert [draw(Random(seed)) for seed in range(30)] == [draw(Random(seed)) for seed in range(30)]


def test_a_wrong_mask_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_word(maker: MaskMaker, term: Node, node: int) -> Words:
        words = mask_strategies.breadth_first(maker, term, node)
        assert words is not None
        return words & np.int32(~(1 << ord("\n")))

    monkeypatch.setattr(mask_strategies, "STRATEGIES", (without_word,))
    vocabulary("bytes")[0].masks.clear()
    kind, message, _ = failure(Example("regex", "ab|[^a]+", "bytes", 0), Counts())
    small, _ = shrunk(Example("regex", "ab|[^a]+", "bytes", 0), kind)
    vocabulary("bytes")[0].masks.clear()
    assert (kind, small.source) == ("wrong", "[^a]")
    assert r"lacks [b'\n', b'*'" in message


def test_smaller_sources_lack_a_part() -> None:
    assert "ab" in list(smaller("abc"))
    assert {"not": {}} in list(smaller({"type": "object", "not": {}}))
    assert ["a"] in list(smaller(["a", "b"]))


def test_a_refused_language_is_counted() -> None:
    counts = Counts()
    assert check(Example("regex", "(", "bytes", 0), counts) is None
    assert counts.of == {"refused": 1}
