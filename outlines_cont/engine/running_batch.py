"""`RunningBatch`: a decode or prefill batch: rows, and the negative prompts of guided ones, whose pending tokens are fed in the same
forwards (prompts in parts, chunked prefill), with their ragged KV cache. It scores forced tokens, and can fork, join and split; after a
split or an error its keys and values are dropped, and those that its rows did not begin with are recomputed.

The sequences of a batch are the rows, then the negative prompts; lists of chunks and of `RowKV` have this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import numpy as np
import torch

from outlines_cont.device import upload
from outlines_cont.engine.drafting.chunk_width import chunk_width
from outlines_cont.engine.drafting.expected import NOTHING_EXPECTED
from outlines_cont.engine.guidance import NegativeSequence
from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.errors import KVBudgetError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import Fed, KVBatch
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.serial import AnyBatch, ClosedBatch, open_batch
from outlines_cont.meter import Meter
from outlines_cont.state.image_span import ImageSpan, floor, offset
from outlines_cont.state.row import StateRow

# A row with this many tokens to feed, or fewer, is fed in the forwards of the rows that decode: such as one that continues a state.
_FEW_TOKENS = 8


class RunningBatch:
    """Rows that are fed in the same forwards, with their KV cache.

    Attributes:
        rows: the rows that run.
        counts: the work that belongs to no single row.
        num_fed: the number of tokens of the last forward, padding included.
        scores: (n,) log-probabilities of the forced tokens that it has scored, which rows do not have yet; None for none. They are read
            from the device with the draws.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[Row], counts: Meter) -> None:
        self.rows = list(rows)
        self.counts = counts
        self.num_fed = 0
        self.scores: torch.Tensor | None = None
        self._scored: list[tuple[Row, int]] = []  # how many of them are of which row
        self._model = model
        self._kv: AnyBatch | ClosedBatch | None = None
        self._is_anew = False  # whether not everything was fed since `begin_anew`

    @property
    def sequences(self) -> list[Row | NegativeSequence]:
        """The rows, then the negative sequences."""
        return [*self.rows, *(row.negative for row in self.rows if row.negative is not None)]

    @property
    def is_prefilling(self) -> bool:
        """Whether some sequence has so much of its prompt to feed that this is done in a batch of its own."""
        return any(one.cached < len(one.source.token_ids) and one.num_pending > _FEW_TOKENS for one in self.sequences)

    def leave(self) -> list[tuple[Row, StateRow]]:
        """Remove the rows that have ended, and return each with its value, which has its keys and values."""
        leaving = [i for i, row in enumerate(self.rows) if row.status is RowStatus.LEAVING]
        if not leaving:
            return []
        shares, ended = self._released(leaving), []
        for i in leaving:
            row, share = self.rows[i], shares[i]
            ended.append((row, row.leave(share[: row.cached] if share is not None else None)))
        staying = [i for i in range(len(self.rows)) if i not in leaving]
        self._keep(staying, [self.rows[i] for i in staying])
        return ended

    def feed(self, max_tokens: int) -> torch.Tensor | None:
        """Feed pending tokens of all rows in one forward, and score the forced ones among them.

        Args:
            max_tokens: the most tokens of the forward, padding included; longer prompts are fed in parts, and so are chunks
                that would leave most of the forward empty; see `chunk_width`.

        Returns:
            (R, V) logits to sample from, if those of the forward are just that; else None, and rows have their own.

        Raises:
            KVBudgetError: there is no room for the new keys and values. Then, and after any other error, call `forget`.
        """
        logits = self._feed_next()
        if logits is not None:
            return logits
        sequences = self.sequences
        has_images = any(row.source.images for row in self.rows)
        if has_images and self._feed_image():
            return None
        pending = self._pending(sequences)
        if not any(pending):
            return None
        if self._kv is None or isinstance(self._kv, ClosedBatch):
            self._kv = open_batch(self._model, self._all_released())
            if self._is_anew and isinstance(self._kv, KVBatch):
                self._kv.allocate_exactly(max(map(len, pending)))
        if self._align(sequences, self._kv):
            pending = self._pending(sequences)
            if not any(pending):  # an image was lost with what was cut, and is next
                return None
        self._kv.offsets = _offsets_of(sequences) if has_images else None
        width = chunk_width([*map(len, pending)], max_tokens, self._model.device.type)
        chunks = pending if width == 1 == max(map(len, pending)) else [chunk[:width] for chunk in pending]
        wanted = [one.wanted(len(chunk)) for one, chunk in zip(sequences, chunks, strict=True)]
        fed = self._kv.feed(chunks, wanted)
        self.counts.forwards += fed.num_forwards
        self.num_fed = width * len(sequences)
        self._score(fed.logits, fed.columns)
        num_columns = fed.logits.shape[1]
        views = fed.logits.flatten(0, 1).unbind()  # (V,) each
        for i, (one, chunk, columns) in enumerate(zip(sequences, chunks, fed.columns, strict=True)):
            if chunk:
                found = {index: views[i * num_columns + column] for index, column in columns.items()} if columns else {}
                one.fed(len(chunk), found)
        self._is_anew = self._is_anew and any(one.num_pending for one in sequences)
        is_plain = num_columns == 1 and all(chunks) and all(row.is_ready for row in self.rows)
        return fed.logits[: len(self.rows), 0] if is_plain else None

    def _pending(self, sequences: Sequence[Row | NegativeSequence]) -> list[list[int]]:
        """Return what each sequence has to feed, up to the next image."""
        return [_up_to_image(one, one.chunk()) if isinstance(one, Row) else one.chunk() for one in sequences]

    def _feed_image(self) -> bool:
        """Feed the image of the first row that comes to one, alone; return whether there was one. The batch is opened again later."""
        found = ((at, row, span) for at, row in enumerate(self.rows) if (span := _image_to_feed(row)) is not None)
        at, row, span = next(found, (0, None, None))
        if row is None or span is None:
            return False
        shares = self._all_released()
        self._kv = ClosedBatch(shares)
        share = shares[at]
        held = len(share) if share is not None else 0
        if held < row.cached:  # evicted meanwhile: what is before the image is fed first
            row.lose(held)
            return _image_to_feed(row) is not None and self._feed_image()
        kept = share[: row.cached] if share is not None and row.cached else None
        kv, fed = _feed_image(self._model, row, span, kept)
        self._kv.replace(at, kv)
        self.counts.forwards += fed.num_forwards
        self.counts.images += 1
        self.num_fed = span.stop - span.start
        columns = [fed.columns[0] if index == at else {} for index in range(len(self.rows))]
        self._score(fed.logits.expand(len(self.rows), -1, -1), columns)
        row.fed(span.stop - span.start, {index: fed.logits[0, column] for index, column in columns[at].items()})
        return True

    def _feed_next(self) -> torch.Tensor | None:
        """Do the same for rows of which each has one token to feed, its last; None, and nothing is done, if there are others."""
        kv, token_ids, has_images = self._kv, list[int](), False
        for row in self.rows:
            feed, tokens = row.feed, row.tokens
            if row.status is not RowStatus.SAMPLING or feed.cached != tokens.length - 1 or not row.draws_next:
                return None
            if feed.expected.token_ids or tokens.unscored or row.negative is not None:
                return None
            if row.source.images:
                if _image_to_feed(row) is not None:
                    return None
                has_images = True
            token_ids.append(tokens.ids[-1])
        if not isinstance(kv, KVBatch) or (lengths := kv.lengths) != [row.feed.cached for row in self.rows]:
            return None
        kv.offsets = _offsets_of(self.rows) if has_images else None
        logits = kv.feed_next(token_ids, lengths)
        self.counts.forwards += 1
        self.num_fed, self._is_anew = len(self.rows), False
        for row, after in zip(self.rows, logits.unbind(), strict=True):
            row.feed.feed_last(after)
        return logits

    def shares(self) -> list[RowKV | None]:
        """Return the keys and values of all rows, which continue to run. Cost: that of a new batch; nothing is copied."""
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
        at = self.rows.index(row)
        if self._model.can_stack:
            sources = [*range(at), *[at] * len(rows), *range(at + 1, len(self.rows))]
            self.replace(sources, [*self.rows[:at], *rows, *self.rows[at + 1 :]])
            return []
        shares = self._all_released()
        self._open(shares)
        batches = [RunningBatch(self._model, [fork], self.counts) for fork in rows[1:]]
        for batch in batches:
            batch._open(shares)
        return batches

    def join(self, other: RunningBatch) -> None:
        """Add the rows of another batch, which is not used any more. Cost: that of a new batch."""
        own, others = self._all_released(), other._all_released()
        here, there = len(self.rows), len(other.rows)
        self.rows += other.rows
        self._open(self._based([*own[:here], *others[:there], *own[here:], *others[there:]]))

    def split(self, rows: Sequence[Row]) -> RunningBatch:
        """Move some rows to a new batch; the keys and values of all rows are dropped."""
        self.forget()
        moved = RunningBatch(self._model, rows, self.counts)
        self.rows = [row for row in self.rows if row not in moved.rows]
        return moved

    def begin_anew(self) -> bool:
        """Drop all keys and values but pinned ones, also those that the rows began with, to feed all tokens again in little memory.

        Returns False, and does nothing, if not everything was fed since the last time.
        """
        if self._is_anew:
            return False
        self._is_anew = True
        for one in self.sequences:
            pinned = one.source.pinned
            one.base_kv = one.source.kv[:pinned] if one.source.kv is not None and pinned else None
            one.feed.expected = NOTHING_EXPECTED
        self.forget()
        return True

    def forget(self) -> None:
        """Drop the keys and values, after an error; tokens that the sources of rows do not cover are fed again."""
        self._kv, self.scores, self._scored = None, None, []
        for one in self.sequences:
            one.lose(one.source_cached)

    def read_scores(self) -> None:
        """Give rows the log-probabilities of their forced tokens, if no draw has read them from the device."""
        if self.scores is not None:
            self.note_scores(self.scores.tolist())

    def note_scores(self, logprobs: Sequence[float]) -> None:
        """Give rows the log-probabilities of their forced tokens: the values of `scores`."""
        found, scored, self.scores, self._scored = iter(logprobs), self._scored, None, []
        for row, count in scored:
            row.score([*islice(found, count)])

    def close(self) -> None:
        """Drop the rows, with their keys and values."""
        self._kv, self.rows = None, []

    # -- keys and values -----------------------------------------------------------------------------------------------

    def _keep(self, sources: Sequence[int], rows: Sequence[Row]) -> None:
        """Replace the rows by `rows`, each with the keys and values of the one at its index in `sources`."""
        guided = [i for i, row in enumerate(self.rows) if row.negative is not None]
        sources = [*sources, *(len(self.rows) + guided.index(i) for i in sources if i in guided)]
        self.rows = list(rows)
        if self._kv is None or not rows:
            self._kv = None
        elif isinstance(self._kv, KVBatch) and not any(map(_has_taken, self.sequences)):
            try:
                self._kv.keep(sources)
            except KVBudgetError:
                self.forget()
        else:
            shares = self._kv.release_all()
            self._open(self._based([shares[source] for source in sources]))

    def _based(self, shares: list[RowKV | None]) -> list[RowKV | None]:
        """Return keys and values that begin with those which rows have taken from others, so that these share them in place."""
        if not self._model.can_branch:
            return shares
        return [
            share.beginning_with(one.base_kv, one.source_cached)
            if share is not None and one.base_kv is not None and _has_taken(one)
            else share
            for one, share in zip(self.sequences, shares, strict=True)
        ]

    def _open(self, shares: Sequence[RowKV | None]) -> None:
        """Begin a KV cache with the keys and values of all rows; drop them if there is no room for it."""
        try:
            self._kv = open_batch(self._model, shares)
        except KVBudgetError:
            self.forget()

    def _released(self, leaving: Sequence[int]) -> list[RowKV | None]:
        """Return the keys and values of the rows at indices `leaving`; None for the others."""
        if isinstance(self._kv, ClosedBatch):
            self._open(self._kv.release_all())
        if self._kv is None:
            return [row.base_kv for row in self.rows]
        if len(leaving) == len(self.rows):
            kv, self._kv = self._kv, None
            if isinstance(kv, KVBatch) and kv.num_rows > len(self.rows):
                with suppress(KVBudgetError):  # out of the memory of negative sequences, if there is room for it
                    return kv.release_only(range(len(self.rows)))
            return kv.release_all()
        assert isinstance(self._kv, KVBatch)  # the others run one row
        try:
            released = dict(zip(leaving, self._kv.release(leaving), strict=True))
            return [released.get(i) for i in range(len(self.rows))]
        except KVBudgetError:  # no room for a copy
            return [None] * len(self.rows)

    def _all_released(self) -> list[RowKV | None]:
        return [one.base_kv for one in self.sequences] if self._kv is None else self._kv.release_all()

    def _align(self, sequences: Sequence[Row | NegativeSequence], kv: AnyBatch) -> bool:
        """Cut sequences and KV cache to common lengths, as rows may be rewound, keys and values evicted; return whether any differed."""
        lengths = kv.lengths
        if [one.feed.cached + one.feed.expected.num_fed for one in sequences] == lengths:
            return False
        rewound: dict[int, int] = {}
        for i, (one, length) in enumerate(zip(sequences, lengths, strict=True)):
            one.lose(length)
            if one.feed.held < length:
                rewound[i] = one.feed.held
        if rewound:
            kv.rewind(rewound)
            lengths = kv.lengths  # where a cache cannot be cut at an index, it is shorter
            for i in rewound:
                sequences[i].lose(lengths[i])
        return True

    def _score(self, logits: torch.Tensor, columns: Sequence[dict[int, int]]) -> None:
        """Compute the log-probabilities of the forced tokens for which there are logits now; called before rows note what was fed."""
        unscored = [(i, row) for i, row in enumerate(self.rows) if row.tokens.unscored]
        scored = [(i, row, row.tokens.scored_by(row.cached, columns[i])) for i, row in unscored]
        indices = [(i, columns[i][index], token_id) for i, _, tokens in scored for index, token_id in tokens]
        if not indices:
            return
        row_index, position, token_ids = upload(np.array(indices), logits.device).unbind(1)
        self.scores = logits[row_index, position].log_softmax(1).gather(1, token_ids[:, None])[:, 0]
        self._scored = [(row, len(tokens)) for _, row, tokens in scored if tokens]


