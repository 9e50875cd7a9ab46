"""Prefixes against plain walks: what is found once for the rest of a number holds whatever comes after it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import Expression, TokenFSM, Vocabulary, json_schema
from fsm.automaton.lazy_dfa import DEAD, Automaton, as_prefix
from fsm.terms import node as nodes
from fsm.tokens.sparse_product import SparseProduct, SparseProducts
from fsm.tokens.trie import Trie
from tests.fsm.test_token_fsm import check_everywhere
from tests.fsm.test_walk import plain_step
from tests.judged import at_least, judged

DIGIT = nodes.byte_range(0x30, 0x39)
PIECES = st.sampled_from([b"0", b"1", b"12", b"-", b".", b"e", b"e-", b"1.5", b",", b", ", b"1,", b"}", b'"', b"}]"])
TEXTS = st.lists(st.lists(PIECES, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=40)
VOCABULARIES = TEXTS.map(lambda texts: [None, *(bytes((b,)) for b in range(256)), *texts])


def literals(*texts: bytes) -> st.SearchStrategy[nodes.Node]:
    return st.sampled_from([nodes.literal(text) for text in texts])


def terms(max_size: int = 3) -> st.SearchStrategy[nodes.Node]:
    """Digits, points and exponents, some of which may be missing: what numbers are made of."""
    digits = st.builds(
        lambda lo, more: nodes.repeat(DIGIT, lo, None if more > 4 else lo + more), *2 * [st.integers(0, 5)]
    )
    one = st.one_of(digits, literals(b".", b"e", b"-", b"1,"))
    some = st.lists(one, min_size=1, max_size=3).map(nodes.sequence)
    either = st.lists(some, min_size=1, max_size=3).map(nodes.alternation)
    return st.lists(st.one_of(some, either.map(nodes.optional)), min_size=1, max_size=max_size).map(nodes.sequence)


RESTS = st.one_of(literals(b",", b", ", b"}", b"1", b".5}", b"e1"), terms(2))


@given(terms(), TEXTS, st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_prefix_lists_what_stays_inside_and_where_it_may_end(
    term: nodes.Node, texts: list[bytes], start: int
) -> None:
    trie = Trie(texts)
    automaton = SparseProducts(trie, 1 << 20, Automaton)._narrow_automaton(term)
    assert automaton is not None
    start %= len(trie)
    prefix = SparseProduct(automaton, trie, start)
    below = {
        label: text for label, text in enumerate(texts) if (at := path(trie, start)) != text and text.startswith(at)
    }
    inside = {label: text[len(path(trie, start)) :] for label, text in below.items()}
    plain = Automaton(term)
    assert prefix.is_complete
    assert sorted(prefix.inside()) == [label for label, text in inside.items() if plain_step(plain, 1, text) != DEAD]
    expected = {
        (text[:end], text[end])
        for text in inside.values()
        for end in range(len(text))
        if (state := plain_step(plain, 1, text[:end])) != DEAD and plain.is_accepting(state)
    }
    found = {
        (path(trie, node)[len(path(trie, start)) :], byte) for byte in range(256) for node, _ in prefix.exits({byte})
    }
    assert found == expected


def path(trie: Trie, node: int) -> bytes:
    """The text that leads to a node."""
    text = b""
    while node:
        text, node = bytes((trie.byte[node],)) + text, int(trie.parent[node])
    return text


@at_least(20)
@given(terms(), RESTS)
@settings(max_examples=100, deadline=None)
def test_a_term_is_its_prefix_and_what_comes_after(term: nodes.Node, rest: nodes.Node) -> None:
    whole = nodes.concat(term, rest)
    found = as_prefix(whole)
    if found is not None:
        prefix, after = found
        judged()
        assert nodes.concat(prefix, after) is whole


@given(terms(), RESTS, VOCABULARIES, st.data())
@settings(max_examples=100, deadline=None)
def test_masks_of_prefixes_equal_a_walk_of_every_token(
    term: nodes.Node, rest: nodes.Node, tokens: list[bytes | None], data: st.DataObject
) -> None:
    node = nodes.concat(term, rest)
    if node.kind is not nodes.Kind.EPSILON:
        check_everywhere(TokenFSM(Expression(node), Vocabulary(tokens, [0])), data)


def test_a_prefix_that_takes_too_long_is_left_to_a_walk() -> None:
    texts = [f"{number:04d}".encode() for number in range(10_000)]
    tokens = [None, *(bytes((b,)) for b in range(256)), *texts]
    vocabulary = Vocabulary(tokens, [0])
    fsm = TokenFSM(json_schema({"type": "integer"}), vocabulary)
    state = fsm.next_state(fsm.initial_state, 1 + ord("7"))
    term, _ = as_prefix(nodes.concat(fsm.automaton.nodes[state], nodes.literal(b"}"))) or (None, None)
    assert term is not None
    assert vocabulary.sparse.prefix(term, Trie.root) is None
    assert set(fsm.allowed_token_ids(state)) >= {257 + int(text) for text in texts}


def test_schemas_share_what_they_know_of_numbers() -> None:
    vocabulary = Vocabulary([None, *(bytes((b,)) for b in range(256))], [0])
    sizes = []
    for key in ("a", "price", "total"):
        fsm = TokenFSM(
            json_schema({"type": "object", "properties": {key: {"type": "number"}}, "required": [key]}), vocabulary
        )
        state = fsm.initial_state
        for byte in f'{{"{key}": 12.5e'.encode():
            fsm.bitmask(state)
            state = fsm.next_state(state, 1 + byte)
        sizes.append(len(vocabulary.sparse.known))
    assert sizes[0] > 0
    assert sizes == sizes[:1] * 3
