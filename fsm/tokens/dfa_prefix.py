"""`DFAPrefix`: the product of a small DFA and the token trie, computed once per vocabulary; for prefixes such as the rest of a number.

In a state `prefix rest` a token either ends inside the prefix, whatever `rest` is, or leaves at a node where the prefix may end and
continues in `rest`. So the product serves every key and every schema, and the work of one state begins behind the prefix.
"""

from __future__ import annotations

from collections.abc import Collection

from fsm.automaton.byte_dfa import ByteDFA
from fsm.tokens.trie import Trie

MAX_COST = 600


class DFAPrefix:
    """The product of a small DFA and the texts below one trie node, whatever follows the prefix.

    Args:
        automaton: the states of the term; see `narrow_automaton`.
        trie: the texts.
        node: where the term begins.

    Attributes:
        labels: the texts that stay inside to their end.
        is_known: whether the product is complete; false where it would take too long.

    Cost: 2 us per node below, and the steps of the term; once per term and node.
    """

    __slots__ = ("_places", "_trie", "is_known", "labels")

    def __init__(self, automaton: ByteDFA, trie: Trie, node: int) -> None:
        self.labels: list[int] = []
        self._trie = trie
        self._places: list[tuple[int, int]] = []  # the nodes at which the term may end: node, texts below
        cost = 0
        stack = [(node, automaton.initial_state, trie.below(node))]
        while stack and cost <= MAX_COST:
            node, state, below = stack.pop()
            branches, moves = trie.branches(node), automaton.moves(state)
            cost += 4 + min(len(branches), len(moves))
            if automaton.is_accepting(state):
                self._places.append((node, below))
            for byte in moves if len(moves) <= len(branches) else branches:
                step, target = branches.get(byte), moves.get(byte)
                if step is not None and target is not None:
                    child, ends, more = step
                    self.labels += ends
                    if more:
                        stack.append((child, target, more))
        self.is_known = not stack

    def exits(self, next_bytes: Collection[int]) -> list[tuple[int, int]]:
        """The nodes, and the texts below each, at which the term may end with one of `next_bytes` to come. Cost: 0.2 us per node."""
        branches = self._trie.branches
        return [place for place in self._places if not branches(place[0]).keys().isdisjoint(next_bytes)]

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes, its share of the automaton included."""
        return 9_000 + 20 * len(self.labels) + 200 * len(self._places)
