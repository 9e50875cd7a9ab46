"""`PrefixTree`: a radix tree over token ids whose nodes have copies of the keys and values of their tokens. Least recently used leaves are
dropped before the nodes take more than `max_bytes`, or the store more than its budget; what is larger is not stored. `num_common`: the
length of the common prefix of two lists.

The path from the root to a node spells a prefix of some sequence; sequences that begin alike share the nodes of their common prefix. Every
node has a buffer of its own, with nothing but the columns of its tokens, so that a node that is dropped frees its bytes. (After a split a
node may keep a buffer of which it needs 3 columns of 4.) A use of a node is one of all nodes above it, so that the least recently used node
is a leaf.

`PrefixCache`: automatic prefix caching: copies of the keys and values of recent prompts and texts in a radix tree (`PrefixTree`), which
the engine reuses for prompts that begin alike, from 32 common tokens on. Limited to `max_bytes` by LRU eviction (with 0 the engine shares
nothing with running rows either); emptied when the weights change, as far as that can be seen (not through `parameter.data`). Thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import ref

from fsm.process_fork import rlock
from outlines_cont.checks import check, is_int
from outlines_cont.device import trimmer
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.row import KVPart, RowKV

# After a split a part keeps its buffer where it is at least this share of it.
_WORTH_KEEPING = 0.75
# A leaf is copied into a longer one where the new tokens are at least this share of it, so that no text is many short nodes.
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
        """The node before it. Held weakly: there are no cycles, so memory is freed without the collector."""
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

    def bound(self, max_bytes: int) -> None:
        """Set `max_bytes`, and drop the least recently used nodes that are too much."""
        self._max_bytes = max_bytes
        while self.nbytes > max_bytes and self._by_use:
            self._drop(next(iter(self._by_use)))

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
        last, count = steps[-1] if steps else (self._root, 0)
        if count < len(last.token_ids):
            upper = self._split(last, count)
            if upper is None:
                return
            last = upper
        above, old = last, None
        if last.parent is not None and not last.children and len(last.token_ids) * _JOIN_FROM <= len(token_ids) - start:
            above, old = last.parent, last
            start -= len(old.token_ids)
        new = kv.between(start, len(token_ids))
        if not self._make_room(new.num_token_bytes, last):
            return
        node = PrefixNode(token_ids[start:], self._copy(new), above)
        if old is not None:
            self._drop(old)
        self._enter(node, above)

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
        for node in reversed(path):
            self._by_use.move_to_end(node)
            if node.part is not None:
                self._store.touch(node.part.buffer)

    def _split(self, node: PrefixNode, count: int) -> PrefixNode | None:
        """Insert a node for the first `count` tokens of `node` above it, and return it; None if there is no room for a copy."""
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
        upper.children[node.token_ids[count]] = node
        self.nbytes += lower_part.buffer.nbytes - node.nbytes
        node.token_ids, node.part, node.nbytes = node.token_ids[count:], lower_part, lower_part.buffer.nbytes
        node.parent = upper
        self._enter(upper, above)
        return upper

    def _copy(self, kv: RowKV) -> KVPart:
        part = kv.compact(self._store)
        part.buffer.is_spare = True
        return part

    def _make_room(self, nbytes: int, kept: PrefixNode) -> bool:
        """Drop the least recently used nodes until `nbytes` more fit; return whether they do. `kept` and the nodes above it stay."""
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

    def _enter(self, node: PrefixNode, above: PrefixNode) -> None:
        above.children[node.token_ids[0]] = node
        self._by_use[node] = None
        self.nbytes += node.nbytes
        self._use(self._path(above))

    def _drop(self, node: PrefixNode) -> None:
        """Remove a node and all below it."""
        above = node.parent
        if above is not None and above.children.get(node.token_ids[0]) is node:
            del above.children[node.token_ids[0]]
        below = [node]
        while below:
            dropped = below.pop()
            below += dropped.children.values()
            del self._by_use[dropped]
            self.nbytes -= dropped.nbytes
            trimmer.let_go(dropped.nbytes)
            dropped.part = None  # frees the memory even where the node is still referenced


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


MIN_TOKENS = 32
"""The least number of common tokens that are reused or waited for: waiting costs a forward, as much as 24 tokens on a CPU."""


class PrefixCache:
    """LRU cache of the keys and values of recent prompts and texts, by their token ids; each model has one, `model.prefix_cache`.

    It never takes more than `max_bytes`, in addition to the keys and values of states. Methods may be called by any thread.

    Args:
        store: the buffers of the model, among which those of the cache count.
        max_bytes: the most bytes at every moment; 0 turns the reuse of prefixes off.
        mark: returns something that differs when the weights of the model have changed.

    Attributes:
        max_bytes: as given.
        min_tokens: the least number of common tokens that are reused or waited for, and of new tokens that are stored.
        hits: the number of rows that have begun with keys and values of other rows.
        reused_tokens: the number of tokens that were not fed because of it.
    """

    def __init__(self, store: BufferStore, max_bytes: int, mark: Callable[[], object] = lambda: None) -> None:
        self._max_bytes = max_bytes
        self.min_tokens = MIN_TOKENS
        self.hits = 0
        self.reused_tokens = 0
        self._store = store
        self._mark = mark
        self._last_mark: object = None
        self._lock = rlock()
        self._is_changing = False
        self._tree = self._new_tree()

    def __repr__(self) -> str:
        if not self.is_on:
            return "<PrefixCache, turned off>"
        return (
            f"<PrefixCache of {self.entries:,} entries, {self.nbytes / 2**20:,.1f} of {self.max_bytes / 2**20:,.1f} MiB, "
            f"{self.hits:,} hits, {self.reused_tokens:,} tokens reused>"
        )

    @property
    def max_bytes(self) -> int:
        """The most bytes at every moment. What is over a smaller one goes at once; 0 turns the reuse of prefixes off."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        check("max_bytes", value, is_int(value, 0), "a number of bytes, 0 or more,")
        with self._changing():
            self._max_bytes = value
            self._tree.bound(value)

    @property
    def is_on(self) -> bool:
        """Whether prefixes are reused at all."""
        return self.max_bytes > 0

    @property
    def entries(self) -> int:
        """The number of nodes of the tree: runs of tokens, each with its own keys and values."""
        return len(self._live_nodes())

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values in the cache."""
        return sum(node.nbytes for node in self._live_nodes())

    @property
    def num_tokens(self) -> int:
        """The number of tokens whose keys and values are in the cache."""
        return sum(len(node.token_ids) for node in self._live_nodes())

    def _live_nodes(self) -> list[PrefixNode]:
        with self._lock:
            return [node for node in self._tree.nodes if node.is_live]

    def clear(self) -> None:
        """Empty the cache, and store nothing of the rows that run. Call it after weights were changed in a way that cannot be detected.

        The changes of an optimizer, `load_state_dict` and the assignment of a parameter are detected; those through `parameter.data` are
        not. States always keep their keys and values.
        """
        with self._lock:
            self._store.begin_epoch()
            self._tree, self._is_changing = self._new_tree(), False

    def refresh(self) -> None:
        """Clear, if the weights are not those of the last call. Cost: about 1 us for each parameter and module of the model."""
        mark = self._mark()
        with self._lock:
            if mark != self._last_mark:
                if self._last_mark is not None:
                    self.clear()
                self._last_mark = mark

    def num_held(self, token_ids: tuple[int, ...]) -> int:
        """Return how many of the first tokens of a sequence are in the cache."""
        with self._changing():
            return self._tree.num_held(token_ids)

    def find(self, token_ids: tuple[int, ...]) -> RowKV | None:
        """Return the keys and values of the first tokens of a sequence, as many as are in the cache, without a copy; None for none."""
        with self._changing():
            return self._tree.find(token_ids)

    def keep(self, token_ids: tuple[int, ...], kv: RowKV, least: int | None = None) -> None:
        """Store a copy of the keys and values of a sequence that are new, if at least `least` tokens are, and there is room.

        Keys and values that the present weights did not compute are left out: those that were fed before the weights changed, are from a
        file or the user, or were moved. Call `refresh` before.
        """
        least = self.min_tokens if least is None else least
        if len(token_ids) >= least:
            with self._changing():
                self._tree.add(token_ids[: kv.num_fresh(self._store.epoch)], kv, least)

    def note(self, num_tokens: int) -> None:
        """Count a hit: a row that reused `num_tokens` tokens of others."""
        with self._lock:
            self.hits += 1
            self.reused_tokens += num_tokens

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let the body change the tree. Where an earlier change was interrupted, a new tree replaces it."""
        with self._lock:
            if self._is_changing:
                self._tree = self._new_tree()
            self._is_changing = True
            yield
            self._is_changing = False

    def _new_tree(self) -> PrefixTree:
        return PrefixTree(self._store, self.max_bytes)
