"""`EngineModel`: the base class of models: its engine, meters, a memo, KV layout, and prefill: pending tokens of rows are fed without
sampling, for their keys and values and the logits after them; `read_logits` feeds earlier ones again, for their logits alone. `PrefillRow`:
such a row, which the engine runs together with those that are generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import Piece, RowLimits, RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.serial import kv_layout
from outlines_cont.meter import Meter, MeterBoard
from outlines_cont.samplers import greedy
from outlines_cont.state.row import StateRow, is_lacking


class PrefillRow(Row):
    """A row whose tokens are fed for their logits, and that samples nothing.

    Attributes:
        found: (V,) logits after the token at an index, for every wanted index that was fed.
        num_fed: the number of tokens that were fed for it.
    """

    def __init__(self, source: StateRow, model: LanguageModel, *, counts: Meter, indices: Sequence[int]) -> None:
        """Feed `source` up to the last of the tokens after which logits are wanted, those at `indices`: ascending, at least one."""
        kept = min(source.cached, indices[0])
        source.check_pinned(kept, f"token {kept} would be fed again, for logits")
        held = replace(source, kv=source.kv[:kept] if source.kv is not None and kept else None)
        super().__init__(held, model, Piece(sampler=greedy(), limits=RowLimits.of(model, ())), counts=counts)
        self.tokens = self.tokens.at(indices[-1] + 1)
        counts.recomputed_tokens += min(source.cached, len(self.token_ids)) - kept
        self.found: dict[int, torch.Tensor] = {}
        self.num_fed = 0
        self._indices = indices
        self.program = _Prefill()

    draws_next = False

    @property
    def is_ready(self) -> bool:
        """False, as nothing is sampled."""
        return False

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens other rows may have fed."""
        return self._indices[0]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted."""
        return [index - self.cached for index in self._indices if 0 <= index - self.cached < chunk_size]

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Keep copies of the wanted logits, to release those of the other rows."""
        self.found.update({self.cached + index: after.clone() for index, after in logits.items()})
        self.num_fed += count
        super().fed(count, {})

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the source with its new keys, values, logits and scores, or with the error."""
        if self.error is not None:
            return replace(self.source, error=self.error)
        logprobs, logits = tuple(self.tokens.logprobs), self.found.get(len(self.source.token_ids) - 1)
        return replace(self.source, kv=self.pinned_kv(kv), logits=logits, logprobs=logprobs, unscored=())

    def plan(self) -> None:
        """Leave when all wanted logits are known; else feed from the first unknown one."""
        lacking = [index for index in self._indices if index not in self.found]
        if self.has_ended or not lacking:
            self.status = RowStatus.LEAVING
        else:
            self.lose(lacking[0])
            self.status = RowStatus.SAMPLING


class _Prefill(RowProgram):
    """The program of a `PrefillRow`."""

    def plan(self, row: Row) -> None:
        """Plan the row."""
        assert isinstance(row, PrefillRow)
        row.plan()


class EngineModel(Immutable):
    """Base class of models: what does not depend on how their logits are computed."""

    def __init__(self) -> None:
        self._meters = MeterBoard()
        # A cache of values derived from the model, such as its vocabulary and its token FSMs.
        self.memo: dict[object, Any] = {}

    def meter(self) -> AbstractContextManager[Meter]:
        """Count the work of the model inside a `with` block; see `Meter`."""
        return self._meters.open()

    def count(self, counts: Meter) -> None:
        """Add the work of a step to every open meter."""
        self._meters.add(counts)

    @property
    def kv_layout(self: LanguageModel) -> list[Layer | None]:
        """The layout of the keys and values of one token, layer by layer; see `kv.serial.kv_layout`."""
        return kv_layout(self)

    @property
    def engine(self: LanguageModel) -> Engine:
        """The engine that all calls of the model share."""
        return self.memo.get("engine") or engine_of(self)

    def prefilled(self: LanguageModel, rows: Sequence[StateRow], meter: Meter | None = None) -> list[StateRow]:
        """Return the rows with all tokens cached and the logits after them known; rows that failed or are empty are returned unchanged.

        Args:
            rows: they are not changed.
            meter: its `fed_tokens` is increased by those of these rows alone, if given.

        Raises:
            NotRecomputable: the logits after a row are not known, and its last token cannot be fed again.
            KVBudgetError: one row alone needs more than the budget. If several do together they run one after the other, and
                only the logits of the first are left.
            Exception: the error of a row in its forward.

        Cost: one forward, or one per row for a model that cannot stack rows; more for long rows, see `Engine`; none if everything
        is known.
        """
        return [row for row, _ in self.prefilled_before(rows, [0] * len(rows), meter)]

    def prefilled_before(
        self: LanguageModel, rows: Sequence[StateRow], nums_before: Sequence[int], meter: Meter | None = None
    ) -> list[tuple[StateRow, dict[int, torch.Tensor]]]:
        """Return the same, each with (V,) logits before each of its last `nums_before` tokens, and after them, by index of the next token.

        A row that was known completely has no such logits. Errors and cost are those of `prefilled`.
        """
        counts, lengths = Meter(), [len(row.token_ids) for row in rows]
        lacking = {
            i: PrefillRow(row, self, counts=counts, indices=range(_first(row, nums_before[i]), lengths[i]))
            for i, row in enumerate(rows)
            if is_lacking(row)
        }
        filled: list[tuple[StateRow, dict[int, torch.Tensor]]] = [(row, {}) for row in rows]
        for (i, fed), row in zip(lacking.items(), _run(self, [*lacking.values()], counts), strict=True):
            filled[i] = row, {index + 1: after for index, after in fed.found.items()}
        if meter is not None:
            meter.fed_tokens += sum(fed.num_fed for fed in lacking.values())
        return filled

    def read_logits(self: LanguageModel, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
        """Return (len(indices), V), the logits after the tokens at `indices` of a row, ascending, 0 or larger, at least one.

        Errors are those of `prefilled`. Cost: the tokens from the first index to the last are fed once more; their keys and values
        are not kept.
        """
        counts = Meter()
        fed = PrefillRow(replace(row, unscored=()), self, counts=counts, indices=indices)
        _run(self, [fed], counts)
        return torch.stack([fed.found[index] for index in indices])


def _first(row: StateRow, num_before: int) -> int:
    """Return the index of the first token after which logits are wanted: those before the last `num_before`, and to score."""
    return min([len(row.token_ids) - 1 - num_before, *(index - 1 for index in row.unscored[:1])])


def _run(model: LanguageModel, rows: Sequence[PrefillRow], counts: Meter) -> list[StateRow]:
    """Run rows to their end, and return their results; raise the error of the first that failed."""
    if not rows:
        return []
    job = Job(rows, counts)
    model.engine.run(job)
    done = [row for _, row in sorted(job.done.items())]
    for row in done:
        if row.error is not None:
            raise row.error
    return done
