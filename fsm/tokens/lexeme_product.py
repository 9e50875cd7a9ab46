"""`LexemeProduct`: the product of a term that may begin with many bytes, such as a name or the inside of a comment, with the token trie
below one node, as arrays: the tokens that end inside, and where tokens leave it, by the byte with which they do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.terms.node import Node
from fsm.tokens.walk import finish, sweep
from fsm.trie import Trie

MIN_MARKED = 3_000  # nodes; with more, an array of marks for all nodes costs less than a search
_Nodes = NDArray[np.int32]


class LexemeProduct:
    """The product of a regular term that may begin with many bytes and the trie below a node, for all that may follow it.

    Attributes:
        inside: the packed mask of the tokens that end inside; read-only.
        bytes: those with which tokens leave the term or go on in it, after a text of it, as a 256-bit mask.

    Cost: 0.1 to 8 ms for 131,072 tokens.
    """

    def __init__(self, term: Node, trie: Trie, node: int) -> None:
        automaton = Automaton(term)
        start = Automaton.initial_state
        accepts = np.zeros(1, bool)
        inside = [np.empty(0, np.int32)]
        ends = [np.array([node] if automaton.is_accepting(start) else [], np.int32)]
        tail: list[tuple[int, int]] = []
        for first, codes, rows in sweep(automaton, trie, start, node, tail):
            states = rows.states(codes)
            accepts = _accepting(automaton, accepts)
            inside.append(np.flatnonzero(codes).astype(np.int32) + np.int32(first))
            ends.append(np.flatnonzero(accepts[states]).astype(np.int32) + np.int32(first))
        rest = [(child, state) for _, child, state in finish(automaton, trie, tail)]
        inside.append(np.array([child for child, _ in rest], np.int32))
        ends.append(np.array([child for child, state in rest if automaton.is_accepting(state)], np.int32))
        self._trie, self._ends, self._marks = trie, np.concatenate(ends), np.empty(0, np.uint8)
        if len(self._ends) < MIN_MARKED:
            after = trie.byte[trie.children_of(self._ends)[0]]
        else:
            is_end = np.zeros(len(trie), bool)
            is_end[self._ends] = True
            self._marks = np.packbits(is_end, bitorder="little")
            after = trie.byte[1:][is_end[trie.parent[1:]]]
        self.bytes = sum(1 << byte for byte in np.flatnonzero(np.bincount(after, minlength=256)).tolist())
        self.inside = _texts_at(trie, np.concatenate(inside))
        self.inside.setflags(write=False)
        self._exits: dict[int, _Nodes] = {}

    @property
    def nbytes(self) -> int:
        """The memory in bytes, with some of what is kept of it."""
        return 2_000 + self.inside.nbytes + 3 * self._ends.nbytes + self._marks.nbytes

    def exits(self, byte: int) -> _Nodes:
        """The nodes that are reached with a byte after a text of the term. Cost: a pass over all nodes with that byte, once."""
        known = self._exits.get(byte)
        if known is None:
            known = self._exits[byte] = self._find_exits(byte)
        return known

    def _find_exits(self, byte: int) -> _Nodes:
        trie = self._trie
        if not len(self._marks):
            children, _ = trie.children_of(self._ends)
            found: _Nodes = children[trie.byte[children] == byte]
            return found
        children = trie.nodes_with((byte,))
        parents = trie.parent[children]
        found = children[(self._marks[parents >> 3] >> (parents & 7) & 1).astype(bool)]
        return found


def _accepting(automaton: Automaton, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each state of an automaton accepts, given that of the first of them; no product has many."""
    if len(automaton) <= len(known):
        return known
    more = [state != DEAD and automaton.is_accepting(state) for state in range(len(known), len(automaton))]
    return np.concatenate([known, np.array(more, bool)])


def _texts_at(trie: Trie, nodes: _Nodes) -> NDArray[np.int32]:
    """The packed labels of the texts that end at some nodes."""
    if len(nodes) < MIN_MARKED:
        return bitmask.from_ids(trie.labels_of(nodes)[0], bitmask.num_words(len(trie.ends)))
    is_inside = np.zeros(len(trie) + 1, bool)
    is_inside[nodes] = True
    return bitmask.pack(is_inside.take(trie.ends, mode="clip"))
