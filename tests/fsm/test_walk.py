"""The fast readings of an automaton against the plain one: a text at a time, a byte at a time, by `moves` alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import Expression, TokenFSM, Vocabulary, choice, grammar
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.bitmask import pack
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER
from fsm.tokens import walk
from fsm.tokens.sparse_product import SparseProduct
from fsm.tokens.walk import sweep_each, walk_narrow, walk_wide
from fsm.trie import Trie
from tests.examples import examples
from tests.fsm.test_expression import LANGUAGES, Language
from tests.fsm.test_token_fsm import ANY, LETTER, PIECES, loops

TEXTS = st.lists(st.lists(PIECES, min_size=1, max_size=5).map(b"".join), min_size=1, max_size=40)


def plain_step(automaton: Automaton, state: int, text: bytes) -> int:
    """The oracle: one look-up in `moves` per byte."""
    for byte in text:
        state = automaton.moves(state).get(byte, DEAD)
        if state == DEAD:
            return DEAD
    return state


def survivors(expression: Expression, texts: list[bytes]) -> list[int]:
    automaton = Automaton(expression.node)
    return [i for i, text in enumerate(texts) if plain_step(automaton, automaton.initial_state, text) != DEAD]


@contextmanager
def tails(max_nodes: int) -> Iterator[None]:
    """Let wide walks end in single steps where that many nodes are alive; 0: never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "MAX_TAIL_NODES", max_nodes)
        yield


EXPRESSIONS = st.one_of(loops(), LANGUAGES.map(lambda language: language[0]))


@given(EXPRESSIONS, TEXTS, st.sampled_from([0, 1, 2, 3, 8]), st.sampled_from([2048, 1 << 20]))
@settings(max_examples=examples(140), deadline=None)
def test_a_wide_walk_finds_the_texts_that_survive_also_where_its_table_is_full(
    expression: Expression, texts: list[bytes], max_nodes: int, max_row_bytes: int
) -> None:
    automaton, trie = Automaton(expression.node, max_row_bytes=max_row_bytes), Trie(texts)
    with tails(max_nodes):
        for _ in range(2):
            assert survivors(expression, texts) == walk_wide(automaton, trie, 1).nonzero()[0].tolist()


@given(st.lists(st.binary(max_size=4)), st.sets(st.integers(0, 255)))
def test_the_nodes_with_some_bytes_are_those_to_which_these_lead(texts: list[bytes], bytes_: set[int]) -> None:
    prefixes = {text[:end] for text in [*texts, b"\x00a"] for end in range(1, len(text) + 1)}
    trie = Trie([*texts, b"\x00a"])
    expected = {trie.follow(Trie.root, prefix)[1] for prefix in prefixes if prefix[-1] in bytes_}
    assert expected == set(trie.nodes_with(bytes_).tolist())


@given(EXPRESSIONS, TEXTS, st.integers(0, 255), st.sampled_from([2048, 1 << 20]))
@settings(max_examples=examples(50), deadline=None)
def test_a_sweep_from_many_nodes_finds_what_walks_from_each_find(
    expression: Expression, texts: list[bytes], byte: int, max_row_bytes: int
) -> None:
    trie = Trie(texts)
    byte = texts[0][byte % len(texts[0])]
    nodes_there = trie.nodes_with((byte,))
    automaton, plain = Automaton(expression.node, max_row_bytes=max_row_bytes), Automaton(expression.node)
    found = trie.labels_of(sweep_each(automaton, trie, 1, nodes_there)[0])[0]
    depths = trie.depths(nodes_there)
    expected = set()
    for label, text in enumerate(texts):
        path = [int(trie.ends[label])]
        while path[-1]:
            path.append(int(trie.parent[path[-1]]))
        for node, depth in zip(nodes_there.tolist(), depths.tolist(), strict=True):
            if node in path and plain_step(plain, 1, text[depth - 1 :]) != DEAD:
                expected.add(label)
    assert expected == set(found.tolist())


