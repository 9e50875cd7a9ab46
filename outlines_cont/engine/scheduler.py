"""`Scheduler`: the scheduler of continuous batching: first come, first served, up to `max_rows`, and fewer if keys and values run out of
room; the rows of a search start together. Long prompts are prefilled in batches of their own, which are merged with the decoding rows when
done. A batch whose forward fails is bisected until the failing row, or search, is alone; without room for keys and values rows wait again
instead. A row may wait for others that feed the same prefix (`Reuse`); a row that leaves is added to the prefix cache if it is long enough.

`Reuse`: prefix sharing at admission: a row begins with the keys and values of its longest prefix that a running row has fed (shared, or
copied out of much larger buffers), or that is in the prefix cache of the model. If another row is about to feed more of the same tokens, it
waits for that, except in searches and controlled jobs. From 32 tokens on, an image of any number of them; not for recurrent models, nor
where keys depend on the length of a text or the prefix cache is off.

A row waits only for running rows, which feed their prompts in every step; if such a row ends earlier, the rows that waited for it begin
with the prefix that is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from traceback import clear_frames
from typing import NamedTuple, Protocol

from outlines_cont.checks import check_int
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.engine.running_batch import RunningBatch
from outlines_cont.errors import KVBudgetError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.prefix_cache import num_common
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow

# Keys and values are copied if they are a smaller fraction of the buffers that they would keep alive.
_WORTH_SHARING = 0.5


class _Batch(Protocol):
    rows: list[Row]

    def shares(self) -> list[RowKV | None]:
        """Return the keys and values of the rows."""


class _Running(NamedTuple):
    """A row from which others may take a prefix."""

    row: Row
    batch: _Batch | None  # None if it was just admitted
    key_ids: list[int]
    reach: int  # how many of its tokens are fed, or will be in the next step


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
        most = row.num_reusable if self._is_on and not row.source.pinned else 0  # equal ids have other keys and values
        if not self._is_worth(row, row.cached, most):
            return False
        if self._running is None:
            self._cache.refresh()
        key_ids = row.key_ids
        others = self._others(self._beginning(row)[:most])
        wanted = key_ids[:most]
        now, source, later, leader = self._longest(wanted, row.cached, others)
        token_ids = tuple(wanted)
        held = self._cache.num_held(token_ids)
        can_wait = not (row.job.is_joint or row.job.is_controlled)  # a controller relies on running rows
        if leader is not None and can_wait and self._is_worth(row, max(now, held), later):
            self._leaders.add(leader)
            return True
        others.append(_Running(row, None, key_ids, row.length))
        if self._is_worth(row, row.cached, max(now, held)):
            self._begin(row, token_ids, self._share_of(source, now) if source is not None else None, held)
        return False

    def _is_worth(self, row: Row, start: int, stop: int) -> bool:
        """Return whether keys and values from one index to another are worth sharing: of enough tokens, or of an image of any number."""
        if stop - start >= self._cache.min_tokens:
            return True
        return bool(row.source.images) and any(start < span.stop <= stop for span in row.images)

    def _beginning(self, row: Row) -> tuple[int, ...]:
        """Return the first tokens that rows have in common which share more than few; those up to the first image, if these are fewer."""
        count = min(self._cache.min_tokens, *(span.stop for span in row.images[:1]), row.length)
        return tuple(row.key_ids[:count])

    def groups(self, admitted: Sequence[Row]) -> list[list[Row]]:
        """Return the admitted rows by batch: those that others wait for run with rows of similar length, to be fed in one part."""
        groups: dict[int, list[Row]] = {}
        for row in admitted:
            is_leader = row in self._leaders and not row.job.is_joint
            length = (row.length - row.cached).bit_length() if is_leader else 0
            groups.setdefault(length, []).append(row)
        return list(groups.values())

    def _begin(self, row: Row, token_ids: tuple[int, ...], shared: RowKV | None, held: int) -> None:
        """Let a row begin with keys and values of a running row, and after them with those of the prefix cache."""
        found = shared
        if shared is None or held > len(shared):
            found = self._cache.find(token_ids)
            if shared is not None and found is not None:
                found = found.beginning_with(shared, len(shared))  # shares its buffers with the running row
        if found is not None and self._is_worth(row, row.cached, len(found)):
            self._cache.note(len(found) - row.cached)
            row.begin_with(found)

    def _longest(
        self, token_ids: list[int], cached: int, others: list[_Running]
    ) -> tuple[int, _Running | None, int, Row | None]:
        """Return the longest prefix of some tokens that another row has fed, with that row, and the longest that one will feed, with that.

        Both are at least the first `cached`.
        """
        now = later = cached
        source: _Running | None = None
        leader: Row | None = None
        for other in reversed(others):  # the last first, which share with those before them already
            if now >= len(token_ids):
                break
            # A longer prefix has the same token at index `now`.
            if other.reach <= now or other.key_ids[now] != token_ids[now]:
                continue
            common = min(num_common(token_ids, other.key_ids), other.reach)
            fed = min(common, other.row.cached)
            if fed > now:
                now, source = fed, other
            if common > later:
                later, leader = common, other.row
        return now, source, later, leader

    def _others(self, beginning: tuple[int, ...]) -> list[_Running]:
        """Return the rows with these first tokens that run or were just admitted."""
        if self._running is None:
            self._running = {}
            for batch in self._batches:
                for other in batch.rows:
                    kv = other.base_kv
                    if other.error is None and (kv is None or kv.num_fresh(self._model.kv_store.epoch) == len(kv)):
                        reach = other.length if other.awaits_forward else other.cached
                        one = _Running(other, batch, other.key_ids, reach)
                        self._running.setdefault(self._beginning(other), []).append(one)
        return self._running.setdefault(beginning, [])

    def _share_of(self, source: _Running, count: int) -> RowKV | None:
        """Return the keys and values of the first `count` tokens of a row, or of fewer, shared or copied."""
        row, batch = source.row, source.batch
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


# With more rows only longer texts are copied to the prefix cache, as a batch feeds short ones again at less cost.
_FEW_ROWS = 8


class Scheduler:
    """The rows of one model: those that run, in batches, and those that wait to be admitted.

    Attributes:
        max_batch_tokens, max_rows: see `Engine`.
        batches: the rows that run.
        waiting: the rows that wait to be admitted, in order.
        submitted: jobs that were not registered yet.
        room: for how many rows there is room; None until keys and values have run out of it.
        counts: the work that belongs to no single row.
    """

    def __init__(self, model: LanguageModel, max_batch_tokens: int, max_rows: int) -> None:
        check_int("max_batch_tokens", max_batch_tokens, 1)
        check_int("max_rows", max_rows, 1)
        self.max_batch_tokens, self.max_rows = max_batch_tokens, max_rows
        self.batches: list[RunningBatch] = []
        self.waiting: deque[Row] = deque()
        self.jobs: list[Job] = []
        self.submitted: deque[Job] = deque()
        self.room: int | None = None
        self.counts = Meter()
        self._model = model

    @property
    def rows(self) -> Iterator[Row]:
        """The rows that run."""
        return (row for batch in self.batches for row in batch.rows)

    @property
    def num_running(self) -> int:
        """The number of rows that run."""
        return sum(len(batch.rows) for batch in self.batches)

    def register_submitted(self) -> None:
        """Register new jobs; called before the checkpoint, and may be repeated after an interrupt."""
        if not self.submitted:
            return
        jobs, known = set(self.jobs), {*self.waiting, *self.rows}
        while self.submitted:
            job = self.submitted[0]
            if job not in jobs:
                new = [row for row in job.rows if row not in known]
                if job.is_urgent:
                    self.waiting.extendleft(reversed(new))
                else:
                    self.waiting.extend(new)
                self.jobs.append(job)
            self.submitted.popleft()

    def restart(self, jobs: Sequence[Job], rows: deque[Row], room: int | None) -> None:
        """Close all batches, and begin again with these jobs, all of whose rows wait."""
        for batch in self.batches:
            batch.close()
        self.batches, self.waiting = [], rows
        self.jobs, self.room = [*jobs], room

    # -- rows that begin, fork and move --------------------------------------------------------------------------------

    def admit(self, note: Callable[[Iterable[Row]], None]) -> None:
        """Admit waiting rows in order, as many as there is room for, all rows of a joint job together; call `note` with them first."""
        if not self.waiting:
            return
        reuse = Reuse(self._model, self.batches)
        admitted: list[Row] = []
        later: list[Row] = []  # those that wait for others to feed a common prefix
        while self.waiting and self._has_room(self.waiting[0], len(admitted) + len(later), is_first=not admitted):
            row = self.waiting.popleft()
            if reuse.must_wait(row):
                later.append(row)
                continue
            admitted.append(row)
            while row.job.is_joint and self.waiting and self.waiting[0].job is row.job:
                reuse.must_wait(self.waiting[0])
                admitted.append(self.waiting.popleft())
        self.waiting.extendleft(reversed(later))
        if not admitted:
            return
        note(row for row in admitted if not row.job.is_controlled)
        groups = reuse.groups(admitted) if self._model.can_stack else [[row] for row in admitted]
        self.batches += [RunningBatch(self._model, group, self.counts) for group in groups]

    def _has_room(self, row: Row, num_new: int, *, is_first: bool) -> bool:
        """Return whether a waiting row may run with the rows that do, and `num_new` others."""
        running = self.num_running
        if row.job.is_urgent:  # else rows that fill all the room would wait for it forever
            running = sum(other.status is not RowStatus.CALLING for other in self.rows)
            # Of keys and values, which rows that wait hold, too.
            has_room = self.room is None or self.num_running + num_new < self.room
            return (has_room and running + num_new < self._limit) or (is_first and not running)
        return running + num_new < self._limit or (is_first and not self.batches)

    @property
    def _limit(self) -> int:
        """The most rows that may run now."""
        limit = min(self.max_rows, self.max_batch_tokens)
        if limit > self.max_batch_tokens // 2 and any(row.negative is not None for row in (*self.waiting, *self.rows)):
            limit = max(self.max_batch_tokens // 2, 1)  # a guided row is two sequences
        return limit if self.room is None else min(limit, self.room)

    def fork(self, row: Row, rows: Sequence[Row]) -> None:
        """Replace a row by the rows that it forks into, itself first."""
        row.job.forked(row, rows)
        for batch in self.batches:
            if row in batch.rows:
                self.batches += batch.fork(row, rows)
                return
        at = self.waiting.index(row)
        for offset, fork in enumerate(rows[1:], 1):
            self.waiting.insert(at + offset, fork)

    def merge(self) -> None:
        """Merge the batches that have fed their prompts, but for few tokens."""
        self.batches = [batch for batch in self.batches if batch.rows]
        is_open = len(self.batches) > 1 and self._model.can_stack
        ready = [batch for batch in self.batches if not batch.is_prefilling] if is_open else []
        for batch in ready[1:]:
            ready[0].join(batch)
            self.batches.remove(batch)
        if not self.batches:
            self.room = None

    def bisect(self, batch: RunningBatch, error: Exception) -> None:
        """Split a batch whose forward has failed, to try again with fewer rows; a row, or a joint job, that is alone fails.

        If there is no room for keys and values, rows wait instead until others have ended; one that is alone is fed again from its first
        token, with nothing else in memory. So whether a row fails depends on its own tokens and the budget alone.
        """
        clear_frames(error.__traceback__)  # to release their keys and values, as rows keep the error
        units = list(dict.fromkeys(_unit(row) for row in batch.rows))
        others = [other for other in self.batches if other is not batch and other.rows]
        if isinstance(error, KVBudgetError) and self._has_put_back_for_urgent(batch):
            return
        if isinstance(error, KVBudgetError) and others:
            self._put_back(batch, batch.rows)
        elif len(units) == 1:
            # Buffers of sources and of other rows may be larger than what the rows need of them, and a copy needs room beside them.
            if isinstance(error, KVBudgetError) and batch.begin_anew():
                return
            batch.forget()
            for row in batch.rows:
                row.fail(error)
        else:
            second = [row for row in batch.rows if _unit(row) in units[len(units) // 2 :]]
            if isinstance(error, KVBudgetError):
                self._put_back(batch, second)
            else:
                self.batches.append(batch.split(second))

    def _has_put_back_for_urgent(self, batch: RunningBatch) -> bool:
        """Put rows back where the urgent ones of a batch have no room beside rows that all wait for them; return whether any were.

        All urgent rows but one, then the rows that wait for it, by halves, so that each is in the end alone with what there is.
        """
        urgent = [row for row in batch.rows if row.job.is_urgent]
        others = [row for row in self.rows if row not in urgent]
        if not urgent or any(map(_may_go_on, others)):
            return False
        if len(urgent) > 1:
            self._put_back(batch, urgent[len(urgent) // 2 :])
            return True
        for held in reversed(self.batches):
            rows = [row for row in held.rows if row in others]
            if rows:
                self._put_back(held, rows[len(rows) // 2 :])
                return True
        return False

    def _put_back(self, batch: RunningBatch, rows: list[Row]) -> None:
        waiting = [*batch.split(rows).rows, *self.waiting]
        # Those that others wait for come first.
        self.waiting = deque(sorted(waiting, key=lambda row: not row.job.is_urgent))
        self.room = max(self.num_running, 1)

    # -- rows that leave -----------------------------------------------------------------------------------------------

    def leave(self, batch: RunningBatch) -> None:
        """Remove the rows of a batch that have ended, and pass them to their jobs."""
        for row, state_row in self._remove_ended(batch):
            row.job.note_end(row, state_row)
            if self.room is not None:
                self.room += 1

    def remove_cancelled(self) -> None:
        """Remove the rows of jobs that were cancelled."""
        cancelled = [job for job in self.jobs if job.is_cancelled and not job.is_over]
        if not cancelled:
            return
        self.waiting = deque(row for row in self.waiting if not row.job.is_cancelled)
        for batch in self.batches:
            for row in batch.rows:
                if row.job.is_cancelled:
                    row.status = RowStatus.LEAVING
            for row, state_row in self._remove_ended(batch):  # others may have ended in the same step
                if not row.job.is_cancelled:
                    row.job.note_end(row, state_row)
        self.batches = [batch for batch in self.batches if batch.rows]
        for job in cancelled:
            job.leave()
            job.rows = []

    def _remove_ended(self, batch: RunningBatch) -> list[tuple[Row, StateRow]]:
        """Remove the rows that have ended, and add those that have fed enough tokens to the prefix cache."""
        ended, cache = batch.leave(), self._model.prefix_cache
        if not ended or not cache.is_on:
            return ended
        least = cache.min_tokens if self.num_running + len(ended) <= _FEW_ROWS else 2 * cache.min_tokens
        held = [(row, state_row, state_row.kv) for row, state_row in ended if state_row.kv and row.error is None]
        worth = [
            (state_row, kv)
            for row, state_row, kv in held
            if 2 * (len(kv) - row.source.cached) >= least or _has_seen(row, state_row)
        ]
        if worth:
            cache.refresh()
        for state_row, kv in worth:
            cache.keep(state_row.key_ids[: len(kv)], kv, least)
            if state_row.images:  # of any number of tokens
                cache.keep(state_row.key_ids[: min(state_row.images[-1].stop, len(kv))], kv, 1)
        return ended

    def shares(self, rows: Sequence[Row]) -> list[RowKV | None]:
        """Return the keys and values of some rows, which continue to run."""
        held: dict[Row, RowKV | None] = {}
        for batch in self.batches:
            if not set(rows).isdisjoint(batch.rows):
                held.update(zip(batch.rows, batch.shares(), strict=True))
        return [held.get(row, row.base_kv) for row in rows]


def _may_go_on(row: Row) -> bool:
    """Return whether a row may end without an urgent one: it does not just wait, as for the scores of texts."""
    is_waiting = row.status in (RowStatus.CALLING, RowStatus.WAITING) and not row.job.is_urgent
    return not is_waiting or row.job.is_calling or row.num_pending > 0 or row.slow is not None


def _has_seen(row: Row, left: StateRow) -> bool:
    """Return whether a row that has left was fed an image, or has taken one from another, since it began."""
    return bool(left.images) and left.images[-1].stop > row.source.cached


def _unit(row: Row) -> Row | Job:
    """Return the row, or its job if all rows of the job must run in one batch."""
    return row.job if row.job.is_joint else row
