"""`Reuse`: prefix sharing at admission: a row begins with the keys and values of its longest prefix that a running row has fed (shared,
or copied out of much larger buffers), or that is in the prefix cache of the model. Where another row is about to feed more of the same
tokens, it waits for that, except for searches and steered jobs. Not for recurrent models.

So `[prompt] * 4` feeds the prompt once. A row waits for running rows only, and these feed their prompts at every step; when one of them
ends before, the rows that waited for it begin with what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlines_cont.engine.row import Row
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.prefix_tree import num_common
from outlines_cont.kv.row import RowKV

# What a row begins with is copied where it is less than that part of the buffers that it would keep alive.
_WORTH_SHARING = 0.5


class _Batch(Protocol):
    rows: list[Row]

    def shares(self) -> list[RowKV | None]:
        """Return the keys and values of the rows."""


# A row, and the batch in which it runs; None where it was admitted just now.
_Running = tuple[Row, _Batch | None]


class Reuse:
    """One admission of rows. Cheap to make: running rows are indexed by their first tokens when the first row needs it."""

    def __init__(self, model: LanguageModel, batches: Sequence[_Batch]) -> None:
        self._model = model
        self._cache = model.prefix_cache
        self._batches = batches
        self._running: dict[tuple[int, ...], list[_Running]] | None = None  # by their first tokens
        self._shares: dict[int, list[RowKV | None]] = {}
        self._is_on = self._cache.is_on and not model.is_recurrent and model.can_reuse
        self.leaders: set[int] = set()  # those of the admitted rows that others wait for, by identity

    def must_wait(self, row: Row) -> bool:
        """Let a row that is to be admitted begin with what is there of its first tokens; return whether it should wait for more.

        Cost: 10 us for a row that nothing is known of, none for one with few tokens to feed; else a comparison of tokens with the
        rows that have the same first ones.
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
        can_wait = not (row.job.is_joint or row.job.is_steered)  # who steers from outside counts on rows that run
        if leader is not None and can_wait and later - max(now, held) >= least:
            self.leaders.add(id(leader))
            return True
        others.append((row, None))
        if max(now, held) - row.cached >= least:
            self._begin(row, token_ids, self._share_of(source, now) if source is not None else None, held)
        return False

    def groups(self, admitted: Sequence[Row]) -> list[list[Row]]:
        """Return the admitted rows as those that are to run together: who is waited for reads beside rows of about its length, at once."""
        groups: dict[int, list[Row]] = {}
        for row in admitted:
            is_leader = id(row) in self.leaders and not row.job.is_joint
            length = (len(row.token_ids) - row.cached).bit_length() if is_leader else 0
            groups.setdefault(length, []).append(row)
        return list(groups.values())

    def _begin(self, row: Row, token_ids: tuple[int, ...], shared: RowKV | None, held: int) -> None:
        """Let a row begin with what it shares with a row that runs, and behind that with what the cache has."""
        found = shared
        if shared is None or held > len(shared):
            found = self._cache.find(token_ids)
            if shared is not None and found is not None:
                found = found.beginning_with(shared, len(shared))  # where others read it, too
        if found is not None and len(found) - row.cached >= self._cache.min_tokens:
            self._cache.note(len(found) - row.cached)
            row.begin_with(found)

    def _longest(self, row: Row, most: int, others: list[_Running]) -> tuple[int, _Running | None, int, Row | None]:
        """Return how many first tokens others have fed and who, and how many will be fed and by whom; more than `row` has, up to `most`."""
        now = later = row.cached
        source: _Running | None = None
        leader: Row | None = None
        for other, batch in reversed(others):  # those that came last share with those before them already
            reach = len(other.token_ids) if batch is None or other.awaits_forward else other.cached
            # Only who has the same token behind what was found has more.
            if now >= most or reach <= now or other.token_ids[now] != row.token_ids[now]:
                continue
            common = min(num_common(row.token_ids, other.token_ids), most, reach)
            if min(common, other.cached) > now:
                now, source = min(common, other.cached), (other, batch)
            if common > later:
                later, leader = common, other
        return now, source, later, leader

    def _others(self, beginning: tuple[int, ...]) -> list[_Running]:
        """Return the rows that run, or were admitted just now, and have the same first tokens."""
        if self._running is None:
            self._running = {}
            for batch in self._batches:
                for other in batch.rows:
                    if other.error is None and self._is_fresh(other.base_kv):
                        key = tuple(other.token_ids[: self._cache.min_tokens])
                        self._running.setdefault(key, []).append((other, batch))
        return self._running.setdefault(beginning, [])

    def _share_of(self, source: _Running, count: int) -> RowKV | None:
        """Return the keys and values of the first tokens of a row, where they lie, or a copy where they lie among many others."""
        row, batch = source
        base, held = row.base_kv, row.source_cached
        if base is not None and (batch is None or held >= count):
            return base[:count]
        assert batch is not None  # who was admitted just now has nothing else
        if id(batch) not in self._shares:
            self._shares[id(batch)] = batch.shares()
        kv = next(kv for kv, other in zip(self._shares[id(batch)], batch.rows, strict=True) if other is row)
        kv = kv[: min(count, kv.num_fresh(self._model.kv_store.epoch))] if kv is not None else None
        if not kv or len(kv) <= held:
            return base[:held] if base is not None and held else None
        more = self._worth_holding(kv.between(held, len(kv)))
        # From now on the two share them where they lie.
        row.base_kv = RowKV((*base[:held].parts, *more.parts)) if base is not None and held else more
        return row.base_kv

    def _worth_holding(self, kv: RowKV) -> RowKV:
        """Return keys and values as they are, or a copy where they lie among many others."""
        own, store = kv.num_token_bytes, self._model.kv_store
        if own >= _WORTH_SHARING * sum(kv.storage.values()) or not store.has_room(own):
            return kv
        return RowKV((kv.compact(store),))

    def _is_fresh(self, kv: RowKV | None) -> bool:
        return kv is None or kv.num_fresh(self._model.kv_store.epoch) == len(kv)
