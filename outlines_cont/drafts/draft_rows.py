"""`DraftRows`: the KV cache of a draft model with one row per drafted row, fed in common forwards, long prompts in parts. Before a draft
each is rolled back to its longest common prefix with the row as it is now; forks and dropped rows are fed anew. `FedIds`: the ids fed for
one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.engine.drafting.forward_costs import chunk_width
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.meter import Meter

_MAX_BATCH_TOKENS = 4096


class FedIds:
    """The ids that a draft model was fed for one row; its memory of the row, see `Drafter`.

    Attributes:
        token_ids: the ids, draft tokens included.
        num_same: how many of the first are known to be still those of the row.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_same = 0

    def cut(self, length: int) -> None:
        """Note that the row was rewound to its first `length` tokens."""
        self.num_same = min(self.num_same, length)

    def fork(self) -> FedIds:
        """Return an empty memory: the tokens of a fork are fed again if it is drafted for."""
        return FedIds()

    def num_common(self, token_ids: Sequence[int]) -> int:
        """Return the length of the common prefix with a row, without its last token, which is always fed again."""
        at, stop = min(self.num_same, len(token_ids) - 1), min(len(self.token_ids), len(token_ids) - 1)
        while at < stop and self.token_ids[at] == token_ids[at]:
            at += 1
        return min(at, stop)


class DraftRows:
    """The rows that a draft model is fed in common forwards, with their KV cache."""

    def __init__(self, model: LanguageModel) -> None:
        self.members: list[FedIds] = []  # one for each row
        self._model = model
        self._kv: KVBatch | None = None

    def add(self, memories: Sequence[FedIds]) -> None:
        """Add the rows that are new. Cost: that of a new batch, if there are any."""
        new = [memory for memory in memories if memory not in self.members]
        if new:
            shares = [] if self._kv is None else self._kv.release_all()
            self._kv = None
            self.members += new
            self._kv = KVBatch(self._model, [*shares, *[None] * len(new)])

    def keep(self, memories: Sequence[FedIds]) -> None:
        """Drop all other rows; they are fed again if they are drafted for again."""
        wanted = set(memories)
        staying = [i for i, memory in enumerate(self.members) if memory in wanted]
        if len(staying) == len(self.members):
            return
        for memory in self.members:
            if memory not in wanted:
                memory.token_ids, memory.num_same = [], 0
        self.members = [self.members[i] for i in staying]
        if self._kv is not None and staying:
            self._kv.keep(staying)
        else:
            self._kv = None

    def rewind(self, memory: FedIds, token_ids: Sequence[int]) -> None:
        """Roll back to the longest common prefix of what was fed and the row."""
        at, kv = self._index(memory), self._batch
        common = min(memory.num_common(token_ids), kv.lengths[at])
        if common < kv.lengths[at]:
            kv.rewind(at, common)
        memory.token_ids, memory.num_same = [*token_ids[:common]], common

    def feed(self, wanted: Sequence[tuple[FedIds, Sequence[int]]], counts: Meter) -> list[torch.Tensor | None]:
        """Feed the new tokens of some rows, each given with all its ids, of which at least one was not fed, in one forward.

        Return for each of them (V,) logits after the last id; None if it was too much for one forward, so that the rest is to be fed.
        """
        kv, indices = self._batch, [self._index(memory) for memory, _ in wanted]
        pending = [0] * len(self.members)
        for at, (_, token_ids) in zip(indices, wanted, strict=True):
            pending[at] = len(token_ids) - kv.lengths[at]
        width = chunk_width(pending, _MAX_BATCH_TOKENS, self._model.device.type)
        chunks: list[list[int]] = [[] for _ in self.members]
        for at, (memory, token_ids) in zip(indices, wanted, strict=True):
            start = kv.lengths[at]
            chunks[at] = [*token_ids[start : start + width]]
            memory.token_ids += chunks[at]
        is_whole = [bool(chunk) and len(chunk) == count for chunk, count in zip(chunks, pending, strict=True)]
        fed = kv.feed(
            chunks, [[len(chunk) - 1] if whole else [] for chunk, whole in zip(chunks, is_whole, strict=True)]
        )
        counts.forwards += 1
        counts.fed_tokens += sum(map(len, chunks))
        return [fed.logits[at, fed.columns[at][len(chunks[at]) - 1]] if is_whole[at] else None for at in indices]

    @property
    def _batch(self) -> KVBatch:
        assert self._kv is not None
        return self._kv

    def _index(self, memory: FedIds) -> int:
        return self.members.index(memory)
