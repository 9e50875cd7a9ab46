"""The small automata whose products with the token trie are shared: of a loop over single bytes, and of a prefix such as a number."""

from __future__ import annotations

from functools import lru_cache

from fsm.automaton.byte_dfa import FEW_BYTES
from fsm.automaton.lazy_dfa import PREFIX_KINDS, Automaton
from fsm.terms import node as nodes
from fsm.terms.node import Node

MAX_TERMS = 40


@lru_cache(maxsize=256)
def byte_loop(body: Node) -> Automaton:
    """The automaton of `body*`."""
    return Automaton(nodes.repeat(body))


def narrow_automaton(term: Node) -> Automaton | None:
    """The automaton of a small term with few first bytes; None for others, where a walk of the whole state costs no more.

    Cost: 1 us per term inside.
    """
    seen, queue = {term}, [term]
    for node in queue:
        if node.kind not in PREFIX_KINDS:
            return None
        new = [child for child in nodes.children(node) if child not in seen]
        seen.update(new)
        queue += new
        if len(seen) > MAX_TERMS:
            return None
    automaton = Automaton(term)
    return automaton if len(automaton.moves(automaton.initial_state)) <= FEW_BYTES else None
