"""`PrefixTree`: a radix tree over token ids whose nodes have copies of the keys and values of their tokens. Least recently used leaves
are dropped before the nodes take more than `max_bytes`, or the store more than its budget; what is larger is not stored.

The path from the root to a node spells a prefix of some sequence; sequences that begin alike share the nodes of their common prefix.
Every node has a buffer of its own, with nothing but the columns of its tokens, so that the memory of the tree is the sum over its
nodes, and a node that is dropped frees its bytes. (After a split a node may keep a buffer of which it needs 3 columns of 4.) A use of a
node is one of all nodes above it, so that the least recently used node is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from weakref import ref

from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.row import KVPart, RowKV

# A part keeps its buffer where it is at least that much of it.
_WORTH_KEEPING = 0.75
# A leaf is copied into a longer one where what follows is at least that part of it, so that no text is many short nodes.
_JOIN_FROM = 0.25


class PrefixNode:
    """A run of token ids (`token_ids`) that follows those of the nodes above, with its keys and values (`part`); the root has neither.

    `nbytes` is the size of the buffer of the part; `children` are the nodes below, by first token.
    """

    __slots__ = ("__weakref__", "_parent", "children", "nbytes", "part", "token_ids")

    def __init__(self, token_ids: tuple[int, ...], part: KVPart | None, parent: PrefixNode | None) -> None:
        self.token_ids = token_ids
        self.part = part
        self.nbytes = part.buffer.nbytes if part is not None else 0
        self.children: dict[int, PrefixNode] = {}
        self.parent = parent

    @property
    def parent(self) -> PrefixNode | None:
        """The node before it. Held weakly: there are no cycles, so memory is freed at once."""
        return self._parent() if self._parent is not None else None

    @parent.setter
    def parent(self, node: PrefixNode | None) -> None:
        self._parent = ref(node) if node is not None else None

    @property
    def is_live(self) -> bool:
        """Whether its keys and values were not evicted."""
        return self.part is None or self.part.buffer.is_live


class PrefixTree:
    """A radix tree of keys and values in buffers of `store`, at most `max_bytes` at every moment; `nbytes` is their sum."""

    def __init__(self, store: BufferStore, max_bytes: int) -> None:
        self.nbytes = 0
        self._store = store
        self._max_bytes = max_bytes
        self._root = PrefixNode((), None, None)
        self._by_use: OrderedDict[PrefixNode, None] = OrderedDict()

    @property
    def nodes(self) -> list[PrefixNode]:
        """All nodes but the root, those used least recently first."""
        return [*self._by_use]

    def num_held(self, token_ids: tuple[int, ...]) -> int:
        """Return how many of the first tokens of a sequence are in the tree; this does not count as a use. Cost: 0.02 us for each."""
        return sum(count for _, count in self._walk(token_ids))

    def find(self, token_ids: tuple[int, ...]) -> RowKV | None:
        """Return the keys and values of the first tokens of a sequence, as many as are in the tree; None for none. Nothing is copied."""
        steps = self._walk(token_ids)
        self._use([node for node, _ in steps])
        parts = [node.part if count == len(node.part) else node.part[:count] for node, count in steps if node.part]
        return RowKV(tuple(parts)) if parts else None

    def add(self, token_ids: tuple[int, ...], kv: RowKV, min_tokens: int = 1) -> None:
        """Store a copy of the keys and values of a sequence that are not in the tree, if at least `min_tokens` are new, and there is room.

        Cost: a copy of what is new, and sometimes of the leaf before it, with which it is joined.
        """
        steps = self._walk(token_ids)
        self._use([node for node, _ in steps])
        start = sum(count for _, count in steps)
        if len(token_ids) - start < min_tokens:
            return
        node, count = steps[-1] if steps else (self._root, 0)
        if count < len(node.token_ids):
            upper = self._split(node, count)
            if upper is None:
                return
            node = upper
        is_short = len(node.token_ids) * _JOIN_FROM <= len(token_ids) - start
        old = node if node is not self._root and not node.children and is_short else None
        if old is not None:
            start -= len(old.token_ids)
        self._put(old, token_ids[start:], kv.between(start, len(token_ids)), node)

    def _walk(self, token_ids: tuple[int, ...]) -> list[tuple[PrefixNode, int]]:
        """Return the nodes that a sequence begins with, and how many tokens of each."""
        steps: list[tuple[PrefixNode, int]] = []
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                break
            if not child.is_live:
                self._drop(child)
                break
            count = num_common(child.token_ids, token_ids[at : at + len(child.token_ids)])
            steps.append((child, count))
            at += count
            if count < len(child.token_ids):
                break
            node = child
        return steps

    def _use(self, path: Sequence[PrefixNode]) -> None:
        """Note that the nodes of a path are used now."""
        for node in reversed(path):
            self._by_use.move_to_end(node)
            if node.part is not None:
                self._store.touch(node.part.buffer)

    def _put(self, old: PrefixNode | None, token_ids: tuple[int, ...], kv: RowKV, last: PrefixNode) -> None:
        """Add a node with a copy of `kv` below `last`, or as a replacement of `old`, which is that leaf."""
        above = last if old is None else old.parent
        if above is None or not self._make_room(kv.num_token_bytes, last):
            return
        node = PrefixNode(token_ids, self._copy(kv), above)
        if old is not None:
            self._drop(old)
        self._enter(node)
        above.children[token_ids[0]] = node
        self._use(self._path(above))

    def _split(self, node: PrefixNode, count: int) -> PrefixNode | None:
        """Split a node after `count` of its tokens, and return the upper half; None where there is no room for a copy."""
        above, part = node.parent, node.part
        assert above is not None
        assert part is not None
        halves = part[:count], part[count:]
        copied = [RowKV((half,)) for half in halves if len(half) < part.buffer.used * _WORTH_KEEPING]
        if not self._make_room(sum(half.num_token_bytes for half in copied), node):
            return None
        copies = {half.parts[0]: self._copy(half) for half in copied}
        upper_part, lower_part = (copies.get(half, half) for half in halves)
        upper = PrefixNode(node.token_ids[:count], upper_part, above)
        lower = PrefixNode(node.token_ids[count:], lower_part, upper)
        lower.children = node.children
        for child in lower.children.values():
            child.parent = lower
        upper.children[lower.token_ids[0]] = lower
        self._leave(node)
        self._enter(lower)
        self._enter(upper)
        above.children[upper.token_ids[0]] = upper
        self._use(self._path(above))
        return upper

    def _copy(self, kv: RowKV) -> KVPart:
        part = kv.compact(self._store)
        part.buffer.is_spare = True
        return part

    def _make_room(self, nbytes: int, kept: PrefixNode) -> bool:
        """Drop what was used least recently until `nbytes` more fit; return whether they do. `kept` and what is above it stay."""
        if nbytes > self._max_bytes:
            return False
        path = {id(node) for node in self._path(kept)}
        while self.nbytes + nbytes > self._max_bytes or not self._store.has_room(nbytes):
            oldest = next(iter(self._by_use), None)
            if oldest is None or id(oldest) in path:
                return False
            self._drop(oldest)
            oldest = None
        return True

    def _path(self, node: PrefixNode | None) -> list[PrefixNode]:
        """Return the nodes from below the root to `node`."""
        path = []
        while node is not None and node is not self._root:
            path.append(node)
            node = node.parent
        return path[::-1]

    def _enter(self, node: PrefixNode) -> None:
        self._by_use[node] = None
        self.nbytes += node.nbytes

    def _leave(self, node: PrefixNode) -> None:
        del self._by_use[node]
        self.nbytes -= node.nbytes
        node.part = None  # freed now, whoever holds the node

    def _drop(self, node: PrefixNode) -> None:
        """Remove a node and all below it."""
        above = node.parent
        if above is not None and above.children.get(node.token_ids[0]) is node:
            del above.children[node.token_ids[0]]
        below = [node]
        while below:
            gone = below.pop()
            below += gone.children.values()
            self._leave(gone)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many first items of two lists, or of two tuples, are equal. Cost: 5 ns for each, and some slices."""
    high = min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    low = 0
    while high - low > 1:  # they are equal up to `low`, and not up to `high`
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
