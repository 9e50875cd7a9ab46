"""`Leaving`: the tokens with which a text of a language may end inside a token: they are not allowed by the mask of a state, but some bytes
at their beginning, or none, complete a text of the language (`4.` where `[0-9]+` is written). `leaving` finds them, with the longest such
beginning of each, by a walk of the trie in step with the automaton. The plain form is a loop over all prefixes of all tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.tokens.walk import states_at
from fsm.trie import Trie

_MAX_STEPS = 400
"""The most bytes that a walk depth first may try, some 0.3 us each, before one by level costs less."""


class Leaving(NamedTuple):
    """The tokens that leave a language after a text of it; tokens with equal `nodes` leave after the same bytes.

    Attributes:
        token_ids: int32, 1-D, ascending.
        nodes: for each, the trie node of its longest beginning that completes a text.
        sizes: for each, the number of bytes of that beginning, 0 if the text is complete before the token.
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

    Cost: some 30 us where few bytes are possible and no text ends within a token, else a walk of the trie, 3 to 25 ms for 131,072 tokens.
    """
    ends = _narrow_ends(automaton, trie, state)
    if ends is None:
        ends = _wide_ends(automaton, trie, state)
    may_end = automaton.is_accepting(state)
    if not (may_end or len(ends)):
        return Leaving(ends, ends, trie.depths(ends))
    nodes = np.full(len(trie.ends), Trie.root if may_end else -1, np.int32)  # per token
    below, token_ids = trie.texts_below(ends)
    nodes[token_ids] = ends[below]  # a longer beginning, whose node is greater, in place of a shorter one
    candidates = bitmask.to_ids(others)
    found = candidates[nodes[candidates] >= 0]
    return Leaving(found, nodes[found], trie.depths(nodes[found]))


def _narrow_ends(automaton: Automaton, trie: Trie, state: int) -> NDArray[np.int32] | None:
    """Return the nodes, ascending, where a text is complete and some token goes on, by a walk depth first; None if that is long."""
    found, stack, num_steps = list[int](), [(Trie.root, state)], 0
    while stack:
        node, state = stack.pop()
        moves = automaton.moves(state)
        num_steps += len(moves)
        if num_steps > _MAX_STEPS:
            return None
        for byte, target in moves.items():
            step = trie.step(node, byte)
            if step is not None and step[2]:
                stack.append((step[0], target))
                if automaton.is_accepting(target):
                    found.append(step[0])
    return np.array(sorted(found), np.int32)


def _wide_ends(automaton: Automaton, trie: Trie, state: int) -> NDArray[np.int32]:
    """Return the same by a walk level by level."""
    at_node = states_at(automaton, trie, state)
    at_node[Trie.root] = DEAD
    distinct = np.flatnonzero(np.bincount(at_node))
    accepts = np.zeros(distinct[-1] + 1, bool)
    accepts[distinct] = [automaton.is_accepting(target) for target in distinct.tolist()]
    return np.flatnonzero(accepts[at_node]).astype(np.int32)
