"""`forbidden`: the tokens that a difference `(base & ~language) rest` lacks because of `language`, by a depth-first product walk; its mask
is that of `base rest` without them. The walk follows trie, difference and the DFA of `language` only as far as they have bytes in common.
It returns None after `MAX_STEPS` steps, and where it is ambiguous whether the base has ended; then another strategy makes the mask.
`as_exclusion` reads such a term, such as `keys & ~(x-.*)`; the language is no list of words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.terms import node as nodes
from fsm.terms.node import Kind, Node
from fsm.tokens.trie import Trie

MAX_STEPS = 400  # steps of the walk; with more, a walk of all texts costs no more


def as_exclusion(node: Node) -> tuple[Node, Node] | None:
    """Read a term as `(base & ~language) rest`: `base rest` and the language, or None."""
    head, rest = nodes.first_and_rest(node)
    if head.kind is not Kind.INTERSECTION:
        return None
    excluded = [m for m in head.args if m.kind is Kind.COMPLEMENT and m.args[0].kind not in (Kind.LITERAL, Kind.WORDS)]
    others = [m for m in head.args if m not in excluded]
    if len(excluded) != 1 or not others:
        return None
    return nodes.concat(nodes.intersection(others), rest), excluded[0].args[0]


def forbidden(automaton: Automaton, trie: Trie, state: int, language: Node, first: int) -> NDArray[np.int32] | None:
    """The labels of `trie` for which `state`, a term that `as_exclusion` reads, is dead because of `language`.

    The rest may begin with the bytes of the 256-bit mask `first`. For some of the labels `base rest` may be dead as well. None where too
    much of the trie begins like a text of the language, and where it is ambiguous whether the base has ended.
    """
    excluded = Automaton(language)
    dead, steps = list[int](), 0
    stack = [(Trie.root, state, excluded.initial_state)]
    while stack:
        node, state, position = stack.pop()
        moves, theirs, branches = automaton.moves(state), excluded.moves(position), trie.branches(node)
        steps += min(len(theirs), len(branches)) + 4
        if steps > MAX_STEPS:
            return None
        after = (
            first if excluded.is_accepting(position) else 0
        )  # then the base must not end here, where `base rest` could
        for byte, (child, _, below) in branches.items():
            is_after = after >> byte & 1
            if byte not in theirs and not is_after:
                continue  # no excluded text begins so: the base alone decides
            target = moves.get(byte, DEAD)
            if target == DEAD:
                dead.append(child)
            elif is_after:
                return None  # the base may continue here or have ended, and only one of both is forbidden
            elif below:
                stack.append((child, target, theirs[byte]))
    return trie.texts_below(np.array(dead, np.int32))[1]
