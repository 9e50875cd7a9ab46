"""Token FSMs against brute force: every token of a small vocabulary, byte by byte, in every state that is met."""

from __future__ import annotations

import random
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, Expression, TokenFSM, TokenNotAllowed, Vocabulary, VocabularyGap, choice, json_schema, regex
from fsm.expression import lift
from fsm.terms import node as nodes
from fsm.terms.characters import JSON_CHARACTER, invert, utf8
from tests.examples import examples
from tests.fsm.test_expression import LANGUAGES, Language

LETTER = nodes.byte_range(ord("a"), ord("z"))
ANY = utf8(invert(((10, 10),)))
QUOTE = nodes.literal(b'"')
PIECES = st.sampled_from(
    [
        b"a", b"b", b"ab", b'"', b'", "', b"\\", b"\\n", b"n", b"\xc3", b"\xa9", "é".encode(), b"z1", b"1", b"1.", b".", b"\n",
        b" ", b"\xf0\x9f", b"\x98\x80", b"\x00",
    ]
)  # fmt: skip
TOKENS = st.lists(st.lists(PIECES, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=60)
VOCABULARIES = TOKENS.map(lambda extra: [None, *(bytes((b,)) for b in range(256)), *extra])


def loops() -> st.SearchStrategy[Expression]:
    """Loops over wide classes, with counts and tails that overlap with them or do not."""
    body = st.sampled_from([JSON_CHARACTER, LETTER, ANY])
    counts = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 6)))
    tails = [b'"', b'", "a', b".", b"1", b"ab", b'"}', b""]
    tail = st.one_of(
        st.sampled_from(tails).map(nodes.literal),
        st.lists(st.sampled_from(tails), min_size=1).map(nodes.words),
        st.just(nodes.repeat(nodes.alternation((LETTER, nodes.byte_range(48, 57))))),
        st.just(nodes.sequence([QUOTE, nodes.literal(b", "), QUOTE, nodes.repeat(JSON_CHARACTER), QUOTE])),
    )
    head = st.sampled_from([b"", b'"', b'a"', b" "]).map(nodes.literal)

    def build(args: tuple[nodes.Node, nodes.Node, tuple[int, int | None], nodes.Node]) -> nodes.Node:
        start, loop, (lo, extra), rest = args
        return nodes.sequence([start, nodes.repeat(loop, lo, None if extra is None else lo + extra), rest])

    one = st.tuples(head, body, counts, tail).map(build)
    return st.one_of(one, st.tuples(one, one).map(nodes.alternation)).map(Expression)


def loops_that_leave_out() -> st.SearchStrategy[Expression]:
    """Loops over wide classes without a few texts, without a language, or both, as keys are; also two kinds of keys side by side.

    Some texts are no row of rounds, or end inside a character; some languages leave nothing.
    """
    text = st.lists(PIECES, min_size=1, max_size=3).map(b"".join)
    texts = st.lists(text, min_size=1, max_size=4).map(nodes.words)
    tails = st.sampled_from([b'"', b'", "a', b"1", b"ab", b""]).map(nodes.literal)
    bodies = st.sampled_from([JSON_CHARACTER, LETTER, ANY])

    def language(args: tuple[nodes.Node, bytes, str]) -> nodes.Node:
        body, piece, shape = args
        parts = {"x.*": [piece, body], ".*x": [body, piece], ".*x.*": [body, piece, body], "x.?": [piece]}[shape]
        found = [nodes.literal(part) if isinstance(part, bytes) else nodes.repeat(part) for part in parts]
        return nodes.sequence([*found, nodes.optional(body)] if shape == "x.?" else found)

    def build(args: tuple[nodes.Node, nodes.Node | None, nodes.Node | None, nodes.Node, nodes.Node, bool]) -> nodes.Node:
        body, few, many, end, tail, is_quoted = args
        loop = nodes.repeat(body)
        loop = loop if few is None else nodes.intersection((loop, nodes.complement(few)))
        loop = nodes.concat(loop, end) if is_quoted else loop
        many = nodes.concat(many, end) if is_quoted and many is not None else many
        loop = loop if many is None else nodes.intersection((loop, nodes.complement(many)))
        return nodes.concat(loop, tail)

    languages = st.tuples(bodies, text, st.sampled_from(["x.*", ".*x", ".*x.*", "x.?"])).map(language)
    kind = st.tuples(bodies, st.none() | texts, st.none() | languages, tails, tails, st.booleans()).map(build)
    kinds = st.tuples(kind, kind, tails).map(lambda found: nodes.concat(nodes.alternation(found[:2]), found[2]))
    whole = st.tuples(st.sampled_from([b"", b'"']).map(nodes.literal), kind | kinds).map(nodes.sequence).map(Expression)
    return st.one_of(whole, st.tuples(whole, loops()).map(lambda pair: pair[0] | pair[1]))


