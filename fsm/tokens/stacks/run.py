"""`Runs`: the long runs of one byte in a trie, such as lines of dashes of up to 75: a path of nodes with few texts below it. There a stack
is read byte by byte, as it soon repeats itself, where a reading for each term at each node would be hundreds.
"""

from __future__ import annotations

from typing import NamedTuple

from fsm.trie import Trie

MIN_BYTES = 12  # after the first node of a run; shorter ones are read as other texts are
MAX_TEXTS = 64  # below the first node


class Link(NamedTuple):
    """A node of a run.

    Attributes:
        node: its number.
        labels: the texts that end at the next node of the run.
        others: the other children: number, byte, the texts that end there, and how many end below it.
    """

    node: int
    labels: tuple[int, ...]
    others: tuple[tuple[int, int, tuple[int, ...], int], ...]


class Run(NamedTuple):
    """A path in a trie by one byte."""

    byte: int
    links: tuple[Link, ...]


class Runs:
    """The runs of one trie, each found when one of its nodes is asked for."""

    def __init__(self, trie: Trie) -> None:
        self._trie = trie
        self._known: dict[int, tuple[Run, int] | None] = {}

    def at(self, node: int) -> tuple[Run, int] | None:
        """The run in which a node is, and its position there; None if it is in none. Cost: 2 us, once."""
        if node not in self._known:
            self._find(node)
        return self._known[node]

    def _find(self, node: int) -> None:
        trie, byte = self._trie, int(self._trie.byte[node])
        start = node
        while self._is_repeated(start):
            start = int(trie.parent[start])
        self._known[node] = None
        if start == Trie.root or trie.below(start) > MAX_TEXTS or trie.follow(start, bytes((byte,)) * MIN_BYTES)[1] < 0:
            return
        path = [start]
        while (step := trie.step(path[-1], byte)) is not None:
            path.append(step[0])
        run = Run(byte, tuple(self._link(here, byte) for here in path))
        self._known.update((here, (run, index)) for index, here in enumerate(path))

    def _is_repeated(self, node: int) -> bool:
        """True if the byte of a node is that of its parent, which has few texts."""
        parent = int(self._trie.parent[node])
        return (
            parent != Trie.root
            and self._trie.byte[node] == self._trie.byte[parent]
            and self._trie.below(parent) <= MAX_TEXTS
        )

    def _link(self, node: int, byte: int) -> Link:
        labels, others = tuple[int, ...](), list[tuple[int, int, tuple[int, ...], int]]()
        for child, own in self._trie.children(node):
            ends, below = self._trie.texts_at(child)
            if own == byte:
                labels = tuple(ends)
            else:
                others.append((child, own, tuple(ends), below))
        return Link(node, labels, tuple(others))
