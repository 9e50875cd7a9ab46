"""Runs of optional fields, and counted digits that divide, against every text written out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsm import Expression, ExpressionError, TokenFSM, Vocabulary
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.terms import node as nodes
from fsm.terms.members import FieldList, fields
from fsm.terms.node import EMPTY
from tests.fsm.test_token_fsm import check_everywhere

KEYS = [b"a:", b"ab:", b"b:", b"ba:", b"c:"]
END = nodes.literal(b"}")


@given(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), st.sets(st.integers(0, 4)), st.booleans())
def test_a_run_is_every_selection_in_order(keys: list[bytes], dead: set[int], last_is_required: bool) -> None:
    values = tuple(EMPTY if place in dead else nodes.literal(b"1") for place in range(len(keys)))
    stop = EMPTY if last_is_required else END
    run = fields(FieldList(tuple(keys), values, nodes.literal(b","), stop, END))
    automaton = Automaton(run)
    wanted = set()
    for chosen in product([False, True], repeat=len(keys)):
        picked = [place for place, is_in in enumerate(chosen) if is_in]
        if picked and not dead.intersection(picked) and (chosen[-1] or not last_is_required):
            wanted.add(b",".join(keys[place] + b"1" for place in picked) + b"}")
    texts = {b",".join(key + b"1" for key in some) + b"}" for n in range(1, 4) for some in product(KEYS, repeat=n)}
    assert {text for text in texts | wanted if automaton.accepts(text)} == wanted
    assert automaton.is_empty() == (not wanted)


def test_a_run_equal_in_content_is_the_same_term() -> None:
    first, second = (fields(FieldList((b"a", b"b"), (END, END), nodes.literal(b","), END, END)) for _ in range(2))
    assert first is second


def test_a_word_that_begins_another_is_refused() -> None:
    for words in ((b"a", b"ab"), (b"a", b"a"), ()):
        with pytest.raises(ExpressionError):
            FieldList(words, (END,) * len(words), END, END, END)


PIECES = st.sampled_from([*KEYS, b"a", b"b", b":", b"1", b",", b"1,a", b"1,b", b"}", b"ba", b"c:1", b"1}"])


@given(
    st.lists(st.sampled_from(KEYS), min_size=1, unique=True),
    st.sets(st.integers(0, 4)),
    st.booleans(),
    st.lists(st.lists(PIECES, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=30),
    st.data(),
)
@settings(deadline=None)
def test_masks_of_a_run_equal_a_walk_of_every_token(
    keys: list[bytes], dead: set[int], last_is_required: bool, texts: list[bytes], data: st.DataObject
) -> None:
    values = tuple(EMPTY if place in dead else nodes.literal(b"1") for place in range(len(keys)))
    run = fields(FieldList(tuple(keys), values, nodes.literal(b","), EMPTY if last_is_required else END, END))
    assume(not Automaton(run).is_empty())
    vocabulary = Vocabulary([None, *(bytes((b,)) for b in range(256)), *texts], [0])
    check_everywhere(TokenFSM(Expression(run), vocabulary), data)
    check_everywhere(TokenFSM(Expression(nodes.concat(run, nodes.literal(b"!"))), vocabulary), data)


@given(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), st.binary(max_size=6))
def test_reading_a_run_at_once_is_reading_it_byte_by_byte(keys: list[bytes], text: bytes) -> None:
    run = fields(FieldList(tuple(keys), (nodes.literal(b"1"),) * len(keys), nodes.literal(b","), END, END))
    for data in (text, keys[0] + text, keys[0][:1] + text, keys[-1] + b"1," + keys[-1][:1]):
        automaton = Automaton(run)
        state = automaton.initial_state
        for byte in data:
            state = automaton.moves(state).get(byte, DEAD) if state else DEAD
        at_once = Automaton(run)
        assert at_once.nodes[at_once.next_state(at_once.initial_state, data)] is automaton.nodes[state]
