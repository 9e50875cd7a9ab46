"""`Spelling`: from which states tokens lead to an accepting one (coreachability), in a vocabulary without a token for every byte. A state
is decided by its term and the alphabet of the tokens where that suffices, and else by a best-first search over tokens. A search that
exceeds its budget counts as one that found nothing (`is_exact` is False), so masks may lack tokens, but every text that has begun can be
finished.

After the first `a` of `ab|aac`, the tokens `a` and `b` can write `b` only. `survivors` lists the tokens without that condition.
"""

from __future__ import annotations

from contextlib import suppress
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import BudgetExceeded
from fsm.terms.derivative import Derivatives
from fsm.terms.distance import Distances
from fsm.tokens.walk import states_at
from fsm.trie import Trie

_MAX_VISITED = 2_000  # the most states of a term that are visited to decide whether some bytes spell a text of it

Steps = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Token ids, and the state to which each leads."""


def survivors(automaton: Automaton, trie: Trie, state: int) -> Steps:
    """The tokens after which `state` leads to a live state, coreachable by tokens or not. Cost: a walk of the trie, 0.3 to 5 ms."""
    at_end = states_at(automaton, trie, state).take(trie.ends, mode="clip")
    token_ids = np.flatnonzero(at_end).astype(np.int32)
    return token_ids, at_end[token_ids]


class Spelling:
    """The states of one automaton from which tokens spell a text, in a vocabulary that lacks bytes.

    A search for an accepting state visits at most `max_search` states; `is_exact` is False as soon as one exceeded that. Results are
    cached per state. Several threads may use one object.
    """

    def __init__(self, automaton: Automaton, trie: Trie, max_search: int) -> None:
        self._automaton = automaton
        self._trie = trie
        self.max_search = max_search
        self._distances = Distances()
        self._derivatives = Derivatives(max_search=_MAX_VISITED)
        self._can_end: dict[int, bool] = {}
        self.is_exact = True

    def can_end(self, state: int) -> bool:
        """True when a sequence of tokens, the empty one included, is known to lead from `state` to an accepting state.

        Cost: one pass over the term where tokens of one byte spell one of its texts; else a walk of the trie per state that is visited.
        """
        known = self._known(state)
        return self._search(state) if known is None else known

    def steps(self, state: int) -> Steps:
        """The tokens that `state` allows, each with the state to which it leads."""
        token_ids, targets = survivors(self._automaton, self._trie, state)
        distinct, which = np.unique(targets, return_inverse=True)
        kept = np.array([self.can_end(target) for target in distinct.tolist()], bool)[which]
        return token_ids[kept], targets[kept]

    def _known(self, state: int) -> bool | None:
        """The cached answer, or that of the term alone; None if a search is needed.

        The term decides where tokens of one byte spell a text of it, and where the bytes of all tokens spell none.
        """
        known = self._can_end.get(state)
        node = self._automaton.nodes[state]
        if known is None:
            known = True if node.nullable else None
            with suppress(BudgetExceeded):  # the search by tokens may take fewer steps
                if known is None and not self._derivatives.is_inhabited(node, self._trie.all_bytes):
                    known = False
                elif known is None:
                    known = self._derivatives.is_inhabited(node, self._trie.single_bytes) or None
            if known is not None:
                self._can_end[state] = known
        return known

    def _search(self, root: int) -> bool:
        """Best-first search for an accepting state, by the estimated distance to one."""
        came_from: dict[int, int | None] = {root: None}
        queue = [(0, root)]
        while queue:
            _, state = heappop(queue)
            _, targets = survivors(self._automaton, self._trie, state)
            for target in np.unique(targets).tolist():
                if target in came_from or self._known(target) is False:
                    continue
                came_from[target] = state
                if self._known(target):
                    self._mark_path(target, came_from)
                    return True
                heappush(queue, (self._distances.of(self._automaton.nodes[target]), target))
            if len(came_from) > self.max_search:
                self.is_exact = False
                break
        for state in came_from:
            self._can_end.setdefault(state, False)  # another thread may have found a path meanwhile
        return False

    def _mark_path(self, end: int, came_from: dict[int, int | None]) -> None:
        step: int | None = end
        while step is not None:
            self._can_end[step] = True
            step = came_from[step]
