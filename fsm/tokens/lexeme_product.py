"""`LexemeProduct`: the product of a term that may begin with many bytes, such as a name or the inside of a comment, with the token trie
below one node, as arrays: the tokens that end inside, and where tokens leave it, by the byte with which they do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.lazy_dfa import Automaton
from fsm.terms.node import Node
from fsm.tokens.trie import Trie
from fsm.tokens.walk import finish, sweep

MIN_MARKED = 3_000  # nodes; with more, an array of marks for all nodes costs less than a search
_Nodes = NDArray[np.int32]


class LexemeProduct:
    """The product of a regular term that may begin with many bytes and the trie below a node, for all that may follow it.

    Attributes:
        token_ids: the tokens that end inside.
        leaving: the nodes after a text of the term with a byte that does not continue it, and `staying`: with one that may.
        continuing: the bytes that may continue the term after a text of it.

    Cost: 0.1 to 4 ms for 131,072 tokens.
    """

    def __init__(self, term: Node, trie: Trie, node: int) -> None:
        automaton = Automaton(term)
        start = Automaton.initial_state
        inside = list[_Nodes]()
        ends = [np.array([node] if automaton.is_accepting(start) else [], np.int32)]
        accepts = np.zeros(64, bool)
        tail: list[tuple[int, int]] = []
        states = {start}
        for first, codes, rows in sweep(automaton, trie, start, node, tail):
            alive = np.flatnonzero(codes)
            here = rows.states(codes[alive])
            for state in np.unique(here).tolist():
                states.add(state)
            if len(automaton) > len(accepts):
                accepts = np.concatenate([accepts, np.zeros(len(automaton), bool)])
            accepts[[state for state in states if automaton.is_accepting(state)]] = True
            found = (alive + first).astype(np.int32)
            inside.append(found)
            ends.append(found[accepts[here]])
        rest = [(child, state) for _, child, state in finish(automaton, trie, tail)]
        states.update(state for _, state in rest)
        inside.append(np.array([child for child, _ in rest], np.int32))
        ends.append(np.array([child for child, state in rest if automaton.is_accepting(state)], np.int32))
        self.token_ids, _ = trie.labels_of(np.concatenate(inside))
        self.continuing = 0
        for state in states:
            if automaton.is_accepting(state):
                for byte in automaton.moves(state):
                    self.continuing |= 1 << byte
        children, _ = trie.children_of(np.concatenate(ends))
        if len(children) < MIN_MARKED:
            goes_on = np.isin(children, np.concatenate(inside))
        else:
            is_inside = np.zeros(len(trie), bool)
            is_inside[np.concatenate(inside)] = True
            goes_on = is_inside[children]
        self.leaving, self.staying = children[~goes_on], children[goes_on]
        self._trie = trie
        self._known: dict[int, list[tuple[int, _Nodes]]] = {}

    @property
    def nbytes(self) -> int:
        """The memory in bytes, with some of what is kept of it."""
        return 2_000 + self.token_ids.nbytes + 2 * (self.leaving.nbytes + self.staying.nbytes)

    def exits(self, mask: int) -> list[tuple[int, _Nodes]]:
        """The bytes of a mask with which some token leaves, each with the nodes that are reached with it."""
        known = self._known.get(mask)
        if known is None:
            steps = self.leaving
            if mask & self.continuing:
                steps = np.concatenate([steps, self.staying])
            found = self._trie.byte[steps]
            present = np.flatnonzero(np.bincount(found, minlength=256)).tolist()
            known = [(byte, steps[found == byte]) for byte in present if mask >> byte & 1]
            if len(self._known) > 64:
                self._known.clear()
            self._known[mask] = known
        return known
