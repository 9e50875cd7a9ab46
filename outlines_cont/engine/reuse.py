"""`Reuse`: prefix sharing at admission: a row begins with the keys and values of its longest prefix that a running row has fed (shared, or
copied out of much larger buffers), or that is in the prefix cache of the model. If another row is about to feed more of the same tokens, it
waits for that, except in searches and controlled jobs. From 32 tokens on; not for recurrent models, nor where keys depend on the length of
a text or the prefix cache is off.

A row waits only for running rows, which feed their prompts in every step; if such a row ends earlier, the rows that waited for it begin
with the prefix that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlines_cont.engine.row import Row
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.prefix_tree import num_common
from outlines_cont.kv.row import RowKV

# Keys and values are copied if they are a smaller fraction of the buffers that they would keep alive.
_WORTH_SHARING = 0.5


class _Batch(Protocol):
    rows: list[Row]

    def shares(self) -> list[RowKV | None]:
        """Return the keys and values of the rows."""


# A row, and its batch; None if it was just admitted.
_Running = tuple[Row, _Batch | None]


class Reuse:
    """One admission of rows. Running rows are indexed by their first tokens when the first row needs it."""

    def __init__(self, model: LanguageModel, batches: Sequence[_Batch]) -> None:
        self._model = model
        self._cache = model.prefix_cache
        self._batches = batches
        self._running: dict[tuple[int, ...], list[_Running]] | None = None  # by their first tokens
        self._shares: dict[int, list[RowKV | None]] = {}
        self._is_on = self._cache.is_on and not model.is_recurrent and model.can_reuse
        self._leaders: set[Row] = set()  # the admitted rows that others wait for

    def must_wait(self, row: Row) -> bool:
        """Return whether a row waits for another to feed a common prefix; if not, it begins with the prefix that is there.

        Cost: 10 us for a row with a new prefix, none for one with few tokens to feed; else a comparison of tokens with the rows that
        have the same first ones.
        """
        most = row.num_reusable if self._is_on else 0
        least = self._cache.min_tokens
        if most - row.cached < least:
            return False
        if self._running is None:
            self._cache.refresh()
        token_ids = tuple(row.token_ids[:most])
        others = self._others(token_ids[:least])
        now, source, later, leader = self._longest(row, most, others)
        held = self._cache.num_held(token_ids)
        can_wait = not (row.job.is_joint or row.job.is_controlled)  # a controller relies on running rows
        if leader is not None and can_wait and later - max(now, held) >= least:
            self._leaders.add(leader)
            return True
        others.append((row, None))
        if max(now, held) - row.cached >= least:
            self._begin(row, token_ids, self._share_of(source, now) if source is not None else None, held)
        return False

    def groups(self, admitted: Sequence[Row]) -> list[list[Row]]:
        """Return the admitted rows by batch: those that others wait for run with rows of similar length, to be fed in one part."""
        groups: dict[int, list[Row]] = {}
        for row in admitted:
            is_leader = row in self._leaders and not row.job.is_joint
            length = (len(row.token_ids) - row.cached).bit_length() if is_leader else 0
            groups.setdefault(length, []).append(row)
        return list(groups.values())

    def _begin(self, row: Row, token_ids: tuple[int, ...], shared: RowKV | None, held: int) -> None:
        """Let a row begin with keys and values of a running row, and after them with those of the prefix cache."""
        found = shared
        if shared is None or held > len(shared):
            found = self._cache.find(token_ids)
            if shared is not None and found is not None:
                found = found.beginning_with(shared, len(shared))  # shares its buffers with the running row
        if found is not None and len(found) - row.cached >= self._cache.min_tokens:
            self._cache.note(len(found) - row.cached)
            row.begin_with(found)

    def _longest(self, row: Row, most: int, others: list[_Running]) -> tuple[int, _Running | None, int, Row | None]:
        """Return the longest prefix that another row has fed, with that row, and the longest that one will feed, with that one.

        Both are at least what `row` has, and at most `most` tokens.
        """
        now = later = row.cached
        source: _Running | None = None
        leader: Row | None = None
        for other, batch in reversed(others):  # the last first, which share with those before them already
            reach = len(other.token_ids) if batch is None or other.awaits_forward else other.cached
            # A longer prefix has the same token at index `now`.
            if now >= most or reach <= now or other.token_ids[now] != row.token_ids[now]:
                continue
            common = min(num_common(row.token_ids, other.token_ids), most, reach)
            if min(common, other.cached) > now:
                now, source = min(common, other.cached), (other, batch)
            if common > later:
                later, leader = common, other
        return now, source, later, leader

    def _others(self, beginning: tuple[int, ...]) -> list[_Running]:
        """Return the rows with these first tokens that run or were just admitted."""
        if self._running is None:
            self._running = {}
            for batch in self._batches:
                for other in batch.rows:
                    kv = other.base_kv
                    if other.error is None and (kv is None or kv.num_fresh(self._model.kv_store.epoch) == len(kv)):
                        key = tuple(other.token_ids[: self._cache.min_tokens])
                        self._running.setdefault(key, []).append((other, batch))
        return self._running.setdefault(beginning, [])

    def _share_of(self, source: _Running, count: int) -> RowKV | None:
        """Return the keys and values of the first `count` tokens of a row, or of fewer, shared or copied."""
        row, batch = source
        base, held = row.base_kv, row.source_cached
        if base is not None and (batch is None or held >= count):
            return base[:count]
        assert batch is not None  # a row that was just admitted has only its `base_kv`
        if id(batch) not in self._shares:
            self._shares[id(batch)] = batch.shares()
        kv = self._shares[id(batch)][batch.rows.index(row)]
        kv = kv[: min(count, kv.num_fresh(self._model.kv_store.epoch))] if kv is not None else None
        if not kv or len(kv) <= held:
            return base[:held] if base is not None and held else None
        more, store = kv.between(held, len(kv)), self._model.kv_store
        own = more.num_token_bytes
        if own < _WORTH_SHARING * sum(more.storage.values()) and store.has_room(own):
            more = RowKV((more.compact(store),))
        row.base_kv = RowKV((*base[:held].parts, *more.parts)) if base is not None and held else more
        return row.base_kv
