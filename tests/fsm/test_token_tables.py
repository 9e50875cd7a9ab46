"""Tables of all states against the lazy automaton: along random walks, and state by state, token by token."""

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
    json_schema,
    regex,
)
from fsm.automaton.lazy_dfa import DEAD
from tests.fsm.test_expression import LANGUAGES
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


def tables_of(
    expression: Expression, tokens: list[bytes | None], eos: list[int]
) -> tuple[TokenFSM, TokenTables] | None:
    try:
        fsm = TokenFSM(expression, Vocabulary(tokens, eos))
        return fsm, fsm.to_tensors(max_states=300)
    except (EmptyLanguage, BudgetExceeded):
        return None


@given(EXPRESSIONS, VOCABULARIES)
@settings(max_examples=20, deadline=None)
def test_tables_say_what_the_lazy_automaton_says_of_every_state_and_token(
    expression: Expression, tokens: list[bytes | None]
) -> None:
    made = tables_of(expression, tokens, [0])
    if made is None or made[1].num_states * len(tokens) > 20_000:
        return
    fsm, tables = made
    assert tables.states[tables.initial_state] == fsm.initial_state
    for number, state in enumerate(tables.states.tolist()):
        if number == DEAD:
            continue
        assert fsm.is_accepting(state) == tables.is_accepting[number]
        assert fsm.bitmask(state).tolist() == tables.bitmask(number).tolist()
        with (
            pytest.MonkeyPatch.context() as patch
        ):  # what a refusal says takes nine tenths of the time, and is not asked for here
            patch.setattr(TokenFSM, "explain", lambda *_: "refused")
            expected = [lazy_next(fsm, state, token_id) for token_id in range(len(tokens))]
        assert expected == tables.states[tables.transitions[number, tables.token_class]].tolist()


@given(EXPRESSIONS, VOCABULARIES, st.data())
@settings(max_examples=30, deadline=None)
def test_tables_agree_with_the_lazy_automaton_along_random_walks(
    expression: Expression, tokens: list[bytes | None], data: st.DataObject
) -> None:
    eos = [0, *([len(tokens) - 1] if data.draw(st.booleans()) else [])]
    made = tables_of(expression, tokens, eos)
    if made is None:
        return
    fsm, tables = made
    state, number = fsm.initial_state, tables.initial_state
    for _ in range(10):
        assert fsm.bitmask(state).tolist() == tables.bitmask(number).tolist()
        assert fsm.is_accepting(state) == tables.is_accepting[number]
        refused = data.draw(st.integers(0, len(tokens) - 1))
        assert lazy_next(fsm, state, refused) == tables.states[tables.next_state(number, refused)]
        going_on = [t for t in fsm.allowed_token_ids(state).tolist() if t not in eos]
        if not going_on:
            return
        token_id = data.draw(st.sampled_from(going_on))
        state, number = fsm.next_state(state, token_id), tables.next_state(number, token_id)
        assert state == tables.states[number]


@given(EXPRESSIONS, VOCABULARIES)
@settings(max_examples=30, deadline=None)
def test_classes_are_as_few_as_can_be(expression: Expression, tokens: list[bytes | None]) -> None:
    made = tables_of(expression, tokens, [0])
    if made is not None:
        columns = made[1].transitions.T
        assert len(columns) == len(np.unique(columns, axis=0))
        assert sorted(set(made[1].token_class.tolist())) == list(range(len(columns)))


def test_the_arrays_have_the_promised_shapes_and_are_read_only() -> None:
    fsm = TokenFSM(json_schema(SCHEMA), Vocabulary(BYTES, [0]))
    tables = fsm.to_tensors()
    states, classes = tables.num_states, tables.num_classes
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
    assert fsm.to_tensors(max_states=1024).num_states == 1025


def test_a_table_goes_on_where_the_rows_are_full() -> None:
    fsm = TokenFSM(regex("(a|b)*a(a|b){6}"), Vocabulary([*BYTES, b"abba", b"bab"], [0]))
    expected = fsm.to_tensors()
    small = TokenFSM(regex("(a|b)*a(a|b){6}"), Vocabulary([*BYTES, b"abba", b"bab"], [0]))
    small.automaton.max_row_bytes = 2048
    small.automaton.forget_rows()
    tables = small.to_tensors()
    assert expected.num_states == tables.num_states
    state = other = tables.initial_state
    for token_id in (98, 257, 258, 99, 257, 98, 98, 99):
        state, other = expected.next_state(state, token_id), tables.next_state(other, token_id)
        assert expected.bitmask(state).tolist() == tables.bitmask(other).tolist()
