"""`open_batch`: chooses the batch that fits a model: `KVBatch`, `RecurrentBatch`, or a `SerialBatch`, in which each row is fed in a
forward of its own. The last is for several rows of a model that does not support left-padded batches, recurrent models among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.fed import Fed
from outlines_cont.kv.recurrent import RecurrentBatch
from outlines_cont.kv.row import RowKV


class SerialBatch:
    """A batch whose sequences are fed one by one, each in its own `KVBatch` or `RecurrentBatch`; the interface is that of `KVBatch`."""

    def __init__(self, batches: Sequence[KVBatch | RecurrentBatch]) -> None:
        """Take the batches, of one sequence each."""
        self._batches = batches

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each sequence that are cached."""
        return [batch.lengths[0] for batch in self._batches]

    def feed(self, chunks: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Fed:
        """Feed one chunk per sequence. See `KVBatch.feed`. Cost: a forward for each chunk that is not empty."""
        given = zip(self._batches, chunks, wanted, strict=True)
        fed = [batch.feed([chunk], [indices]) if chunk else None for batch, chunk, indices in given]
        found = [one.logits[0] for one in fed if one is not None]
        lines = [one.logits[0].to(found[0].device) if one is not None else found[0][:0] for one in fed]
        logits = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        return Fed(logits, [one.places[0] if one is not None else {} for one in fed], num_forwards=len(found))

    def rewind(self, row: int, length: int) -> None:
        """Remove the tokens of one sequence from index `length` on; see the batches for what must be fed again."""
        self._batches[row].rewind(0, length)

    def release(self, row: int) -> RowKV | None:
        """Return the keys and values, or snapshots, of one sequence."""
        return self._batches[row].release(0)

    def release_all(self) -> list[RowKV | None]:
        """Return those of all sequences; the batch cannot be used afterwards."""
        return [share for batch in self._batches for share in batch.release_all()]


def open_batch(model: LanguageModel, shares: Sequence[RowKV | None]) -> KVBatch | RecurrentBatch | SerialBatch:
    """Return a batch of the kind that fits the model; None is a row without anything cached."""
    kind = RecurrentBatch if model.is_recurrent else KVBatch
    if len(shares) > 1 and not model.can_stack:
        return SerialBatch([kind(model, [share]) for share in shares])
    return kind(model, shares)