@given(st.sampled_from([JSON_CHARACTER, LETTER, ANY]), TEXTS, st.integers(0, 3), st.one_of(st.none(), st.integers(1, 4)))
@settings(max_examples=examples(80), deadline=None)
def test_a_short_loop_lists_what_stays_inside_and_where_it_may_end(
    body: nodes.Node, texts: list[bytes], lo: int, extra: int | None
) -> None:
    hi = None if extra is None else lo + extra
    trie, rounds = Trie(texts), Automaton(nodes.repeat(body))
    short = SparseProduct(rounds, trie, Trie.root)
    inside = Automaton(nodes.repeat(body, 0, hi))
    assert [i for i, text in enumerate(texts) if plain_step(inside, 1, text) != DEAD] == sorted(short.inside(hi))
    counted = Automaton(nodes.concat(nodes.repeat(body, lo, hi), nodes.literal(b"\xff")))
    expected = set()
    for text in texts:
        for end in range(len(text)):
            state = plain_step(counted, 1, text[:end])
            if state != DEAD and 255 in counted.moves(state):
                expected.add((text[:end], text[end]))
    found = set()
    for byte in range(256):
        for node, _ in short.exits({byte}, lo, hi):
            path = b""
            while node:
                path = bytes((trie.byte[node],)) + path
                node = int(trie.parent[node])
            found.add((path, byte))
    assert expected == found


@given(EXPRESSIONS, TEXTS)
@settings(max_examples=examples(60), deadline=None)
def test_a_narrow_walk_finds_the_texts_that_survive(expression: Expression, texts: list[bytes]) -> None:
    automaton = Automaton(expression.node)
    walked = walk_narrow(automaton, Trie(texts), 1, max_cost=1_000_000)
    assert walked is not None
    found, jumps = walked
    if not jumps:
        assert survivors(expression, texts) == sorted(set(found))


def test_a_narrow_walk_enters_no_loop_whose_iteration_has_no_text() -> None:
    either = nodes.byte_set(0b11 << ord("a"))
    dead = nodes.intersection([nodes.sequence([either, nodes.literal(end)]) for end in (b"x", b"y")])
    loop = nodes.repeat(nodes.concat(nodes.literal(b"a"), dead))
    texts = [b"a", b"ab", b"q", b"aq"]
    assert dead is not nodes.EMPTY
    assert walk_narrow(Automaton(nodes.concat(loop, nodes.literal(b"q"))), Trie(texts), 1) == ([2], [])


WORDS = st.lists(st.text("ab", max_size=4), min_size=1, max_size=8)


@given(WORDS, WORDS, st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=40), st.data())
@settings(max_examples=examples(120), deadline=None)
def test_words_after_words_are_read_in_every_way(first: list[str], second: list[str], tokens: list[str], data: st.DataObject) -> None:
    texts = [token.encode() for token in tokens]
    expression = choice(first) + choice(second)
    walked = walk_narrow(Automaton(expression.node), Trie(texts), 1)
    assert walked is not None
    assert survivors(expression, texts) == sorted(set(walked[0]))


@given(LANGUAGES, st.lists(PIECES, max_size=6).map(b"".join))
@settings(max_examples=examples(120), deadline=None)
def test_single_steps_and_moves_lead_to_one_state(language: Language, text: bytes) -> None:
    stepped, plain = Automaton(language[0].node), Automaton(language[0].node)
    left = stepped.nodes[stepped.next_state(stepped.initial_state, text)]
    right = plain.nodes[plain_step(plain, plain.initial_state, text)]
    assert left is (right if plain.is_alive(right) else nodes.EMPTY)  # of the empty language even the initial state is dead


@given(st.lists(st.booleans(), max_size=100))
def test_packing_keeps_every_flag(flags: list[bool]) -> None:
    words = pack(np.array(flags, bool))
    assert [i for i, flag in enumerate(flags) if flag] == [i for i in range(32 * len(words)) if words[i >> 5] >> (i & 31) & 1]


def test_many_ways_to_read_one_text_are_followed_once() -> None:
    words = " | ".join(f'"{letter}{letter}"' for letter in "abcdefghij")
    ambiguous = grammar(f'start: x | y | "!"\nx: "----" start\ny: "--" d start\nd: "--" | {words}\n', lexer="dynamic")
    runs = [b"-" * size for size in range(1, 90)] + [b"-" * 88 + bytes([65 + n]) for n in range(26)]
    tokens = [None, *(bytes((byte,)) for byte in range(256)), *runs]
    token_fsm = TokenFSM(ambiguous, Vocabulary(tokens, [0]))
    state, automaton = token_fsm.initial_state, Automaton(ambiguous.node)
    expected = [n for n, token in enumerate(tokens) if token and plain_step(automaton, 1, token) != DEAD]
    assert token_fsm.allowed_token_ids(state).tolist() == expected


def test_a_narrow_walk_of_many_words_gives_up() -> None:
    words = [bytes((a, b)) for a in b"abcdefghijklmnopqrstuvwxyz" for b in b"abcdefghijklmnopqrstuvwxyz"]
    trie = Trie([a + b for a in words for b in words[::9]])
    automaton = Automaton(nodes.repeat(nodes.words(words), 1, None))
    assert walk_narrow(automaton, trie, 1, max_cost=400) is None
