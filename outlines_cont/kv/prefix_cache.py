"""`PrefixCache`: automatic prefix caching: copies of the keys and values of recent prompts and texts in a radix tree (`PrefixTree`), which
the engine reuses for prompts that begin alike, from 32 common tokens on. Limited to `max_bytes` by LRU eviction (with 0 the engine shares
nothing with running rows either); emptied when the weights change, as far as that can be seen (not through `parameter.data`). Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outlines_cont.checks import check, is_int
from outlines_cont.interfaces import BufferStore
from outlines_cont.kv.prefix_tree import PrefixNode, PrefixTree
from outlines_cont.kv.row import RowKV

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
        self._lock = threading.RLock()
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
        """The most bytes at every moment. Setting it empties the cache; 0 turns the reuse of prefixes off."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        check("max_bytes", value, is_int(value, 0), "a number of bytes, 0 or more,")
        with self._lock:
            self._max_bytes = value
            self._tree, self._is_changing = self._new_tree(), False

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
