"""Tokens that leave a language after a text of it, against a loop over all prefixes of all tokens."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import BudgetExceeded, EmptyLanguage, Expression, TokenFSM, Vocabulary, VocabularyGap, gbnf, grammar, regex, special
from fsm.automaton.lazy_dfa import DEAD
from fsm.bitmask import to_ids
from tests.examples import examples
from tests.fsm.test_expression import LANGUAGES, Language

PIECES = ["a", "b", "é", "1", "2", ".", ",", '"', " ", "\n", "x", "-", "}", "k", "S"]


@cache
def _vocabulary(seed: int, *, lacks_bytes: bool = False) -> Vocabulary:
    rng = random.Random(seed)
    texts = {bytes((byte,)) for byte in (b"a1. " if lacks_bytes else range(256))}
    for _ in range(200):
        data = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 6))).encode()
        texts.add(data[: rng.randint(1, len(data))])
    return Vocabulary([None, *sorted(texts)], [0])


def _plain(fsm: TokenFSM, state: int) -> dict[int, int]:
    """For each token that leaves, the size of its longest beginning that completes a text."""
    allowed = {*fsm.allowed_token_ids(state).tolist()}
    found = {}
    for token_id, token in enumerate(fsm.vocabulary.tokens):
        for size in range(len(token or b"") - 1, -1, -1):
            target = fsm.automaton.next_state(state, (token or b"")[:size])
            if token_id not in allowed and target != DEAD and fsm.automaton.is_accepting(target):
                found[token_id] = size
                break
    return found


def _check_along_a_text(expression: Expression, vocabulary: Vocabulary, seed: int) -> int:
    """Compare at up to six states of a random text; return how many tokens leave."""
    fsm, rng = TokenFSM(expression, vocabulary), random.Random(seed)
    state, count = fsm.initial_state, 0
    for _ in range(6):
        expected = _plain(fsm, state)
        if not vocabulary.spells_everything:
            expected = {token_id: size for token_id, size in expected.items() if not size}
        found = fsm.leaving(state)
        assert expected == dict(zip(found.token_ids.tolist(), found.sizes.tolist(), strict=True))
        allowed = fsm.allowed_token_ids(state).tolist()
        assert sorted({*allowed, *expected}) == to_ids(fsm.open_bitmask(state)).tolist()
        tokens = vocabulary.tokens
        for token_id in rng.sample(sorted(expected), min(len(expected), 5)):
            text = (tokens[token_id] or b"")[: expected[token_id]]
            together = [i for i, size in expected.items() if (tokens[i] or b"")[:size] == text]
            size, token_ids = found.with_same_text(token_id) or (-1, None)
            assert (len(text), sorted(together)) == (size, [] if token_ids is None else token_ids.tolist())
        assert all(found.with_same_text(token_id) is None for token_id in allowed)
        count += len(expected)
        going_on = [token_id for token_id in allowed if token_id]
        if not going_on:
            break
        state = fsm.next_state(state, rng.choice(going_on))
    return count


@given(LANGUAGES, st.integers(0, 2), st.integers(0, 1 << 30))
@settings(max_examples=examples(40))
def test_random_languages(language: Language, vocabulary: int, seed: int) -> None:
    try:
        _check_along_a_text(language[0], _vocabulary(vocabulary), seed)
    except (EmptyLanguage, BudgetExceeded):
        return


@pytest.mark.parametrize("lacks_bytes", [False, True])
@pytest.mark.parametrize(
    "expression",
    [
        regex("[0-9]+"),
        regex(r"[0-9]+(\.[0-9]+)?"),
        regex("[ab1 ]{1,30}"),
        regex("a|1 a|aa1"),
        regex("(a|1){2,}( a)*"),
        grammar('start: (NAME | INT)+\nNAME: /[a-z]+/\nINT: /[0-9]+/\n%ignore " "'),
        gbnf('root ::= [a-z]+ ("." root)?'),
    ],
    ids=repr,
)
def test_languages_without_an_end(expression: Expression, lacks_bytes: bool) -> None:
    vocabulary = _vocabulary(0, lacks_bytes=lacks_bytes)
    assert vocabulary.spells_everything is not lacks_bytes
    counts = [_check_along_a_text(expression, vocabulary, seed) for seed in range(6)]
    assert min(counts) > 20


@pytest.mark.parametrize("pattern", ["[0-9]+", "a|1 a|aa1", "(a|1){2,}( a)*", r'"[^"]*"', "[ab1 ]{1,30}"])
def test_both_walks_find_the_same(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (0, 10**9):
        monkeypatch.setattr("fsm.tokens.leaving._MAX_STEPS", most)
        fsm = TokenFSM(regex(pattern), _vocabulary(1))
        states = [fsm.initial_state]
        for state in states:
            going_on = [token_id for token_id in fsm.allowed_token_ids(state).tolist() if token_id]
            following = dict.fromkeys(fsm.next_state(state, token_id) for token_id in going_on[:8])
            states += [one for one in following if one not in states][: 8 - len(states)]
        found.append([[array.tolist() for array in fsm.leaving(state)] for state in states])
    assert found[0] == found[1]
    assert any(ids for ids, _, _ in found[0])


def test_one_text_may_be_left() -> None:
    fsm = TokenFSM(regex("a?b1(,[ab]+)?!|k"), _vocabulary(1))
    for text, only in (("", False), ("a", False), ("b1", False), ("b1,a", False), ("b1!", True), ("k", True)):
        assert fsm.has_one_text(fsm.automaton.next_state(fsm.initial_state, text.encode())) is only
    assert TokenFSM(regex("a?b1é"), _vocabulary(1)).has_one_text(fsm.initial_state) is False
    assert TokenFSM(regex("b1é"), _vocabulary(1)).has_one_text(fsm.initial_state) is True


def test_a_vocabulary_that_spells_one_end_only() -> None:
    with pytest.raises(VocabularyGap):
        TokenFSM(regex("k+"), Vocabulary([None, b"1", b"k.", b"a"], [0]))
    fsm = TokenFSM(regex("1k?"), Vocabulary([None, b"1", b"k.", b"a", b"1k."], [0]))
    assert fsm.leaving(fsm.initial_state).token_ids.tolist() == []
    assert fsm.leaving(fsm.next_state(fsm.initial_state, 1)).token_ids.tolist() == [1, 3, 4]  # `k.` leaves after `k`, which nothing spells


def test_special_tokens_stay_where_they_are_symbols_and_never_leave() -> None:
    vocabulary = Vocabulary([None, None, None, *(bytes((byte,)) for byte in range(256))], [0], {1: "<call>", 2: "<other>"})
    fsm = TokenFSM(regex("a+") + (special("<call>") | ""), vocabulary)
    state = fsm.next_state(fsm.initial_state, 3 + ord("a"))
    assert to_ids(fsm.open_bitmask(state)).tolist() == [0, 1, *range(3, 259)]  # bytes that are in no text leave, too
    assert {1, 2, 3 + ord("a")}.isdisjoint(fsm.leaving(state).token_ids.tolist())
    after = fsm.next_state(state, 1)
    assert fsm.leaving(after).token_ids.tolist() == [*range(3, 259)]
