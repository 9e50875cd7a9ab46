"""`Leaving`: the tokens with which a text of a language may end inside a token: they are not allowed by the mask of a state, but some bytes
at their beginning, or none, complete a text of the language (`4.` where `[0-9]+` is written). `leaving` finds them, with the longest such
beginning of each, by a walk of the trie in step with the automaton. The plain form is a loop over all prefixes of all tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import Automaton
from fsm.tokens.trie import Trie
from fsm.tokens.walk import sweep


class Leaving(NamedTuple):
    """The tokens that leave a language after a text of it; tokens with equal `nodes` leave after the same bytes.

    Attributes:
        token_ids: int32, 1-D, ascending.
        nodes: for each, the trie node of its longest beginning that completes a text.
        sizes: for each, the number of bytes of that beginning, 0 where the text is complete before the token.
    """

    token_ids: NDArray[np.int32]
    nodes: NDArray[np.int32]
    sizes: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """The memory that the arrays take."""
        return sum(array.nbytes for array in self)

    def before_tokens(self) -> Leaving:
        """Return the tokens before which the text is complete."""
        return Leaving(*(array[self.sizes == 0] for array in self))

    def with_same_text(self, token_id: int) -> tuple[int, NDArray[np.int32]] | None:
        """Return the size of a token's beginning, and all tokens that leave after the same bytes; None for one that does not leave."""
        at = int(np.searchsorted(self.token_ids, token_id))
        if at == len(self.token_ids) or self.token_ids[at] != token_id:
            return None
        return int(self.sizes[at]), self.token_ids[self.nodes == self.nodes[at]]


def leaving(automaton: Automaton, trie: Trie, state: int, others: NDArray[np.int32]) -> Leaving:
    """Return the tokens of the bitmask `others`, which `state` does not allow, that leave the language.

    Cost: a walk of the trie, 3 to 25 ms for 131,072 tokens.
    """
    nodes = np.full(len(trie.ends), Trie.root if automaton.is_accepting(state) else -1, np.int32)  # per token
    for first, codes, rows in sweep(automaton, trie, state):
        alive = np.flatnonzero(codes).astype(np.int32)
        numbers = codes[alive] // 256
        distinct = np.flatnonzero(np.bincount(numbers)).astype(np.int32)
        accepts = np.zeros(distinct[-1] + 1, bool)
        accepts[distinct] = [
            automaton.is_accepting(target) for target in rows.states(distinct * np.int32(256)).tolist()
        ]
        ends = alive[accepts[numbers]] + np.int32(first)
        below, token_ids = trie.texts_below(ends)
        nodes[token_ids] = ends[below]  # in place of shorter ones, as levels follow each other
    candidates = bitmask.to_ids(others)
    found = candidates[nodes[candidates] >= 0]
    return Leaving(found, nodes[found], trie.depths(nodes[found]))
