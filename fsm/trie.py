"""`Trie`: a byte trie over a list of byte strings as numpy arrays, built from the sorted strings without a loop in Python over nodes.
Nodes are numbered breadth first, so the children of a node are a range; the strings below a node are a range of the sorted order (prefix
sums). Each string has an int as label; duplicates are allowed. For depth-first walks a node also has a dict of its children, made at its
first visit, in bounded memory. `arrays` and `from_arrays` save and restore it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm.bitmask import pack, to_ids

Step = tuple[int, tuple[int, ...], int]
"""A child, the labels of the texts that end there, and how many texts end below it."""
Branches = dict[int, Step]
"""The children of a node by the byte that leads to them."""

MIN_SORTED_BY_NUMPY = 2_000  # with fewer texts Python's own sort is as fast
KEY_BYTES = 7


class Trie:
    """The trie of the byte strings `texts`; each has an int as label: its index in the list, or that in `labels`.

    Args:
        texts: byte strings, in any order.
        labels: a label for each; their positions if left out.
        num_labels: how many labels there may be; the number of texts if left out.

    Attributes:
        order: labels of the texts in byte order, int32.
        ends: per label, the node where its text ends; `len(trie)` where no text has that label.
        byte, parent, first_child, num_children: per node, how it is reached and where its children are; `parent` and `ends` have the type
            with which numpy indexes fastest.
        first_text, num_texts, num_ends: per node, its range in `order`; the first `num_ends` of it end at the node.

    Cost: one sort, then about 20 array operations per byte of the longest text; 0.1 s for 131,072 tokens.
    """

    root = 0
    max_branch_bytes = 16 << 20

    order: NDArray[np.int32]
    ends: NDArray[np.intp]
    byte: NDArray[np.uint8]
    parent: NDArray[np.intp]
    first_child: NDArray[np.int32]
    num_children: NDArray[np.int32]
    first_text: NDArray[np.int32]
    num_texts: NDArray[np.int32]
    num_ends: NDArray[np.int32]

    def __init__(
        self,
        texts: Sequence[bytes],
        labels: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        num_labels: int | None = None,
    ) -> None:
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        data = np.frombuffer(b"".join(texts), np.uint8)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        positions = _byte_order(texts, data, starts, lengths)
        self.order = positions if labels is None else np.asarray(labels, np.int32)[positions]
        self._build(lengths[positions], data, starts[positions])
        self._derive(len(texts) if num_labels is None else num_labels)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], num_labels: int) -> Trie:
        """The trie that `arrays` was read from. Cost: 10 ms for 266,000 nodes, a tenth of what building it takes."""
        trie = cls.__new__(cls)
        trie.order = arrays["order"].astype(np.int32)
        trie.byte = arrays["byte"].astype(np.uint8)
        inner, firsts = to_ids(arrays["is_inner"]), to_ids(arrays["is_first"])
        trie.num_children = np.zeros(len(trie), np.int32)
        trie.num_children[inner] = np.diff(firsts, append=np.int32(len(trie)))
        trie.num_ends = arrays["num_ends"].astype(np.int32)
        trie._derive(num_labels)
        return trie

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays from which `from_arrays` derives the others."""
        is_inner = self.num_children > 0
        is_first = np.zeros(len(self), bool)
        is_first[self.first_child[is_inner]] = True  # of its siblings
        bits = {"is_inner": pack(is_inner).view(np.uint8), "is_first": pack(is_first).view(np.uint8)}
        return {"order": self.order, "byte": self.byte, "num_ends": self.num_ends, **bits}

    def _derive(self, num_labels: int) -> None:
        """Compute the other arrays: the positions of children and texts, level by level, and where texts end."""
        size = len(self)
        self.first_child = np.cumsum(self.num_children, dtype=np.int32) - self.num_children + 1
        self.parent = np.zeros(size, np.intp)
        self.parent[1:] = np.repeat(np.arange(size), self.num_children)
        self._levels, last = [0], 1
        while last < size:
            self._levels.append(last)
            last = int(self.first_child[last - 1] + self.num_children[last - 1])
        self.num_texts = self.num_ends.copy()
        self.first_text = np.zeros(size, np.int32)
        bounds = [*self._levels, size]
        sums = []
        for first, last in zip(bounds[-2:0:-1], bounds[:1:-1], strict=True):
            sums.append(np.zeros(last - first + 1, np.int32))
            np.cumsum(self.num_texts[first:last], out=sums[-1][1:])
            above = slice(int(self.parent[first]), int(self.parent[last - 1]) + 1)
            begins = self.first_child[above] - first
            self.num_texts[above] += sums[-1][begins + self.num_children[above]] - sums[-1][begins]
        for first, last in pairwise(bounds[1:]):
            # A node's texts begin after those of its left neighbours, and these after those that end at its parent.
            before, parents = sums.pop(), self.parent[first:last]
            base = self.first_text[parents] + self.num_ends[parents] - before[self.first_child[parents] - first]
            self.first_text[first:last] = base + before[:-1]
        self._find_ends(num_labels)
        self._make_views()

    def _find_ends(self, num_labels: int) -> None:
        self.ends = np.full(num_labels, len(self), np.intp)
        ending = np.flatnonzero(self.num_ends).astype(np.int32)
        which, positions = _ranges(self.first_text[ending], self.num_ends[ending])
        self.ends[self.order[positions]] = ending[which]

    def _build(self, lengths: NDArray[np.int32], data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        at_node = np.zeros(len(lengths), np.int32)
        below = np.flatnonzero(lengths > 0)
        byte, num_ends = [np.zeros(1, np.uint8)], [np.array([(lengths == 0).sum()])]
        num_children = list[NDArray[np.intp]]()
        depth, base, level_size = 0, 1, 1
        while True:
            parent, here = at_node[below], data[starts[below] + depth]
            is_new = np.ones(len(below), bool)
            is_new[1:] = (parent[1:] != parent[:-1]) | (here[1:] != here[:-1])
            heads = np.flatnonzero(is_new)
            local = (np.cumsum(is_new) - 1).astype(np.int32)
            num_children.append(np.bincount(parent[heads] - (base - level_size), minlength=level_size))
            if not len(below):
                break
            at_node[below] = base + local
            byte.append(here[heads])
            num_ends.append(np.bincount(local[lengths[below] == depth + 1], minlength=len(heads)))
            depth, base, level_size = depth + 1, base + len(heads), len(heads)
            below = below[lengths[below] > depth]
        self.byte = np.concatenate(byte)
        self.num_children = np.concatenate(num_children).astype(np.int32)
        self.num_ends = np.concatenate(num_ends).astype(np.int32)

    def _make_views(self) -> None:
        """Make views with plain ints as items, three times as fast as arrays."""
        self._bytes = self.byte.tobytes()
        self._starts = _view(np.append(self.first_child, np.int32(len(self))))
        self._ends, self._counts = _view(self.num_ends), _view(self.num_texts)
        self._firsts, self._labels = _view(self.first_text), _view(self.order)
        self.forget_branches()

    def __len__(self) -> int:
        return len(self.byte)

    def depths(self, nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Bytes from the root to each of `nodes`."""
        return np.searchsorted(self._levels, nodes, side="right") - 1

    def nodes_with(self, bytes_: Collection[int]) -> NDArray[np.int32]:
        """The nodes that are reached with one of `bytes_`, byte by byte, each ascending. Cost: 1 ns per node found, 2 ms at first."""
        order, starts = self._by_byte
        return np.concatenate([order[:0], *(order[starts[byte] : starts[byte + 1]] for byte in bytes_)])

    @cached_property
    def _by_byte(self) -> tuple[NDArray[np.int32], list[int]]:
        """All nodes but the root, to which no byte leads, sorted by that byte, and where each byte begins."""
        order = np.argsort(self.byte[1:], kind="stable").astype(np.int32) + 1
        return order, [0, *np.cumsum(np.bincount(self.byte[1:], minlength=256)).tolist()]

    @cached_property
    def single_bytes(self) -> int:
        """The bytes that are texts by themselves, as a 256-bit mask."""
        return sum(1 << byte for byte, (_, ends, _) in self.branches(self.root).items() if ends)

    @cached_property
    def all_bytes(self) -> int:
        """The bytes that occur in some text, as a 256-bit mask."""
        return sum(1 << byte for byte in np.unique(self.byte[1:]).tolist())

    def children(self, node: int) -> Iterator[tuple[int, int]]:
        """The children of one node, each with the byte that leads to it. Cost: less than `branches` for a single visit."""
        begin, end = self._starts[node], self._starts[node + 1]
        return zip(range(begin, end), self._bytes[begin:end], strict=True)

    def children_of(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The children of all `nodes`, and for each the position of its parent in `nodes`."""
        which, found = _ranges(self.first_child[nodes], self.num_children[nodes])
        return found, which

    def labels_of(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The labels of the texts that end at `nodes`, and for each the position in `nodes` of the one where it ends."""
        ending = np.flatnonzero(self.num_ends[nodes])
        which, positions = _ranges(self.first_text[nodes[ending]], self.num_ends[nodes[ending]])
        return self.order[positions], ending[which]

    def below(self, node: int) -> int:
        """The number of texts that end below `node`."""
        return self._counts[node] - self._ends[node]

    def child_range(self, first: int, last: int) -> tuple[int, int]:
        """The range of the children of the nodes first..last of one level; their numbers are consecutive."""
        return int(self.first_child[first]), int(self.first_child[last - 1]) + int(self.num_children[last - 1])

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        by_byte = 4 * len(self) if "_by_byte" in vars(self) else 0
        return by_byte + sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    @property
    def branch_nbytes(self) -> int:
        """About how many bytes the branches take that were made so far; at `max_branch_bytes` they are dropped."""
        return 200 * self._num_branches

    def forget_branches(self) -> None:
        """Drop the dicts that `branches` made."""
        self._branches: dict[int, Branches] = {}
        self._num_branches = 0

    def branches(self, node: int) -> Branches:
        """The children of one node as a dict. Cost: 5 us the first time."""
        known = self._branches.get(node)
        if known is None:
            first, last = self._starts[node], self._starts[node + 1]
            known = {self._bytes[child]: self._step(child) for child in range(first, last)}
            self._num_branches += 1 + len(known)
            if self.branch_nbytes > self.max_branch_bytes:
                self.forget_branches()
            self._branches[node] = known
        return known

    def step(self, node: int, byte: int) -> Step | None:
        """The child of `node` that `byte` leads to. Cost: 1 us, without making all branches of the node."""
        known = self._branches.get(node)
        if known is not None:
            return known.get(byte)
        child = self._bytes.find(byte, self._starts[node], self._starts[node + 1])
        return None if child < 0 else self._step(child)

    def branch_mask(self, node: int) -> int:
        """The bytes that lead to children of `node`, as a 256-bit mask. Cost: 0.3 us and 0.1 us per child."""
        found = 0
        for byte in self._bytes[self._starts[node] : self._starts[node + 1]]:
            found |= 1 << byte
        return found

    def follow(self, node: int, text: bytes) -> tuple[Sequence[int], int]:
        """Read `text` from `node` on: the labels that end on the way, and the node after it, or -1. Cost: 0.4 us per byte."""
        find, starts, ends, firsts, labels = self._bytes.find, self._starts, self._ends, self._firsts, self._labels
        found: list[int] = []
        for byte in text:
            node = find(byte, starts[node], starts[node + 1])
            if node < 0:
                break
            count = ends[node]
            if count == 1:
                found.append(labels[firsts[node]])
            elif count:
                found += labels[firsts[node] : firsts[node] + count]
        return found, node

    def texts_at(self, node: int) -> tuple[Sequence[int], int]:
        """The labels of the texts that end at a node, and how many texts end below it. Cost: 0.2 us, without making its branches."""
        _, labels, below = self._step(node)
        return labels, below

    def _step(self, child: int) -> Step:
        ends = self._ends[child]
        first = self._firsts[child]
        return child, tuple(self._labels[first : first + ends]) if ends else (), self._counts[child] - ends

    def texts_below(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For all texts at or below `nodes`: the position in `nodes`, and the text."""
        which, positions = _ranges(self.first_text[nodes], self.num_texts[nodes])
        return which, self.order[positions]


def _ranges(firsts: NDArray[np.int32], counts: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The ints of several ranges, given by first and length, one range after the other: which range each is of, and the int."""
    which = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    before = np.cumsum(counts, dtype=np.int32) - counts
    return which, (firsts - before)[which] + np.arange(len(which), dtype=np.int32)


def _view(array: NDArray[np.int32]) -> memoryview:
    return memoryview(np.ascontiguousarray(array))  # type: ignore[arg-type]


def _byte_order(
    texts: Sequence[bytes], data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The positions of `texts` in byte order, equal texts by position.

    The plain form is `sorted`. Of many texts, the first seven bytes and their number make an integer each; these are sorted, and longer
    texts with equal ones are sorted again by what follows.
    """
    if len(texts) < MIN_SORTED_BY_NUMPY:
        return np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int32)
    keys = _keys(data, starts, lengths)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys, places, depth = keys[order], np.arange(len(order)), 0
    group = np.zeros(len(order), np.int32)
    while True:
        depth += KEY_BYTES
        is_new = np.ones(len(keys), bool)
        is_new[1:] = (keys[1:] != keys[:-1]) | (group[1:] != group[:-1])
        group = np.cumsum(is_new, dtype=np.int32)
        is_longer = np.flatnonzero((keys & 0xFF) > KEY_BYTES)
        if not len(is_longer):
            return order
        places, group = places[is_longer], group[is_longer]
        texts_here = order[places]
        keys = _keys(data, starts[texts_here] + depth, lengths[texts_here] - depth)
        inner = np.lexsort((keys, group))
        order[places], keys = texts_here[inner], keys[inner]


def _keys(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Per text, its first seven bytes and, as the last byte, their number; 8 for a longer text."""
    keys = np.zeros(len(starts), np.uint64)
    padded = np.concatenate([data, np.zeros(KEY_BYTES, np.uint8)])
    for i in range(KEY_BYTES):
        byte = padded[starts + i]
        byte[lengths <= i] = 0
        keys = keys << np.uint64(8) | byte
    return keys << np.uint64(8) | np.minimum(lengths, KEY_BYTES + 1).astype(np.uint64)
