"""`PhraseTrie`: the Aho-Corasick automaton of many phrases, over any symbols, fed one at a time; `depth` of a node is the length of the
longest suffix read so far that begins a phrase, `ends` the phrases that end there. Failure links are made at construction, by breadth-first
search; transitions along them when first taken, and cached.

Aho and Corasick 1975, "Efficient String Matching". A step, but the first, costs the same for any number of phrases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class PhraseTrie(Generic[T]):
    """The Aho-Corasick automaton of some phrases, each a sequence of one symbol or more; node 0 is the root.

    Attributes:
        depth: for each node the number of symbols that lead to it, the longest suffix read so far that begins a phrase.
        length: for each phrase its number of symbols.
        phrases: the phrases by their numbers.
    """

    __slots__ = ("_children", "_ends", "_failure", "_owner", "_steps", "_symbols", "depth", "length", "phrases")

    def __init__(self, phrases: Iterable[Sequence[T]]) -> None:
        """Build the trie and its failure links. Cost: 1 us per symbol; some 300 bytes each."""
        self._children: list[dict[T, int]] = [{}]
        self._failure = [0]
        self._ends: list[tuple[int, ...]] = [()]
        self._owner = [0]  # a phrase that begins with what leads to the node
        self.depth = [0]
        self.phrases = [*phrases]
        self.length = [*map(len, self.phrases)]
        for number, phrase in enumerate(self.phrases):
            node = 0
            for symbol in phrase:
                node = self._children[node].get(symbol) or self._add_child(node, symbol, number)
            self._ends[node] += (number,)
        self._symbols = {symbol for children in self._children for symbol in children}
        self._link()
        # The steps of a node: to its children, and along failure links when they are first taken.
        self._steps = [dict(children) for children in self._children]

    def step(self, node: int, symbol: T) -> int:
        """Return the node after one more symbol. Cost: 0.1 us; the failure links where the step is taken for the first time."""
        found = self._steps[node].get(symbol)
        if found is None:
            if symbol not in self._symbols:  # most of Unicode is in no phrase, and is not cached
                return 0
            found = self._steps[node][symbol] = self._after_failure(node, symbol)
        return found

    def ends(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the phrases that end here, the longest first."""
        return self._ends[node]

    def path(self, node: int, start: int, stop: int) -> Sequence[T]:
        """Return the symbols from number `start` up to `stop` of those that lead to a node."""
        return self.phrases[self._owner[node]][start:stop] if start < stop else ()

    def _after_failure(self, node: int, symbol: T) -> int:
        while node and symbol not in self._children[node]:
            node = self._failure[node]
        return self._children[node].get(symbol, 0)

    def _add_child(self, node: int, symbol: T, number: int) -> int:
        child = self._children[node][symbol] = len(self._children)
        self._children.append({})
        self._failure.append(0)
        self._ends.append(())
        self._owner.append(number)
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
