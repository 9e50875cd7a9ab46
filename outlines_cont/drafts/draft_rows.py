"""`DraftRows`: the KV cache of a draft model with one row per drafted row, read in common forwards. Before a read each is rolled back to
its longest common prefix with the row as it is now; long prompts are read in parts (chunked prefill). `ReadTokens`: the ids read of one
row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.engine.guessing.feed_width import chunk_width
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.meter import Meter

_MAX_BATCH_TOKENS = 4096


class ReadTokens:
    """What a draft model has read of one row.

    Attributes:
        token_ids: the ids that were read, guessed ones included.
        num_sure: how many of the first are surely still those of the row.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_sure = 0

    def cut(self, length: int) -> None:
        """Note that the row has only its first `length` tokens left."""
        self.num_sure = min(self.num_sure, length)

    def fork(self) -> ReadTokens:
        """Return that nothing was read of a fork; it is read when it is asked about."""
        return ReadTokens()

    def common(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens that were read are those of the row; its last one is read again in any case."""
        at, stop = min(self.num_sure, len(token_ids) - 1), min(len(self.token_ids), len(token_ids) - 1)
        while at < stop and self.token_ids[at] == token_ids[at]:
            at += 1
        return min(at, stop)


class DraftRows:
    """The rows that a draft model reads in common forwards, with their KV cache."""

    def __init__(self, model: LanguageModel) -> None:
        self.members: list[ReadTokens] = []  # what was read of each
        self._model = model
        self._kv: KVBatch | None = None

    def add(self, memories: Sequence[ReadTokens]) -> None:
        """Add the rows that are new. Cost: as that of a new batch, if there are any."""
        new = [memory for memory in memories if not any(memory is other for other in self.members)]
        if new:
            shares = [] if self._kv is None else self._kv.release_all()
            self._kv = None
            self.members += new
            self._kv = KVBatch(self._model, [*shares, *[None] * len(new)])

    def keep(self, memories: Sequence[ReadTokens]) -> None:
        """Drop all other rows; they are read again if they are drafted for again."""
        wanted = {id(memory) for memory in memories}
        staying = [i for i, memory in enumerate(self.members) if id(memory) in wanted]
        if len(staying) == len(self.members):
            return
        for i, memory in enumerate(self.members):
            if i not in staying:
                memory.token_ids, memory.num_sure = [], 0
        self.members = [self.members[i] for i in staying]
        if self._kv is not None and staying:
            self._kv.keep(staying)
        else:
            self._kv = None

    def rewind(self, memory: ReadTokens, token_ids: Sequence[int]) -> None:
        """Roll back to the longest common prefix of what was read and the row."""
        at, kv = self._place(memory), self._batch
        common = min(memory.common(token_ids), kv.lengths[at])
        if common < kv.lengths[at]:
            kv.rewind(at, common)
        memory.token_ids, memory.num_sure = [*token_ids[:common]], common

    def read(self, wanted: Sequence[tuple[ReadTokens, Sequence[int]]], counts: Meter) -> list[torch.Tensor | None]:
        """Read more of some rows in one forward.

        Args:
            wanted: what is read of each row, and all ids of the row, of which at least one was not read yet.
            counts: where the work is counted.

        Returns:
            For each of them (V,) logits after the last id; None where more is to be read, as there was too much for one forward.
        """
        kv, places = self._batch, [self._place(memory) for memory, _ in wanted]
        pending = [0] * len(self.members)
        for at, (_, token_ids) in zip(places, wanted, strict=True):
            pending[at] = len(token_ids) - kv.lengths[at]
        width = chunk_width(pending, _MAX_BATCH_TOKENS, self._model.device.type)
        chunks: list[list[int]] = [[] for _ in self.members]
        for at, (memory, token_ids) in zip(places, wanted, strict=True):
            start = kv.lengths[at]
            chunks[at] = [*token_ids[start : start + width]]
            memory.token_ids += chunks[at]
        last = [
            [len(chunk) - 1] if chunk and len(chunk) == count else []
            for chunk, count in zip(chunks, pending, strict=True)
        ]
        fed = kv.feed(chunks, last)
        counts.forwards += 1
        counts.fed_tokens += sum(map(len, chunks))
        return [fed.logits[at, fed.places[at][last[at][0]]] if last[at] else None for at in places]

    @property
    def _batch(self) -> KVBatch:
        assert self._kv is not None
        return self._kv

    def _place(self, memory: ReadTokens) -> int:
        return next(i for i, other in enumerate(self.members) if other is memory)
