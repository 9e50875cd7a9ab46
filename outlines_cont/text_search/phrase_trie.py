"""`PhraseTrie`: finds all of many phrases in a sequence of symbols, one symbol at a time.

The automaton of Aho and Corasick 1975, "Efficient String Matching". Failure links are made at once; a step that follows them is made
when it is first taken, and kept, so that every later one is a look-up whatever the number of phrases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence


class PhraseTrie:
    """The trie of some phrases, each a sequence of symbols, one or more; node 0 is the root.

    Attributes:
        depth: of each node the number of symbols that lead to it: the longest end of what was read that some phrase begins with.
        length: of each phrase its number of symbols.
    """

    __slots__ = ("_children", "_ends", "_failure", "_steps", "_symbols", "depth", "length")

    def __init__(self, phrases: Iterable[Sequence[Hashable]]) -> None:
        """Cost: 1 us per symbol; some 300 bytes each."""
        self._children: list[dict[Hashable, int]] = [{}]
        self._failure = [0]
        self._ends: list[tuple[int, ...]] = [()]
        self.depth = [0]
        self.length: list[int] = []
        for number, phrase in enumerate(phrases):
            self.length.append(len(phrase))
            node = 0
            for symbol in phrase:
                node = self._children[node].get(symbol) or self._add_child(node, symbol)
            self._ends[node] += (number,)
        self._symbols = {symbol for children in self._children for symbol in children}
        self._link()
        # The steps of a node: to its children, and those that follow failure links as they are met.
        self._steps = [dict(children) for children in self._children]

    def step(self, node: int, symbol: Hashable) -> int:
        """Return the node after one more symbol. Cost: 0.1 us; the failure links where the step is taken for the first time."""
        found = self._steps[node].get(symbol)
        return found if found is not None else self._first_step(node, symbol)

    def ends(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the phrases that end here, the longest first."""
        return self._ends[node]

    def _first_step(self, node: int, symbol: Hashable) -> int:
        if symbol not in self._symbols:  # most of Unicode is in no phrase, and is not kept
            return 0
        self._steps[node][symbol] = target = self._after_failure(node, symbol)
        return target

    def _after_failure(self, node: int, symbol: Hashable) -> int:
        while node and symbol not in self._children[node]:
            node = self._failure[node]
        return self._children[node].get(symbol, 0)

    def _add_child(self, node: int, symbol: Hashable) -> int:
        child = self._children[node][symbol] = len(self._children)
        self._children.append({})
        self._failure.append(0)
        self._ends.append(())
        self.depth.append(self.depth[node] + 1)
        return child

    def _link(self) -> None:
        pending = deque(self._children[0].values())
        while pending:
            node = pending.popleft()
            self._ends[node] += self._ends[self._failure[node]]
            for symbol, child in self._children[node].items():
                self._failure[child] = self._after_failure(self._failure[node], symbol)
                pending.append(child)
