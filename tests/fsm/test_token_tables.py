"""Tables of all states against the lazy automaton; vocabularies with gaps against a search over all rows of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import (
    BudgetExceeded,
    EmptyLanguage,
    Expression,
    TokenFSM,
    TokenNotAllowed,
    TokenTables,
    Vocabulary,
    VocabularyGap,
    choice,
    grammar,
    json_schema,
    regex,
)
from fsm.automaton.lazy_dfa import DEAD, Automaton
from tests.examples import examples
from tests.fsm.test_expression import LANGUAGES, Language
from tests.fsm.test_token_fsm import BYTES, VOCABULARIES, loops

EXPRESSIONS = st.one_of(loops(), LANGUAGES.map(lambda language: language[0]))
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["order", "offer"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"enum": ["a", "ab"]}, "maxItems": 2},
    },
    "required": ["kind", "count"],
    "additionalProperties": False,
}


def lazy_next(fsm: TokenFSM, state: int, token_id: int) -> int:
    try:
        return fsm.next_state(state, token_id)
    except TokenNotAllowed:
        return DEAD


def tables_of(expression: Expression, tokens: list[bytes | None], eos: list[int]) -> tuple[TokenFSM, TokenTables] | None:
    try:
        fsm = TokenFSM(expression, Vocabulary(tokens, eos))
        return fsm, fsm.to_tensors(max_states=300)
    except (EmptyLanguage, BudgetExceeded):
        return None


@given(EXPRESSIONS, VOCABULARIES, st.booleans())
@settings(max_examples=examples(18), deadline=None)
def test_tables_say_what_the_lazy_automaton_says_of_every_state_and_token(
    expression: Expression, tokens: list[bytes | None], has_two_ends: bool
) -> None:
    made = tables_of(expression, tokens, [0, len(tokens) - 1] if has_two_ends else [0])
    if made is None or len(made[1].transitions) * len(tokens) > 20_000:
        return
    fsm, tables = made
    assert tables.states[tables.initial_state] == fsm.initial_state
    assert len(tables.transitions.T) == len(np.unique(tables.transitions.T, axis=0)), "of two classes alike one would do"
    assert sorted(set(tables.token_class.tolist())) == list(range(len(tables.transitions.T)))
    for number, state in enumerate(tables.states.tolist()):
        if number == DEAD:
            continue
        assert fsm.is_accepting(state) == tables.is_accepting[number]
        assert fsm.bitmask(state).tolist() == tables.bitmask(number).tolist()
        with pytest.MonkeyPatch.context() as patch:  # what a refusal says takes nine tenths of the time, and is not asked for here
            patch.setattr(TokenFSM, "explain", lambda *_: "refused")
            expected = [lazy_next(fsm, state, token_id) for token_id in range(len(tokens))]
        assert expected == tables.states[tables.transitions[number, tables.token_class]].tolist()


def test_the_arrays_have_the_promised_shapes_and_are_read_only() -> None:
    fsm = TokenFSM(json_schema(SCHEMA), Vocabulary(BYTES, [0]))
    tables = fsm.to_tensors()
    states, classes = tables.transitions.shape
    shapes = {
        "transitions": ((states, classes), np.int32),
        "token_class": ((257,), np.int32),
        "is_accepting": ((states,), np.bool_),
        "masks": ((len(tables.masks), 9), np.int32),
        "mask_index": ((states,), np.int32),
        "states": ((states,), np.int32),
    }
    total = 0
    for name, (shape, kind) in shapes.items():
        array = getattr(tables, name)
        assert (shape, kind) == (array.shape, array.dtype)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        total += array.nbytes
    assert total == tables.nbytes
    assert classes < 60
    assert len(tables.masks) < states


def test_the_dead_state_leads_nowhere_and_allows_nothing() -> None:
    tables = TokenFSM(regex("ab*"), Vocabulary(BYTES, [0])).to_tensors()
    assert not tables.transitions[DEAD].any()
    assert not tables.bitmask(DEAD).any()
    assert not tables.is_accepting[DEAD]
    assert tables.next_state(tables.initial_state, 0) == DEAD


def test_states_and_bytes_have_a_budget_and_the_errors_name_it() -> None:
    fsm = TokenFSM(regex("(a|b)*a(a|b){9}"), Vocabulary(BYTES, [0]))
    with pytest.raises(BudgetExceeded, match="max_states") as caught:
        fsm.to_tensors(max_states=1000)
    assert (caught.value.limit, caught.value.value) == ("max_states", 1000)
    with pytest.raises(BudgetExceeded, match="max_bytes"):
        fsm.to_tensors(max_bytes=5000)
    with pytest.raises(BudgetExceeded, match="max_bytes"):
        TokenFSM(regex("[a-z]{0,40}"), Vocabulary(BYTES, [0])).to_tensors(max_bytes=100)
    assert fsm.to_tensors(max_states=1024).is_accepting.shape == (1025,)


def test_a_table_goes_on_where_the_rows_are_full() -> None:
    fsm = TokenFSM(regex("(a|b)*a(a|b){6}"), Vocabulary([*BYTES, b"abba", b"bab"], [0]))
    expected = fsm.to_tensors()
    small = TokenFSM(regex("(a|b)*a(a|b){6}"), Vocabulary([*BYTES, b"abba", b"bab"], [0]))
    small.automaton.max_row_bytes = 2048
    small.automaton.forget_rows()
    tables = small.to_tensors()
    assert expected.transitions.shape == tables.transitions.shape
    state = other = tables.initial_state
    for token_id in (98, 257, 258, 99, 257, 98, 98, 99):
        state, other = expected.next_state(state, token_id), tables.next_state(other, token_id)
        assert expected.bitmask(state).tolist() == tables.bitmask(other).tolist()


TOKENS = st.lists(st.text("abc", min_size=1, max_size=3).map(str.encode), min_size=1, max_size=6, unique=True)


def alive_states(automaton: Automaton, tokens: list[bytes]) -> tuple[dict[int, dict[bytes, int]], set[int]]:
    """Every state that tokens reach, with where each token leads; and those from which tokens reach an accepting state."""
    steps: dict[int, dict[bytes, int]] = {}
    queue = [automaton.initial_state]
    for state in queue:
        found = {token: automaton.next_state(state, token) for token in tokens}
        steps[state] = {token: target for token, target in found.items() if target != DEAD}
        queue += [target for target in dict.fromkeys(steps[state].values()) if target not in steps and target not in queue]
        assert len(queue) < 2_000
    alive = {state for state in steps if automaton.is_accepting(state)}
    while True:
        more = {state for state, found in steps.items() if state not in alive and alive & set(found.values())}
        if not more:
            return steps, alive
        alive |= more


def check_all(expression: Expression, tokens: list[bytes]) -> None:
    vocabulary = Vocabulary([None, *tokens], [0])
    steps, alive = alive_states(Automaton(expression.node), tokens)
    if 1 not in alive:
        with pytest.raises((VocabularyGap, EmptyLanguage)):
            TokenFSM(expression, vocabulary)
        return
    token_fsm = TokenFSM(expression, vocabulary)
    tables = token_fsm.to_tensors()
    pairs, seen = [(1, token_fsm.initial_state, 1)], {1}
    for state, ours, row in pairs:
        allowed = {token: target for token, target in steps[state].items() if target in alive}
        ends = [0] if token_fsm.is_accepting(ours) else []
        assert ends + sorted(tokens.index(token) + 1 for token in allowed) == token_fsm.allowed_token_ids(ours).tolist()
        assert token_fsm.bitmask(ours).tolist() == tables.bitmask(row).tolist()
        for token_id, token in enumerate(tokens, 1):
            assert (token in allowed) == token_fsm.explain(ours, token_id).allowed
            if token not in allowed:
                assert tables.next_state(row, token_id) == 0
                with pytest.raises(TokenNotAllowed):
                    token_fsm.next_state(ours, token_id)
            elif allowed[token] not in seen:
                seen.add(allowed[token])
                pairs.append((allowed[token], token_fsm.next_state(ours, token_id), tables.next_state(row, token_id)))


@given(LANGUAGES, TOKENS)
@settings(max_examples=examples(80))
def test_a_token_is_allowed_where_tokens_after_it_spell_a_text(language: Language, tokens: list[bytes]) -> None:
    check_all(language[0], tokens)


@given(st.lists(st.text("abc", max_size=6), min_size=1, max_size=4), TOKENS, st.sampled_from(["", "{2}", "{0,3}", "{5}", "*", "{7,}"]))
@settings(max_examples=examples(80))
def test_the_same_for_words_in_loops(words: list[str], tokens: list[bytes], count: str) -> None:
    check_all(regex(f"({'|'.join(words)}){count}"), tokens)


def test_the_first_token_of_a_text_that_cannot_be_finished_is_not_allowed() -> None:
    token_fsm = TokenFSM(choice(["ab", "aac"]), Vocabulary([None, b"a", b"b"], [0]))
    state = token_fsm.next_state(token_fsm.initial_state, 1)
    assert token_fsm.allowed_token_ids(state).tolist() == [2]
    assert "no tokens of this vocabulary spell a text that follows it" in str(token_fsm.explain(state, 1))


def test_counts_beyond_one_token_matter() -> None:
    token_fsm = TokenFSM(regex("a{41}|b"), Vocabulary([None, b"aa", b"b"], [0]))
    assert token_fsm.allowed_token_ids(token_fsm.initial_state).tolist() == [2]
    with pytest.raises(VocabularyGap, match="cannot spell any text"):
        TokenFSM(regex("a{41}"), Vocabulary([None, b"aa", b"b"], [0]))


def test_bytes_that_are_no_part_of_a_character_may_be_missing() -> None:
    tokens = [None, *(bytes((byte,)) for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5)]
    assert Vocabulary(tokens, [0]).spells_everything
    assert not Vocabulary(tokens[:-1], [0]).spells_everything


TEXT = [None, *(bytes((byte,)) for byte in range(0x20, 0x7F)), "é".encode(), "日本".encode()]
"""A vocabulary of characters: no byte of `é` is a token, `日` is one only with `本`."""


def test_characters_that_are_tokens_only_as_a_whole() -> None:
    vocabulary = Vocabulary(TEXT, [0])
    token_fsm = TokenFSM(regex("日.|[éß]{2}x?|日本$"), vocabulary)
    assert token_fsm.allowed_token_ids(token_fsm.initial_state).tolist() == [96, 97]
    state = token_fsm.next_state(token_fsm.initial_state, 97)
    assert token_fsm.allowed_token_ids(state).tolist() == [0]
    with pytest.raises(VocabularyGap):
        TokenFSM(regex("日[^本]"), vocabulary)


@pytest.mark.parametrize("lacking", [b"}", b"]", b'"', b":", b","])
@pytest.mark.parametrize("order", ["schema", "any"])
def test_recursive_schemas_are_decided_though_a_byte_is_missing(lacking: bytes, order: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "b": {"type": ["array", "null"], "items": {"$ref": "#"}}},
        "required": ["b"],
        "additionalProperties": False,
    }  # fmt: skip
    vocabulary = Vocabulary([token for token in TEXT if token != lacking], [0])
    expression = json_schema(schema, key_order=order)
    if lacking in (b"}", b'"', b":"):
        with pytest.raises(VocabularyGap):
            TokenFSM(expression, vocabulary)
        return
    token_fsm = TokenFSM(expression, vocabulary)
    state = token_fsm.initial_state
    for byte in b'{"b": ':
        state = token_fsm.next_state(state, vocabulary.tokens.index(bytes((byte,))))
    allowed = {vocabulary.tokens[i] for i in token_fsm.allowed_token_ids(state).tolist()}
    assert ({b"n"} if lacking == b"]" else {b"n", b"["}) == allowed


@pytest.mark.parametrize(("lacking", "allowed"), [(b"]", {b"x"}), (b"y", {b"x", b"["}), (b"-", {b"x", b"["}), (b"x", set())])
def test_recursive_grammars_are_decided_though_a_byte_is_missing(lacking: bytes, allowed: set[bytes]) -> None:
    expression = grammar('start: NAME | "[" start ("-" start)* "]"\nNAME: /x+y?/')
    vocabulary = Vocabulary([token for token in TEXT if token != lacking], [0])
    if not allowed:
        with pytest.raises(VocabularyGap):
            TokenFSM(expression, vocabulary)
        return
    token_fsm = TokenFSM(expression, vocabulary)
    assert allowed == {vocabulary.tokens[i] for i in token_fsm.allowed_token_ids(1).tolist()}


def test_a_token_after_which_no_end_is_found_is_not_allowed_and_the_text_can_be_finished() -> None:
    vocabulary = Vocabulary([None, b"a", b"ab", b"x", b"abbb"], [0])
    token_fsm = TokenFSM(grammar('start: "a" start? "b" | "x"'), vocabulary)
    allowed, state, steps = token_fsm.allowed_token_ids(token_fsm.initial_state).tolist(), token_fsm.initial_state, 0
    assert {2, 3} <= set(allowed)
    while not token_fsm.is_accepting(state):
        token_id = token_fsm.allowed_token_ids(state).tolist()[-1]
        state = token_fsm.next_state(state, token_id)
        steps += 1
    assert steps < 5


def test_a_language_that_may_have_no_text_within_the_budget_is_refused_when_it_is_made() -> None:
    with pytest.raises(BudgetExceeded, match="max_gap_search"):
        TokenFSM(grammar('start: "a" start "b" | "acb"'), Vocabulary([None, b"a", b"c", b"bd"], [0]))
