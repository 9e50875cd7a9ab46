"""Products of names and comments with the trie, against a loop over tokens."""

from __future__ import annotations

from random import Random

import pytest

from fsm import bitmask, regex
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.tokens import lexeme_product
from fsm.tokens.lexeme_product import LexemeProduct
from fsm.trie import Trie

PATTERNS = [r"[a-z_]*", r"[a-c]+", r"[^\n]*", r'[^"]*"', r"([^*]|\*+[^*/])*\*+/", r"[a-c]{2,3}", r"[a-z]+[0-9]?", r"[abé]*é"]
LETTERS = ["a", "b", "c", "z", "_", "0", "9", " ", "\n", '"', "*", "/", "é"]


@pytest.mark.parametrize("is_marked", [False, True], ids=["searched", "marked"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_product_has_the_tokens_that_end_inside_and_the_nodes_where_others_leave(
    pattern: str, is_marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_marked:
        monkeypatch.setattr(lexeme_product, "MIN_MARKED", 0)
    random, term = Random(pattern), regex(pattern).node
    texts = ["".join(random.choices(LETTERS, k=random.randint(0, 6))).encode() for _ in range(400)]
    trie, automaton = Trie(texts), Automaton(term)
    paths = {Trie.root: b""}
    for node in range(len(trie)):
        paths |= {child: paths[node] + bytes((byte,)) for child, byte in trie.children(node)}
    for start in (Trie.root, *random.sample([node for node in paths if trie.below(node)], k=5)):
        product, before = LexemeProduct(term, trie, start), paths[start]
        state_of = {node: automaton.next_state(1, path[len(before) :]) for node, path in paths.items() if path.startswith(before)}
        inside = [i for i, text in enumerate(texts) if len(text) > len(before) and state_of.get(int(trie.ends[i]), DEAD) != DEAD]
        assert inside == bitmask.to_ids(product.inside).tolist()
        ends = [node for node, state in state_of.items() if state != DEAD and automaton.is_accepting(state)]
        after = {(byte, child) for node in ends for child, byte in trie.children(node)}
        assert product.bytes == sum(1 << byte for byte in {byte for byte, _ in after})
        for byte in range(256):
            assert {child for own, child in after if own == byte} == set(product.exits(byte).tolist())
