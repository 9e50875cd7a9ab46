"""Masks of numbers, negated patterns and word boundaries that took seconds, or went over their budget: work is counted."""

from __future__ import annotations

import json
import re
import tracemalloc
from functools import cache
from itertools import product
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, note, settings

from fsm import BudgetExceeded, EmptyLanguage, Expression, TokenFSM, UnsupportedRegex, Vocabulary, grammar, json_schema, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.pattern.ecma_pattern import ecma_search
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.characters import JSON_CHARACTER, json_spelling
from fsm.terms.derivative import Derivatives
from fsm.tokens.walk import walk_wide
from fsm.tokens.ways_walk import MAX_WAYS, WaysWalk, ways_of
from tests.examples import examples
from tests.fsm.test_json_numbers import is_valid
from tests.vocabularies import tekken_token_bytes
from tests.walks import RANDOMS, check_masks

relaxed = settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
BYTES = Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])
PIECES = Vocabulary([*BYTES.tokens, *b"12,00,000,123,.5,-1,ab,a ,1 , a,--".split(b",")], [256])
DENIED = [
    "a+b", "(ab)*c", "[a-f]{3,}x", r"\d{4}-\d{2}", "foo.*bar", "^[A-Z]+$", "x{2,5}y", "q[^u]", "(?:no|yes)$", r"\s\s",
    "z.{3}z", "end$",
]  # fmt: skip
NOTS = [{"not": {"pattern": pattern}} for pattern in DENIED]
MULTIPLES = [86_400, 65_536, 100_000, 1_000_000, 10_000, 99_991, 2**31 - 1, 10**20]
COUNTED = {"type": "string", "minLength": 3, "maxLength": 40}
HOST = {"type": "string", "format": "hostname", "minLength": 3, "maxLength": 60, "not": {"pattern": "example"}}
CASES: dict[str, tuple[int, int, Expression]] = {  # the most work and new states of one mask
    **{f"multiple of {m}": (200, 100, json_schema({"type": "integer", "multipleOf": m, "minimum": 0})) for m in MULTIPLES},
    "twelve patterns": (16_000, 100, json_schema({"type": "string", "allOf": NOTS})),
    "twelve patterns, counted": (35_000, 400, json_schema(COUNTED | {"allOf": NOTS})),
    "host name": (9_000, 100, json_schema(HOST)),
    "words": (5_000, 1_500, regex(r"(?:\b\w{1,10}\b\s){1,100}")),
    "three digits between two boundaries": (1_000, 500, regex(r".*\b\d{3}\b.*")),
}


@cache
def tekken() -> Vocabulary:
    return Vocabulary(*tekken_token_bytes())


def some_id(token_fsm: TokenFSM, state: int, random: Random) -> int | None:
    """An id that the mask allows, if it has one that does not end the text."""
    ids = [i for i in token_fsm.allowed_token_ids(state).tolist() if i not in token_fsm.vocabulary.eos_token_ids]
    return random.choice(ids) if ids else None


@pytest.mark.parametrize("name", CASES)
def test_a_mask_takes_little_work_few_states_and_little_memory(name: str) -> None:
    most_work, most_states, expression = CASES[name]
    # What a vocabulary was asked before decides what is made at once, so it has not been asked anything.
    token_fsm = TokenFSM(Expression(expression.node), Vocabulary(*tekken_token_bytes()))
    state, random = token_fsm.initial_state, Random(5)
    for _ in range(3):
        states, done = len(token_fsm.automaton), work.done()
        tracemalloc.start()
        token_fsm.bitmask(state)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert work.done() - done <= most_work
        assert len(token_fsm.automaton) - states <= most_states
        assert peak <= 100 << 20
        token_id = some_id(token_fsm, state, random)
        if token_id is None:
            break
        state = token_fsm.next_state(state, token_id)