def _has_taken(one: Row | NegativeSequence) -> bool:
    """Return whether a sequence begins with keys and values that it has taken from another."""
    return one.base_kv is not None and one.base_kv is not one.source.kv


def _next_image(row: Row) -> ImageSpan | None:
    """Return the first image of a row that is not fed, None for none; what is fed of one that is not whole is lost."""
    images = row.images
    start = floor(images, row.cached)
    if start < row.cached:
        row.lose(start)
    return next((span for span in images if span.start >= row.cached and span.stop <= row.length), None)


def _image_to_feed(row: Row) -> ImageSpan | None:
    """Return the image that a row has to feed next, None if there is none, or text before it."""
    span = _next_image(row) if row.source.images else None
    return span if span is not None and span.start == row.cached and row.num_pending else None


def _up_to_image(row: Row, chunk: list[int]) -> list[int]:
    """Return the pending tokens of a row before the next image."""
    span = _next_image(row) if row.source.images else None
    return chunk if span is None else chunk[: span.start - row.cached]


def _offsets_of(rows: Sequence[object]) -> list[int]:
    """Return by how much the positions of the next tokens of sequences differ from their indices."""
    return [offset(row.images, row.cached) if isinstance(row, Row) else 0 for row in rows]


def _feed_image(model: LanguageModel, row: Row, span: ImageSpan, share: RowKV | None) -> tuple[RowKV | None, Fed]:
    """Feed an image of a row on top of its keys and values; return these with those of the image, and the logits that the row wants.

    Raises `ImageLost` if the pixels are not at hand, `KVBudgetError` if there is no room.
    """
    row.source.check_images()
    ids = row.token_ids[span.start : span.stop]
    kv, fed = model.feed_image(share, ids, span.pixels, offset(row.images, span.start), row.wanted(len(ids)))
    return kv, fed
