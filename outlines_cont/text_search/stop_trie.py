"""`StopTrie`: the automaton of Aho and Corasick over the bytes of some texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopTrie:
    """The trie of some texts with failure links; node 0 is the root. It never changes once it is made.

    Attributes:
        texts: The texts, all of them different.
        children: Of each node, byte -> child.
        failure: The node of the longest proper suffix that is in the trie.
        depth: The length of the text that leads to the node.
        found: The index of the longest of the texts that end at the node, -1 for none.
        longest: The length of the longest text, 0 without any.

    Source: Aho and Corasick 1975, "Efficient String Matching".
    """

    __slots__ = ("_owner", "children", "depth", "failure", "found", "longest", "texts")

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = tuple(texts)
        self.longest = max(map(len, texts), default=0)
        self.children: list[dict[int, int]] = [{}]
        self.failure = [0]
        self.depth = [0]
        self.found = [-1]
        self._owner = [0]
        for index, text in enumerate(texts):
            node = 0
            for byte in text:
                node = self.children[node].get(byte) or self._add_child(node, byte, index)
            self.found[node] = index
        self._link()

    def child(self, node: int, byte: int) -> int:
        """Return the node after one more byte: of the longest end of what was read that begins a text."""
        children, failure = self.children, self.failure
        while node and byte not in children[node]:
            node = failure[node]
        return children[node].get(byte, 0)

    def path(self, node: int, start: int, stop: int) -> bytes:
        """Return the bytes from offset `start` up to `stop` of those that lead to a node."""
        return self.texts[self._owner[node]][start:stop] if start < stop else b""

    def _add_child(self, node: int, byte: int, index: int) -> int:
        child = self.children[node][byte] = len(self.children)
        self.children.append({})
        self.failure.append(0)
        self.depth.append(self.depth[node] + 1)
        self.found.append(-1)
        self._owner.append(index)
        return child

    def _link(self) -> None:
        pending = deque(self.children[0].values())
        while pending:
            node = pending.popleft()
            if self.found[node] < 0:
                self.found[node] = self.found[self.failure[node]]
            for byte, child in self.children[node].items():
                self.failure[child] = self.child(self.failure[node], byte)
                pending.append(child)