def test_a_mask_that_takes_too_much_work_is_complete() -> None:
    expression = regex("x(?:(?!a.{9}b).)*c")
    token_fsm, exact = (TokenFSM(expression, Vocabulary(PIECES.tokens, PIECES.eos_token_ids)) for _ in range(2))
    token_fsm.max_mask_work = 0
    state, random, text = token_fsm.initial_state, Random(2), b""
    for _ in range(40):
        allowed = token_fsm.allowed_token_ids(state).tolist()
        assert allowed == exact.allowed_token_ids(exact.automaton.next_state(exact.initial_state, text)).tolist()
        token_id = random.choice([i for i in allowed if PIECES.tokens[i] not in (None, b"c")])
        text += PIECES.tokens[token_id] or b""
        state = token_fsm.next_state(state, token_id)


@relaxed
@given(RANDOMS)
def test_random_counted_patterns_with_word_boundaries_are_what_re_matches(random: Random) -> None:
    pattern = random_pattern(random)
    try:
        expression = regex(pattern, ascii=True)
        token_fsm = TokenFSM(expression, PIECES)
    except (EmptyLanguage, UnsupportedRegex, BudgetExceeded):
        return  # at once, and not out of a mask
    note(pattern)
    text = check_masks(token_fsm, lambda ids: random.choice(ids) if random.random() < 0.9 else None, 30)
    assert text is None or len(text) > 20 or re.fullmatch(pattern, text.decode(), re.ASCII)  # `re` backtracks
    for size in range(4):
        for short in map("".join, product("a 1-", repeat=size)):
            assert expression.accepts(short) == bool(re.fullmatch(pattern, short, re.ASCII)), short


@relaxed
@given(RANDOMS)
def test_random_numbers_are_masked_within_the_budget_and_end_valid(random: Random) -> None:
    schema = random_numbers(random)
    note(schema)
    try:
        token_fsm = TokenFSM(json_schema(schema), PIECES)
    except EmptyLanguage:
        return
    text = check_masks(token_fsm, lambda ids: random.choice(ids) if random.random() < 0.9 else None, 30)
    assert text is None or is_valid(schema, text.decode())
    step = int(re.findall(r"\d+", schema)[0])  # the divisor
    if '"type": "integer"' in schema:
        for value in (0, step, -step, 3 * step, 10 * step, step + 1, 7, random.randrange(10**6), 10**6 // step * step):
            assert token_fsm.expression.accepts(str(value)) == is_valid(schema, str(value)), value


def random_pattern(random: Random) -> str:
    parts = [r"\w", "a", "[a1]", " ", r"\s", "-", "."]
    bounds = ["", "", "+", "*", "?", "{1,3}", "{2}", "{0,40}", "{3,}", "{1,300}"]

    def some(depth: int) -> str:
        found = ""
        for _ in range(random.randint(1, 3)):
            look = random.choice([r"\b", r"\b", r"\B", "", "", r"(?!\w)", r"(?<=\s)", r"(?<!a)"])
            inner = f"(?:{some(depth - 1)})" if depth and random.random() < 0.6 else random.choice(parts)
            found += look + inner + random.choice(bounds[5:] if inner[0] == "(" else bounds)
        return found + random.choice([r"\b", "", ""])

    return some(random.randint(0, 1)) + random.choice(["", "|" + some(1)])


def random_numbers(random: Random) -> str:
    """A schema as text; its first number is the divisor."""
    step = random.choice(
        [random.randint(1, 50), random.randint(50, 10**7), random.randint(1, 99) * 10 ** random.randint(1, 9), 2 ** random.randint(3, 40)]
    )
    found: dict[str, object] = {"multipleOf": step, "type": random.choice(["integer", "number"])}
    far = lambda: random.choice([0, 1, -1, step, random.randint(-(10**9), 10**9), random.randint(-(10**16), 10**16)])  # noqa: E731
    for keyword in random.sample(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], random.randint(0, 2)):
        found[keyword] = far()
    denied = [{"multipleOf": step * random.randint(2, 9)}, {"enum": [step, 0, 5 * step]}, {"multipleOf": 86_400}, {"const": far()}]
    found["allOf"] = [{"not": one} for one in random.sample(denied, random.randint(0, 3))] or [{}]
    return json.dumps(found)


