"""Prefill: feeds pending tokens of rows without sampling, for their keys and values and the logits after them (`prefilled`,
`prefilled_before`, `read_logits`), as rows of the engine beside others (`PrefillRow`). `EngineModel`: the base class of models, with
these functions as methods, meters and a memo.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.engine.steered_row import Want
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.buffer import LayerLayout
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.serial import kv_layout
from outlines_cont.meter import Meter, MeterBoard
from outlines_cont.samplers import greedy
from outlines_cont.state.row import StateRow, is_lacking


class PrefillRow(Row):
    """A row whose tokens are fed for their logits, and that samples nothing.

    Attributes:
        lines: (V,) logits after the token at an index, for every wanted index that was fed.
        num_fed: how many tokens were fed for it.
    """

    def __init__(
        self, source: StateRow, model: LanguageModel, *, counts: Meter, indices: Sequence[int] | None = None
    ) -> None:
        """Feed a row as far as its logits are wanted.

        Args:
            source: what is fed; it is not changed.
            model: what feeds it.
            counts: where the row counts its work.
            indices: of the tokens after which logits are wanted, ascending, at least one; None for the last token alone.
        """
        indices = [len(source.token_ids) - 1] if indices is None else indices
        kept = min(source.cached, indices[0])
        held = replace(source, kv=source.kv[:kept] if source.kv is not None and kept else None)
        super().__init__(held, [], model, counts=counts)
        self.tokens = self.tokens.at(indices[-1] + 1)
        counts.recomputed_tokens += min(source.cached, len(self.token_ids)) - kept
        self.lines: dict[int, torch.Tensor] = {}
        self.num_fed = 0
        self._indices = indices

    @property
    def is_ready(self) -> bool:
        """Never: nothing is sampled."""
        return False

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens may have been fed by others."""
        return self._indices[0]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted."""
        return [index - self.cached for index in self._indices if 0 <= index - self.cached < chunk_size]

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Take the wanted logits; copies, so that those of the other rows are let go."""
        self.lines.update({self.cached + index: line.clone() for index, line in logits.items()})
        self.num_fed += count
        super().fed(count, {})

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as it came, with its new keys, values and logits, or with its error."""
        if self.error is not None:
            return replace(self.source, error=self.error)
        return replace(self.source, kv=kv, logits=self.lines.get(len(self.source.token_ids) - 1))

    def decide(self) -> None:
        """Wait until all wanted logits are there, and leave."""
        lacking = [index for index in self._indices if index not in self.lines]
        if self.has_ended or not lacking:
            self.want = Want.LEAVE
        else:
            self.lose(lacking[0])
            self.want = Want.SAMPLE


def prefilled(model: LanguageModel, rows: Sequence[StateRow], meter: Meter | None = None) -> list[StateRow]:
    """Return the rows with all tokens cached and the logits after them known; rows that failed or are empty as they are.

    Args:
        model: whose engine feeds them, beside what else runs there.
        rows: they are not changed.
        meter: where `fed_tokens` counts those of these rows alone, if given.

    Raises:
        KVBudgetError: one row alone needs more than the budget. Where several do together they run one after the other, and
            only the logits of the first are left.
        Exception: whatever the forward has raised of a row.

    Cost: one forward, or one per row for a model that cannot stack rows; more for long rows, see `Engine`; none where
    everything is known.
    """
    return [row for row, _ in prefilled_before(model, rows, [0] * len(rows), meter)]


def prefilled_before(
    model: LanguageModel, rows: Sequence[StateRow], nums_before: Sequence[int], meter: Meter | None = None
) -> list[tuple[StateRow, dict[int, torch.Tensor]]]:
    """Return the same, with the (V,) logits before each of the last tokens of a row, `nums_before` of them, and behind them, by index.

    Those of a row of which everything was known are not known. Raises, and costs, what `prefilled` does.
    """
    lacking = [i for i, row in enumerate(rows) if is_lacking(row)]
    counts = Meter()
    lengths = [len(row.token_ids) for row in rows]
    readings = [
        PrefillRow(rows[i], model, counts=counts, indices=range(lengths[i] - 1 - nums_before[i], lengths[i]))
        for i in lacking
    ]
    done = _read(model, readings, counts)
    if meter is not None:
        meter.fed_tokens += sum(reading.num_fed for reading in readings)
    filled: list[tuple[StateRow, dict[int, torch.Tensor]]] = [(row, {}) for row in rows]
    for i, row, reading in zip(lacking, done, readings, strict=True):
        filled[i] = row, {index + 1: line for index, line in reading.lines.items()}
    return filled


def read_logits(model: LanguageModel, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
    """Return (len(indices), V), the logits after the tokens at `indices` of a row, ascending, 0 or larger, at least one.

    Raises:
        Exception: as `prefilled` does.

    Cost: the tokens from the first index to the last are fed once more; their keys and values are let go again.
    """
    counts = Meter()
    reading = PrefillRow(row, model, counts=counts, indices=indices)
    _read(model, [reading], counts)
    return torch.stack([reading.lines[index] for index in indices])


def _read(model: LanguageModel, rows: Sequence[PrefillRow], counts: Meter) -> list[StateRow]:
    """Run rows to their end, and return what has become of them."""
    if not rows:
        return []
    engine, job = engine_of(model), Job(rows, greedy(), counts)
    engine.submit(job)
    for _ in engine.steps(job):
        pass
    done = [row for _, row in sorted(job.done.items())]
    for row in done:
        if row.error is not None:
            raise row.error
    return done


class EngineModel(Immutable):
    """Base class of models: all that does not depend on what computes their logits."""

    def __init__(self) -> None:
        self._meters = MeterBoard()
        # A cache of values derived from the model, such as its vocabulary and its token FSMs.
        self.memo: dict[object, Any] = {}

    def meter(self) -> AbstractContextManager[Meter]:
        """Count what the model does inside a `with` block; see `Meter`. A token counts once, however often a function gets it."""
        return self._meters.open()

    def count(self, counts: Meter) -> None:
        """Add the work of a step to every open meter."""
        self._meters.add(counts)

    @property
    def kv_layout(self: LanguageModel) -> list[LayerLayout | None]:
        """What the keys and values of one token look like, layer by layer; see `kv.serial.kv_layout`."""
        return kv_layout(self)

    @property
    def engine(self: LanguageModel) -> Engine:
        """The engine that all calls of the model share."""
        return engine_of(self)

    def prefilled(self: LanguageModel, rows: Sequence[StateRow], meter: Meter | None = None) -> list[StateRow]:
        """Return rows of a state with the logits after them known; see `engine.prefill.prefilled`."""
        return prefilled(self, rows, meter)

    def prefilled_before(
        self: LanguageModel, rows: Sequence[StateRow], nums_before: Sequence[int]
    ) -> list[tuple[StateRow, dict[int, torch.Tensor]]]:
        """Return the same with the logits before the last tokens; see `engine.prefill.prefilled_before`."""
        return prefilled_before(self, rows, nums_before)

    def read_logits(self: LanguageModel, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
        """Return the logits after some tokens of a row; see `engine.prefill.read_logits`."""
        return read_logits(self, row, indices)
