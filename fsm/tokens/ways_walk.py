"""`WaysWalk`: the mask of any term by a walk of the token trie with a nondeterministic automaton, whose states are alternatives (ways):
the derivative by a byte is divided into terms whose union it is, also inside an intersection (partial derivatives). A deterministic walk
would need a state for every set of them, such as the last places of an `a` for `a.{20}b` beside a length.

A token is allowed as soon as one way of it is alive. So the ways are followed one after the other, each only to the tokens that none
before it has found, which are few after the first one.

Source: Antimirov 1996, doi:10.1016/0304-3975(95)00182-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives, members_of
from fsm.terms.distance import Distances
from fsm.terms.node import EMPTY, Node
from fsm.tokens.walk import states_at
from fsm.trie import Trie

Ways = NDArray[np.int64]
"""Trie nodes and states, as `node << 32 | state`."""

MAX_WAYS = 64
"""Terms are divided until they are about as many: an ambiguous grammar has a way for every reading of what came before."""


def ways_of(term: Node) -> list[Node]:
    """Terms whose union `term` is: the alternatives with which it, or a part of its first intersection, begins, up to `MAX_WAYS` or so."""
    found, queue, seen = list[Node](), [term], {term}
    for way in queue:
        head, rest = nodes.first_and_rest(way)
        members = members_of(head) if len(seen) < MAX_WAYS else ()
        new = [nodes.concat(member, rest) for member in members]
        work.add(1 + len(new))
        work.check()
        queue += dict.fromkeys(one for one in new if one not in seen)
        seen.update(new)
        if not members:
            found.append(way)
    return found


class _FirstWays(Automaton):
    """An automaton that follows the first way after each byte; `others` has the rest of them."""

    def __init__(self, root: Node, max_states: int) -> None:
        super().__init__(root, max_states=max_states, derivatives=Derivatives(by_sets=False))
        self._distances = Distances()
        self._divided: dict[Node, tuple[int, ...]] = {}
        self._targets: dict[int, tuple[int, ...]] = {}

    def divided(self, term: Node) -> tuple[int, ...]:
        """The states of the ways of a term, those first that seem furthest from an end, and so allow most."""
        known = self._divided.get(term)
        if known is None:
            ways = [way for way in ways_of(term) if self.is_alive(way)]
            if len(ways) > 1:
                ways.sort(key=self._distances.of, reverse=True)
            known = self._divided[term] = tuple(map(self.state_of, ways))
        return known

    def arcs(self, state: int) -> list[tuple[int, int]]:
        return [(mask, ways[0]) for mask, ways in self._arcs_to_ways(state)]

    def _arcs_to_ways(self, state: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        for mask, target in self.derivatives.arcs(self.nodes[state]):
            ways = self.divided(target)
            if ways:
                yield mask, ways

    def targets(self, key: int) -> tuple[int, ...]:
        """All ways after a state and a byte, `state << 8 | byte`."""
        known = self._targets.get(key)
        if known is None:
            state, byte = key >> 8, key & 255
            ways = (ways for mask, ways in self._arcs_to_ways(state) if mask >> byte & 1)
            known = self._targets[key] = next(ways, ())
        return known

    def has_choice(self, state: int) -> bool:
        """True if a byte leads to several ways."""
        return any(len(ways) > 1 for _, ways in self._arcs_to_ways(state))


class WaysWalk:
    """The walks of one trie, way by way; their states, at most `max_kept` of them, are kept from one walk to the next."""

    max_kept = 20_000
    swept_from = 20_000  # texts that are not found yet; with more, arrays of all nodes are cheaper

    def __init__(self, trie: Trie, max_states: int) -> None:
        self._trie, self._max_states = trie, max_states
        self._automaton = _FirstWays(EMPTY, max_states)

    def walk(self, term: Node) -> NDArray[np.bool_]:
        """For every label of the trie, whether some text of `term` begins with its text.

        Cost: 15 ms for 131,072 tokens once the states are known, more for several ways with little room before an end.
        """
        if len(self._automaton) > self.max_kept:
            self._automaton = _FirstWays(EMPTY, self._max_states)
        walk = _Walk(self._automaton, self._trie)
        for state in self._automaton.divided(term):
            walk.follow_from_root(state, self.swept_from)
        walk.follow_others()
        return walk.found()


class _Walk:
    """One walk: the nodes that are alive, the texts not found yet, the ways seen, and those that are left for later."""

    def __init__(self, automaton: _FirstWays, trie: Trie) -> None:
        self._automaton, self._trie = automaton, trie
        self._alive = np.zeros(len(trie) + 1, bool)
        self._later, self._seen = list[Ways](), list[Ways]()
        self._count()

    def found(self) -> NDArray[np.bool_]:
        """For every label, whether its text is alive."""
        return self._alive.take(self._trie.ends, mode="clip")

    def _count(self) -> None:
        """Count, for each node, the texts at or below it that are not found yet."""
        order, first = self._trie.order, self._trie.first_text
        before = np.zeros(len(order) + 1, np.int32)
        np.cumsum(~self.found()[order], out=before[1:])
        self._open = before[first + self._trie.num_texts] - before[first]

    def follow_from_root(self, state: int, swept_from: int) -> None:
        """Follow the first way after each byte, from the root on."""
        if int(self._open[Trie.root]) < swept_from:
            self._follow(np.array([Trie.root << 32 | state]))
            return
        automaton, trie = self._automaton, self._trie
        at_node = states_at(automaton, trie, state)
        self._alive |= at_node > 0
        self._count()
        may_choose = np.zeros(len(automaton), bool)
        distinct = np.flatnonzero(np.bincount(at_node)[1:]) + 1
        may_choose[distinct] = [automaton.has_choice(one) for one in distinct.tolist()]
        before = at_node[trie.parent]
        before[Trie.root] = 0
        steps = np.flatnonzero(may_choose[before] & (self._open > 0))
        self._step(steps, before[steps])
        self._seen.append(_ways(np.flatnonzero(at_node), at_node[at_node > 0]))

    def follow_others(self) -> None:
        """Follow all other ways, as long as they may find a text."""
        while self._later:
            ways = np.unique(np.concatenate(self._later))
            self._later = []
            ways = ways[self._open[ways >> 32] > 0]
            for seen in self._seen:
                ways = ways[~np.isin(ways, seen, assume_unique=True)]
            self._follow(ways)

    def _follow(self, ways: Ways) -> None:
        visited = [ways]
        while len(ways):
            at, states = ways >> 32, ways & 0xFFFFFFFF
            self._alive[at] = True
            children, which = self._trie.children_of(at)
            is_open = self._open[children] > 0
            ways = np.unique(self._step(children[is_open], states[which[is_open]]))
            visited.append(ways)
        self._seen.append(np.unique(np.concatenate(visited)))
        self._count()

    def _step(self, children: NDArray[np.integer[Any]], states: NDArray[np.integer[Any]]) -> Ways:
        """The first ways to some nodes from states at their parents; the others are left for later."""
        keys = states.astype(np.int64) << 8 | self._trie.byte[children]
        distinct, which = np.unique(keys, return_inverse=True)
        targets = [self._automaton.targets(key) for key in distinct.tolist()]
        for number in range(1, max(map(len, targets), default=0)):
            others = np.array([ways[number] if len(ways) > number else 0 for ways in targets], np.int64)[which]
            self._later.append(_ways(children[others > 0], others[others > 0]))
        firsts = np.array([ways[0] if ways else 0 for ways in targets], np.int64)[which]
        return _ways(children[firsts > 0], firsts[firsts > 0])


def _ways(at: NDArray[np.integer[Any]], states: NDArray[np.integer[Any]]) -> Ways:
    return at.astype(np.int64) << 32 | states
