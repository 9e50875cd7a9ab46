"""`prefilled`: the prefill of rows: their pending tokens are fed without sampling, for keys, values, and the logits after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Job
from outlines_cont.engine.prefill_row import PrefillRow
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.samplers import greedy
from outlines_cont.state.row import StateRow, is_lacking


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
    """Return the same, with the (V,) logits before each of the last tokens of a row, as many as asked for, and behind them, by index.

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
