"""Masks of grammars over a real vocabulary: narrow walks, loops and jumps against one plain walk of all tokens."""

from __future__ import annotations

import numpy as np
import pytest

from fsm import TokenFSM, Vocabulary, bitmask, grammar
from fsm.tokens.walk import walk_wide
from tests import grammars
from tests.vocabularies import Tokens

TEXTS = {
    "ARITHMETIC": "(price + 1.5 * quantity) / 100 - (rate - 3.25e2) * -(a + b)",
    "JSON": '{"name": "Ana \\"N\\"", "tags": ["two words", -3e10, true, null], "more": {"n": [[1, 2], [], {}]}}',
    "SQL": "SELECT name, city FROM customers WHERE (city = 'São Paulo' AND total >= 10) OR region < 12 LIMIT 25",
    "CHESS": "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. O-O exd5+ 1-0",
    "CSV": 'name,city\nAna Novak,"Zürich, ""CH"""\n',
    "TEMPLATES": "one TWO three;",
    "STATEMENTS": "if total_2 then let ifx = 1..2.5;\nprinter = /* a * b **/ x; print y;",
}


@pytest.fixture(scope="module")
def vocabulary(tekken: tuple[Tokens, list[int]]) -> Vocabulary:
    return Vocabulary(*tekken)


@pytest.mark.parametrize("name", TEXTS)
def test_masks_along_a_text_are_those_of_a_plain_walk(name: str, vocabulary: Vocabulary) -> None:
    fsm = TokenFSM(grammar(vars(grammars)[name]), vocabulary)
    plain = TokenFSM(fsm.expression, vocabulary).automaton
    text = TEXTS[name].encode()
    for length in range(len(text) + 1):
        state = fsm.automaton.next_state(fsm.initial_state, text[:length])
        expected = bitmask.pack(walk_wide(plain, vocabulary.trie, plain.next_state(plain.initial_state, text[:length])))
        if fsm.is_accepting(state):
            expected |= vocabulary.eos_mask
        assert np.array_equal(expected, fsm.bitmask(state)), text[:length]
    assert fsm.is_accepting(state)
