"""The memory that constraints share over one vocabulary: bounded in bytes, whatever is asked of it."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm import TokenFSM, Vocabulary, choice, json_schema, regex
from fsm.terms import node
from fsm.terms.node import memory
from fsm.tokens.cache import ByteCache

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = [(a + b).encode() for a in LETTERS for b in LETTERS + '",']
TOKENS = [None, *(bytes((b,)) for b in range(256)), *PAIRS, *(b'"' + pair for pair in PAIRS[:200])]


def follow(token_fsm: TokenFSM, text: str) -> list[list[int]]:
    state, found = token_fsm.initial_state, []
    for byte in text.encode():
        found.append(token_fsm.allowed_token_ids(state).tolist())
        state = token_fsm.next_state(state, byte + 1)
    return found


def test_many_constraints_in_a_row_stay_below_the_cap() -> None:
    cap = 600_000
    vocabulary, source = Vocabulary(TOKENS, [0], max_cache_bytes=cap), random.Random(0)
    gc.collect()
    most, terms = 0, len(node._interned)
    for number in range(150):
        names = ["".join(source.choices(LETTERS, k=8)) for _ in range(2)]
        letters = "".join(sorted(set(source.choices(LETTERS, k=20))))
        if number % 2:
            follow(TokenFSM(regex(f"{names[0]}[{letters}]{{2,9}}(, {names[1]})*"), vocabulary), names[0] + letters[:2])
        else:
            options = ["".join(source.choices(LETTERS, k=6)) for _ in range(100)]
            kinds = [{"enum": options}, {"type": "string", "maxLength": source.randint(2, 9)}]
            schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names}
            text = f'{{"{names[0]}": "{options[0]}", "{names[1]}": "a'
            follow(TokenFSM(json_schema({**schema, "additionalProperties": False}), vocabulary), text)
        most = max(most, vocabulary.cache_nbytes)
    assert most <= cap
    gc.collect()
    assert 500 * (len(node._interned) - terms) < cap


def test_what_was_forgotten_is_made_again_and_is_the_same() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
    roomy, tight = (Vocabulary(TOKENS, [0], max_cache_bytes=size) for size in (1 << 27, 1))
    text = '{"a": "xy'
    expected = follow(TokenFSM(json_schema(schema), roomy), text)
    assert expected == follow(TokenFSM(json_schema(schema), tight), text)
    roomy.clear_cache()
    assert roomy.cache_nbytes == 0
    assert expected == follow(TokenFSM(json_schema(schema), roomy), text)


def test_terms_count_once_their_constraint_is_gone_and_until_its_masks_are() -> None:
    vocabulary = Vocabulary(TOKENS, [0])
    expression = choice([a + b + c for a in LETTERS for b in LETTERS for c in "xyz"])
    terms = memory(expression.node)
    assert terms > 50 * 26 * 26 * 3
    token_fsm = TokenFSM(expression, vocabulary)
    follow(token_fsm, "abx")
    before = vocabulary.masks.nbytes
    del token_fsm
    assert before + terms == vocabulary.masks.nbytes
    again = TokenFSM(expression, vocabulary)
    follow(again, "ab")
    del again
    assert before + terms == vocabulary.masks.nbytes
    vocabulary.masks.clear()
    assert vocabulary.masks.nbytes == 0


def test_masks_of_large_terms_go_first_when_there_is_no_room_for_the_terms() -> None:
    vocabulary = Vocabulary(TOKENS, [0], max_cache_bytes=200_000)
    for first in LETTERS:
        token_fsm = TokenFSM(choice([first + b + c for b in LETTERS for c in LETTERS]), vocabulary)
        follow(token_fsm, first + "a")
    del token_fsm
    assert vocabulary.masks.nbytes <= 100_000


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("pcg"), st.integers(0, 6), st.integers(0, 40), st.sampled_from([None, "x", "y"])),
    max_size=40,
)


@given(OPERATIONS, st.integers(1, 120))
def test_a_cache_counts_what_it_holds(operations: list[tuple[str, int, int, str | None]], cap: int) -> None:
    cache: ByteCache[int, object] = ByteCache(cap)
    for what, key, nbytes, owner in operations:
        if what == "p":
            value = object()
            assert cache.put(key, value, nbytes, owner) is value
            assert cache.get(key) in (value, None)
        elif what == "c" and owner is not None:
            cache.charge(owner, nbytes)
        else:
            cache.get(key)
        owners = {owner for _, _, owner in cache._entries.values()} - {None}
        assert owners == set(cache._owners)
        held = sum(nbytes for _, nbytes, _ in cache._entries.values())
        assert held + sum(nbytes for _, nbytes in cache._owners.values()) == cache.nbytes
        assert cache.nbytes <= cap or len(cache) <= 1


def test_clearing_forgets_owners_too() -> None:
    cache: ByteCache[str, np.ndarray] = ByteCache(100)
    cache.put("a", np.zeros(1), 10, owner="o")
    cache.charge("o", 50)
    cache.clear()
    assert (cache.nbytes, len(cache), cache.has_uncharged("o")) == (0, 0, False)


@pytest.mark.parametrize("text", ["abc", "x" * 500])
def test_the_memory_of_a_term_grows_with_it(text: str) -> None:
    assert memory(choice([text]).node) < memory(choice([text, "y" * 5000, "z"]).node)