@given(LANGUAGES, VOCABULARIES, st.sampled_from(["a", "ab", "0", "é"]), st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_text_before_the_language_is_read_as_a_part_of_it(
    language: Language, tokens: list[bytes | None], before: str, data: st.DataObject
) -> None:
    try:
        alone = TokenFSM(language[0], Vocabulary(tokens, [0]))
        together = TokenFSM(before + language[0], Vocabulary(tokens, [0]))
    except (EmptyLanguage, VocabularyGap):
        return
    assert alone.initial_state == alone.state_before(b"")
    state, other = alone.state_before(before.encode()), together.initial_state
    for _ in range(4):
        allowed = together.allowed_token_ids(other)
        np.testing.assert_array_equal(allowed, alone.allowed_token_ids(state))
        token_ids = [token_id for token_id in allowed.tolist() if token_id]
        if not token_ids:
            break
        token_id = data.draw(st.sampled_from(token_ids))
        state, other = alone.next_state(state, token_id), together.next_state(other, token_id)


BYTES = [None, *(bytes((b,)) for b in range(256))]


def test_forced_text_is_the_common_beginning_of_all_continuations() -> None:
    fsm = TokenFSM('{"name": "' + lift("x").repeat(2, 5) + '"}', Vocabulary(BYTES, [0]))
    assert fsm.forced_text(fsm.initial_state) == b'{"name": "xx'
    state = fsm.initial_state
    for byte in b'{"name": "xxxxx':
        state = fsm.next_state(state, byte + 1)
    assert fsm.forced_text(state) == b'"}'


def test_masks_are_shared_between_constraints_and_between_counts() -> None:
    vocabulary = Vocabulary(BYTES, [0])
    string = Expression(nodes.sequence([QUOTE, nodes.repeat(JSON_CHARACTER), QUOTE]))
    counted = Expression(nodes.sequence([QUOTE, nodes.repeat(JSON_CHARACTER, 0, 20_000), QUOTE]))
    left, right = TokenFSM(string, vocabulary), TokenFSM(counted, vocabulary)
    one = left.bitmask(left.next_state(left.initial_state, 35))
    two = right.bitmask(right.next_state(right.initial_state, 35))
    assert one is two


def test_a_mask_is_read_only_and_has_the_promised_shape() -> None:
    fsm = TokenFSM(choice(["a"]), Vocabulary(BYTES, [0]))
    mask = fsm.bitmask(fsm.initial_state)
    assert (mask.dtype, mask.shape) == (np.int32, (9,))
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        fsm.allowed_token_ids(fsm.initial_state)[0] = 1


def test_the_memory_of_masks_is_bounded_and_forgetting_changes_nothing() -> None:
    vocabulary = Vocabulary(BYTES, [0], max_cache_bytes=8000)
    fsm = TokenFSM(Expression(nodes.repeat(nodes.byte_range(48, 57), 10, 10)), vocabulary)
    state, first = fsm.initial_state, fsm.bitmask(fsm.initial_state).copy()
    for _ in range(9):
        state = fsm.next_state(state, 49)
        fsm.bitmask(state)
    assert vocabulary.masks.nbytes <= 4000
    assert first.tolist() == fsm.bitmask(fsm.initial_state).tolist()


SHARED_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "code": {"type": "string", "pattern": "^[A-Za-z]{2,12}[a-z0-9]*$"},
        "count": {"type": "integer", "minimum": -20, "maximum": 3000},
        "kind": {"enum": ["order", "offer", "other"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "code", "count", "kind", "tags"],
}
SYLLABLES = [(a + b).encode() for a in "bdklmnrst" for b in "aeiou"]
MANY_TOKENS = [
    *BYTES,
    *(a + b for a in SYLLABLES for b in [b"", *SYLLABLES[::3]]),
    *(mark + syllable for mark in (b'"', b' "', b'", "', b" ") for syllable in SYLLABLES),
    *(syllable + mark for mark in (b'"', b'",', b'", "') for syllable in SYLLABLES),
    *(b"%d" % n for n in range(200)),
]


def random_walk(fsm: TokenFSM, seed: int, steps: int = 60) -> list[tuple[int, bytes, bytes]]:
    """What is seen on the way: the token, the mask, the text that is forced."""
    source, state, seen = random.Random(seed), fsm.initial_state, []
    for _ in range(steps):
        mask = fsm.bitmask(state).tobytes()
        going_on = [t for t in fsm.allowed_token_ids(state).tolist() if t]
        if not going_on:
            break
        token_id = source.choice(going_on)
        seen.append((token_id, mask, fsm.forced_text(state)))
        state = fsm.next_state(state, token_id)
    return seen


@pytest.mark.parametrize("max_cache_bytes", [128 << 20, 100_000], ids=["roomy", "tight"])
def test_eight_threads_that_share_one_token_fsm_see_what_one_sees(max_cache_bytes: int) -> None:
    expression = json_schema(SHARED_SCHEMA)
    shared = TokenFSM(expression, Vocabulary(MANY_TOKENS, [0], max_cache_bytes=max_cache_bytes))
    shared.automaton.max_row_bytes = 200_000
    results: dict[int, list[list[tuple[int, bytes, bytes]]]] = {}
    begin = threading.Barrier(8)

    def follow(number: int) -> None:
        begin.wait()
        results[number] = [random_walk(shared, seed) for seed in (number, 100, 100 + number % 2)]

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=follow, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    alone = TokenFSM(expression, Vocabulary(MANY_TOKENS, [0]))
    for number in range(8):
        assert [random_walk(alone, seed) for seed in (number, 100, 100 + number % 2)] == results[number]


@pytest.mark.parametrize("token_id", [-1, 257, 10**9, 0, 98])
def test_a_token_that_is_not_allowed_is_refused(token_id: int) -> None:
    fsm = TokenFSM(choice(["b"]), Vocabulary(BYTES, [0]))
    with pytest.raises(TokenNotAllowed):
        fsm.next_state(fsm.initial_state, token_id)
    assert not fsm.explain(fsm.initial_state, token_id).allowed


def test_explain_names_the_byte_the_place_and_what_was_expected() -> None:
    fsm = TokenFSM(choice(["abc", "abd"]), Vocabulary([None, b"abx", b"a", b"b", b"c", b"d"], [0]))
    why = fsm.explain(fsm.initial_state, 1)
    assert (why.position, why.expected) == (2, b"cd")
    assert "'c', 'd'" in str(why)
    when = json_schema({"properties": {"when": {"format": "date", "type": "string"}}, "required": ["when"], "type": "object"})
    fsm = TokenFSM(when, Vocabulary(BYTES, [0]))
    state = fsm.automaton.next_state(fsm.initial_state, b'{"when": "2020-')
    why = fsm.explain(state, BYTES.index(b"7"))
    assert (why.position, why.expected) == (0, b"01")
    assert "0[13578]" in why.rest
    assert why.rest in str(why)


def test_states_have_a_budget_and_the_error_names_it() -> None:
    fsm = TokenFSM(lift("a").repeat(0, 1000), Vocabulary(BYTES, [0]), max_states=50)
    state = fsm.initial_state
    with pytest.raises(BudgetExceeded, match="max_states"):
        for _ in range(100):
            state = fsm.next_state(state, 98)


def test_every_eos_id_ends_an_accepting_state() -> None:
    fsm = TokenFSM(lift("a").repeat(0, 1), Vocabulary([b"</s>", b"a", b"<end>"], [0, 2]))
    assert fsm.allowed_token_ids(fsm.initial_state).tolist() == [0, 1, 2]
    assert fsm.allowed_token_ids(fsm.next_state(fsm.initial_state, 1)).tolist() == [0, 2]


def test_what_is_shown_says_what_it_is() -> None:
    vocabulary = Vocabulary([b"a", b"b", b""], [2])
    assert "Vocabulary(3 tokens, eos_token_ids=" in repr(vocabulary)
    made = TokenFSM(regex("a"), vocabulary)
    assert f"TokenFSM({made.expression!r}, {vocabulary!r})" == repr(made)
    assert vocabulary.nbytes == vocabulary.trie.nbytes + vocabulary.cache_nbytes > 0