HOSTILE_PARTS = ["a", "b", "c", "[ab]", ".", "[^a]"]
HOSTILE_COUNTS = ["", "", "+", "*", "?", "{2}", "{3}", "{1,3}", "{0,5}"]


def hostile_schema(random: Random) -> dict[str, object]:
    """Patterns that are found anywhere in a text of few characters, so that a state has to remember several places."""

    def pattern(depth: int) -> str:
        parts = [
            f"(?:{pattern(depth - 1)}|{pattern(depth - 1)})" if depth and random.random() < 0.4 else random.choice(HOSTILE_PARTS)
            for _ in range(random.randint(1, 3))
        ]
        return "".join(part + random.choice(HOSTILE_COUNTS) for part in parts)

    schema: dict[str, object] = {"type": "string", "maxLength": random.randint(2, 14), "minLength": random.randint(0, 2)}
    parts = [{"pattern": pattern(1) + random.choice(["", "", "$"])} for _ in range(random.randint(1, 2))]
    return schema | {"allOf": [part if random.random() < 0.7 else {"not": part} for part in parts]}


@relaxed
@given(RANDOMS)
def test_a_walk_way_by_way_finds_what_one_of_all_ways_does(random: Random) -> None:
    schema = hostile_schema(random)
    note(schema)
    try:
        automaton = Automaton(json_schema(schema).node)
    except EmptyLanguage:
        return
    few, many = WaysWalk(PIECES.trie, 10_000), WaysWalk(PIECES.trie, 10_000)
    many.swept_from = 0
    state = automaton.initial_state
    for _ in range(6):
        term = automaton.nodes[state]
        expected = walk_wide(automaton, PIECES.trie, state).tolist()
        assert few.walk(term).tolist() == expected
        assert many.walk(term).tolist() == expected
        state = random.choice(list(automaton.moves(state).values()) or [state])


READINGS = """
start: y [x] x | x | A [y] "("~1..2
x: z* z x+ | y~1..2 ["if"]
y: "if"* z* A
z: [A] | x [y] x+
A: /[a-z]/
%ignore " "
"""
"""It has no end of readings for some letters; found by the fuzzer: their ways had taken all memory."""


def test_an_ambiguous_grammar_is_divided_into_few_ways() -> None:
    token_fsm = TokenFSM(grammar(READINGS, lexer="dynamic"), PIECES)
    automaton, state = token_fsm.automaton, token_fsm.initial_state
    for byte in b"aa if":
        state = automaton.moves(state)[byte]
        assert 10 < len(ways_of(automaton.nodes[state])) < 2 * MAX_WAYS
        before, found = work.done(), token_fsm.allowed_token_ids(state).tolist()
        assert work.done() - before < 2 * token_fsm.max_mask_work
        assert [i for i in found if i != 256] == [n for n, is_alive in enumerate(walk_wide(automaton, PIECES.trie, state)) if is_alive]


@relaxed
@given(RANDOMS)
def test_an_intersection_has_a_text_within_counts_if_a_search_finds_one(random: Random) -> None:
    inside = ecma_search(random.choice(DENIED) + random.choice(["", "a.{3}b", "[ab]{2}c?"]), json_spelling)
    found = Derivatives()
    for _ in range(12):
        lo = random.randint(0, 4)
        node = nodes.intersection((inside, nodes.repeat(JSON_CHARACTER, lo, lo + random.randint(0, 9))))
        for byte in random.choices(b"abcfx1\xc3", k=random.randint(0, 3)):
            node = found.after(node, byte)
        plainly = Derivatives()
        with patch.object(plainly, "_has_common_text", plainly._search):
            assert found.is_inhabited(node) == plainly.is_inhabited(node)


def test_the_mask_of_places_side_by_side_with_a_length_takes_little_work() -> None:
    token_fsm = TokenFSM(json_schema({"type": "string", "pattern": "a.{20}b", "maxLength": 100}), tekken())
    state, random = token_fsm.initial_state, Random(1)
    for _ in range(12):
        before = work.done()
        token_fsm.bitmask(state)
        assert work.done() - before < 100_000
        token_id = some_id(token_fsm, state, random)
        assert token_id is not None
        state = token_fsm.next_state(state, token_id)
