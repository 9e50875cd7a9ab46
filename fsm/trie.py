"""A byte trie over a list of texts, as arrays: built and walked with numpy, or node by node through small dicts.

Nodes are numbered level by level, so the children of a node are neighbours. Texts below a node are neighbours in
sorted order. Duplicate texts are fine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Step = tuple[int, tuple[int, ...], int]
"""A child, the labels of the texts that end there, and how many texts go on below it."""
Branches = dict[int, Step]
"""The children of a node by the byte that leads to them."""


class Trie:
    """The trie of `texts`; a text is known by its label: its position in the list, or what `labels` says.

    Args:
        texts: byte strings, in any order.
        labels: a label for each; their positions if left out.
        num_labels: how many labels there may be; the number of texts if left out.

    Attributes:
        order: labels of the texts in byte order, int32.
        ends: per label, the node where its text ends; `len(trie)` where no text has that label.
        byte, parent, first_child, num_children: per node, how it is reached and where its children lie.
        first_text, num_texts, num_ends: per node, its range in `order`; the first `num_ends` of it end at the node.

    Cost: one sort, then about 20 array operations per byte of the longest text.
    """

    root = 0
    max_branch_bytes = 16 << 20

    def __init__(
        self, texts: Sequence[bytes], labels: Sequence[int] | None = None, num_labels: int | None = None
    ) -> None:
        positions = sorted(range(len(texts)), key=texts.__getitem__)
        ordered = [texts[p] for p in positions]
        lengths = np.array(list(map(len, ordered)), np.int32)
        data = np.frombuffer(b"".join(ordered), np.uint8)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        self.order: NDArray[np.int32] = np.array(
            positions if labels is None else [labels[p] for p in positions], np.int32
        )
        self._build(lengths, data, starts)
        self.ends: NDArray[np.int32] = np.full(len(texts) if num_labels is None else num_labels, len(self), np.int32)
        self.ends[self.order] = self._end_nodes
        del self._end_nodes
        self._read_one_by_one()
        self._by_byte: NDArray[np.int32] | None = None

    def _build(self, lengths: NDArray[np.int32], data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        at_node = np.zeros(len(lengths), np.int32)
        below = np.flatnonzero(lengths > 0)
        byte = [np.zeros(1, np.uint8)]
        first_text, num_texts, num_ends = ([np.array([n])] for n in (0, len(lengths), int((lengths == 0).sum())))
        parents, first_child, num_children = [np.zeros(1, np.int32)], [], []
        depth, base, level_size = 0, 1, 1
        self._levels = [0]
        while True:
            parent, here = at_node[below], data[starts[below] + depth]
            is_new = np.ones(len(below), bool)
            is_new[1:] = (parent[1:] != parent[:-1]) | (here[1:] != here[:-1])
            heads = np.flatnonzero(is_new)
            local = (np.cumsum(is_new) - 1).astype(np.int32)
            counts = np.bincount(parent[heads] - (base - level_size), minlength=level_size)
            num_children.append(counts.astype(np.int32))
            first_child.append((base + np.cumsum(counts) - counts).astype(np.int32))
            if not len(below):
                break
            at_node[below] = base + local
            self._levels.append(base)
            byte.append(here[heads])
            parents.append(parent[heads])
            first_text.append(below[heads])
            num_texts.append(np.bincount(local, minlength=len(heads)))
            num_ends.append(np.bincount(local[lengths[below] == depth + 1], minlength=len(heads)))
            depth, base, level_size = depth + 1, base + len(heads), len(heads)
            below = below[lengths[below] > depth]
        self._end_nodes = at_node
        self.byte: NDArray[np.uint8] = np.concatenate(byte)
        self.parent: NDArray[np.int32] = np.concatenate(parents)
        self.first_child: NDArray[np.int32] = np.concatenate(first_child)
        self.num_children: NDArray[np.int32] = np.concatenate(num_children)
        self.first_text: NDArray[np.int32] = np.concatenate(first_text).astype(np.int32)
        self.num_texts: NDArray[np.int32] = np.concatenate(num_texts).astype(np.int32)
        self.num_ends: NDArray[np.int32] = np.concatenate(num_ends).astype(np.int32)

    def _read_one_by_one(self) -> None:
        """Make views that give plain ints, three times as fast as the arrays do."""
        self._bytes = self.byte.tobytes()
        self._starts = _view(np.append(self.first_child, np.int32(len(self))))
        self._ends, self._counts = _view(self.num_ends), _view(self.num_texts)
        self._firsts, self._labels = _view(self.first_text), _view(self.order)
        self._branches: dict[int, Branches] = {}
        self._num_branches = 0

    def __len__(self) -> int:
        return len(self.byte)

    def depths(self, nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Bytes from the root to each of `nodes`."""
        return np.searchsorted(self._levels, nodes, side="right") - 1

    def nodes_with(self, byte: int) -> NDArray[np.int32]:
        """The nodes that are reached with `byte`, ascending."""
        if self._by_byte is None:
            self._by_byte = np.argsort(self.byte, kind="stable").astype(np.int32)
            self._byte_starts = np.concatenate([[0], np.cumsum(np.bincount(self.byte, minlength=256))])
        return self._by_byte[self._byte_starts[byte] : self._byte_starts[byte + 1]]

    def below(self, node: int) -> int:
        """How many texts go on below `node`."""
        return int(self.num_texts[node]) - int(self.num_ends[node])

    def child_range(self, first: int, last: int) -> tuple[int, int]:
        """Where the children of the nodes first..last of one level lie; nodes of one level are neighbours."""
        return int(self.first_child[first]), int(self.first_child[last - 1]) + int(self.num_children[last - 1])

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        arrays = (
            self.order,
            self.ends,
            self.byte,
            self.parent,
            self.first_child,
            self.num_children,
            self.first_text,
            self.num_texts,
            self.num_ends,
        )
        return sum(a.nbytes for a in arrays)

    def branches(self, node: int) -> Branches:
        """The children of one node as a dict. Cost: 5 us the first time."""
        known = self._branches.get(node)
        if known is None:
            first, last = self._starts[node], self._starts[node + 1]
            known = {self._bytes[child]: self._step(child) for child in range(first, last)}
            self._num_branches += 1 + len(known)
            if self._num_branches * 200 > self.max_branch_bytes:
                self._branches = {}
                self._num_branches = 0
            self._branches[node] = known
        return known

    def step(self, node: int, byte: int) -> Step | None:
        """The child of `node` that `byte` leads to. Cost: 1 us, without making all branches of the node."""
        known = self._branches.get(node)
        if known is not None:
            return known.get(byte)
        child = self._bytes.find(byte, self._starts[node], self._starts[node + 1])
        return None if child < 0 else self._step(child)

    def _step(self, child: int) -> Step:
        ends = self._ends[child]
        first = self._firsts[child]
        return child, tuple(self._labels[first : first + ends]) if ends else (), self._counts[child] - ends

    def texts_below(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For all texts at or below `nodes`: the position in `nodes`, and the text."""
        counts = self.num_texts[nodes]
        which = np.repeat(np.arange(len(nodes), dtype=np.int32), counts)
        before = (np.cumsum(counts) - counts).astype(np.int32)
        place = self.first_text[nodes][which] + np.arange(len(which), dtype=np.int32) - before[which]
        return which, self.order[place]


def _view(array: NDArray[np.int32]) -> memoryview:
    return memoryview(np.ascontiguousarray(array))  # type: ignore[arg-type]
