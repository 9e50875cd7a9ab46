"""`RunningBatch`: a decode batch: rows whose pending tokens go into the same forwards (prompts in parts, chunked prefill), with their
ragged KV cache. It scores forced tokens, and can fork, join and split; after an error its keys and values are dropped and recomputed.

What is fed are sequences: the rows, then the negative prompts (`Shadow`) of guided rows. `RowKV`s and chunks are in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from outlines_cont.engine.guessing.feed_width import chunk_width
from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.engine.row import Row
from outlines_cont.engine.steered_row import Want
from outlines_cont.errors import KVBudgetError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.serial import AnyBatch, open_batch
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow


class RunningBatch:
    """Rows that are fed in the same forwards, with their KV cache.

    Attributes:
        rows: those that still run.
        counts: the work that belongs to no single row.
        num_fed: how many tokens the last forward had, padding included.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[Row], counts: Meter) -> None:
        self.rows = list(rows)
        self.counts = counts
        self.num_fed = 0
        self._model = model
        self._kv: AnyBatch | None = None

    @property
    def sequences(self) -> list[Row | Shadow]:
        """What is fed: the rows, then the shadows."""
        return [*self.rows, *(row.shadow for row in self.rows if row.shadow is not None)]

    @property
    def is_prefilling(self) -> bool:
        """Whether some sequence has more of its prompt to be fed than the one token that every step appends."""
        return any(one.cached < len(one.source.token_ids) and one.num_pending > 1 for one in self.sequences)

    def leave(self) -> list[tuple[Row, StateRow]]:
        """Take the rows that have ended out, each as a value with its keys and values."""
        leaving = [i for i, row in enumerate(self.rows) if row.want is Want.LEAVE]
        if not leaving:
            return []
        staying = [i for i in range(len(self.rows)) if i not in leaving]
        shares = self._released(leaving)
        ended = []
        for i in leaving:
            row, share = self.rows[i], shares[i]
            ended.append((row, row.leave(share[: row.cached] if share is not None else None)))
        self._keep(staying, [self.rows[i] for i in staying])
        return ended

    def feed(self, max_tokens: int) -> torch.Tensor | None:
        """Feed pending tokens of all rows in one forward, and score the forced ones among them.

        Args:
            max_tokens: the most tokens of the forward, padding included; longer prompts are read in parts, and so are chunks
                that would leave most of the forward empty; see `chunk_width`.

        Returns:
            (R, V) logits to sample from, where those of the forward are just that; else None, and rows have their own.

        Raises:
            KVBudgetError: there is no room for the new keys and values. Then, and after any other error, call `forget`.
        """
        sequences = self.sequences
        if not any(one.num_pending for one in sequences):
            return None
        if self._kv is None:
            self._kv = open_batch(self._model, [one.base_kv for one in sequences])
        self._match(sequences, self._kv)
        pending = [one.chunk() for one in sequences]
        width = chunk_width([*map(len, pending)], max_tokens, self._model.device.type)
        chunks = [chunk[:width] for chunk in pending]
        wanted = [one.wanted(len(chunk)) for one, chunk in zip(sequences, chunks, strict=True)]
        fed = self._kv.feed(chunks, wanted)
        self.counts.forwards += fed.num_forwards
        self.num_fed = width * len(sequences)
        self._score(fed.logits, fed.places)
        for i, (one, chunk) in enumerate(zip(sequences, chunks, strict=True)):
            if chunk:
                one.fed(len(chunk), {index: fed.logits[i, at] for index, at in fed.places[i].items()})
        is_plain = fed.logits.shape[1] == 1 and all(map(len, chunks)) and all(row.is_ready for row in self.rows)
        return fed.logits[: len(self.rows), 0] if is_plain else None

    def shares(self) -> list[RowKV | None]:
        """Return the keys and values of all rows as they are now; the rows keep running. Cost: as that of a new batch, without a copy."""
        if self._kv is None:
            return [row.base_kv for row in self.rows]
        found = self._kv.release_all()
        self._open(found)
        return found[: len(self.rows)]

    def replace(self, sources: Sequence[int], rows: Sequence[Row]) -> None:
        """Replace the rows: row i continues from the end of the one at index `sources[i]`. `sources` ascends."""
        if list(sources) == list(range(len(self.rows))):
            self.rows = list(rows)
        else:
            self._keep(sources, rows)

    def fork(self, row: Row, rows: Sequence[Row]) -> list[RunningBatch]:
        """Fork a row into `rows`, itself first; return new batches for those that cannot run here."""
        at = next(i for i, other in enumerate(self.rows) if other is row)
        if self._model.can_stack:
            places = [*range(at), *[at] * len(rows), *range(at + 1, len(self.rows))]
            self.replace(places, [*self.rows[:at], *rows, *self.rows[at + 1 :]])
            return []
        shares = self._all_released()
        self._open(shares)
        batches = [RunningBatch(self._model, [fork], self.counts) for fork in rows[1:]]
        for batch in batches:
            batch._open(shares)
        return batches

    def join(self, other: RunningBatch) -> None:
        """Take in the rows of another batch, which is not used any more. Cost: as that of a new batch."""
        own, others = self._all_released(), other._all_released()
        here, there = len(self.rows), len(other.rows)
        self.rows += other.rows
        self._open(self._based([*own[:here], *others[:there], *own[here:], *others[there:]]))

    def split(self, rows: Sequence[Row]) -> RunningBatch:
        """Move some rows to a batch of their own; what was fed of all rows is dropped."""
        self.forget()
        rows = list(rows)
        self.rows = [row for row in self.rows if not any(row is other for other in rows)]
        return RunningBatch(self._model, rows, self.counts)

    def begin_alone(self) -> bool:
        """Give up the keys and values, and those taken from others as well; return whether there were such."""
        self.forget()
        return sum(row.begin_alone() for row in self.rows) > 0

    def forget(self) -> None:
        """Give up the keys and values, after an error: what rows do not have from their sources is fed again."""
        self._kv = None
        for one in self.sequences:
            one.lose(one.source_cached)

    def close(self) -> None:
        """Let go of everything."""
        self._kv, self.rows = None, []

    # -- inside --------------------------------------------------------------------------------------------------------

    def _keep(self, sources: Sequence[int], rows: Sequence[Row]) -> None:
        """Go on with `rows`, each with what is held of the one at its index in `sources`."""
        shares = [] if self._kv is None else self._kv.release_all()
        guided = [i for i, row in enumerate(self.rows) if row.shadow is not None]
        places = [*sources, *(len(self.rows) + guided.index(i) for i in sources if i in guided)]
        self.rows = list(rows)
        if self._kv is not None and rows:
            self._open(self._based([shares[place] for place in places]))
        else:
            self._kv = None

    def _based(self, shares: list[RowKV | None]) -> list[RowKV | None]:
        """Return what is held of all rows, the first tokens where they were taken from: rows that took the same share them."""
        if not self._model.can_branch:
            return shares
        return [
            share.beginning_with(one.base_kv, one.source_cached)
            if share is not None and one.base_kv is not None and one.base_kv is not one.source.kv
            else share
            for one, share in zip(self.sequences, shares, strict=True)
        ]

    def _open(self, shares: Sequence[RowKV | None]) -> None:
        """Hold keys and values of all rows; where there is no room to bring them together, none."""
        try:
            self._kv = open_batch(self._model, shares)
        except KVBudgetError:
            self.forget()

    def _released(self, leaving: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of rows that leave, by index; those of the others are None."""
        if self._kv is None:
            return [row.base_kv for row in self.rows]
        if len(leaving) == len(self.rows):
            shares, self._kv = self._without_shadows(self._kv), None
            return shares
        try:
            return [self._kv.release(i) if i in leaving else None for i in range(len(self.rows))]
        except KVBudgetError:  # a row that leaves takes a copy; it goes without
            return [None] * len(self.rows)

    def _without_shadows(self, kv: AnyBatch) -> list[RowKV | None]:
        """Return the keys and values of all rows, which hold no memory of shadows where there is room to bring them elsewhere."""
        if isinstance(kv, KVBatch) and kv.num_rows > len(self.rows):
            with suppress(KVBudgetError):
                return kv.release_only(range(len(self.rows)))
        return kv.release_all()

    def _all_released(self) -> list[RowKV | None]:
        return [one.base_kv for one in self.sequences] if self._kv is None else self._kv.release_all()

    def _match(self, sequences: Sequence[Row | Shadow], kv: AnyBatch) -> None:
        """Bring rows and their keys and values to the same lengths: rows may have gone back, keys and values been evicted."""
        for i, one in enumerate(sequences):
            one.lose(kv.lengths[i])
            if one.held < kv.lengths[i]:
                kv.rewind(i, one.held)
                one.lose(kv.lengths[i])

    def _score(self, logits: torch.Tensor, places: Sequence[dict[int, int]]) -> None:
        """Give every row that was fed the log-probabilities of its forced tokens."""
        rows = [(i, row, row.unscored(places[i])) for i, row in enumerate(self.rows) if row.tokens.unscored]
        asked = [(i, places[i][index], token_id) for i, _, tokens in rows for index, token_id in tokens]
        if not asked:
            return
        row_index, place, token_ids = torch.tensor(asked, device=logits.device).unbind(1)
        picked = logits[row_index, place]
        scores = iter(picked.log_softmax(1).gather(1, token_ids[:, None])[:, 0].tolist())
        for _, row, tokens in rows:
            if tokens:
                row.score([next(scores) for _ in tokens])
