"""Feeding what rows have not fed yet, without sampling: their keys and values, and the logits after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from outlines_cont.errors import KVBudgetError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv import open_batch
from outlines_cont.models.meter import Meter
from outlines_cont.state_row import StateRow


def prefilled(model: LanguageModel, rows: Sequence[StateRow], *, max_batch_tokens: int | None = None) -> list[StateRow]:
    """Return the rows with all tokens cached and the logits after them known; rows that failed or are empty as they are.

    Args:
        model: what feeds them.
        rows: they are not changed.
        max_batch_tokens: the most tokens of one forward, padding included; longer rows are fed piece by piece. None for no
            limit.

    Raises:
        KVBudgetError: one row alone needs more than the budget. Where several do together they run one after the other, and
            only the logits of the first are left.

    Cost: one forward, or one per row for a model that cannot stack rows; none where everything is known.
    """
    lacking = [i for i, row in enumerate(rows) if is_lacking(row)]
    groups = [lacking] if model.can_stack and lacking else [[i] for i in lacking]
    filled = list(rows)
    for group in groups:
        _fill(model, filled, group, max_batch_tokens)
    return filled


def is_lacking(row: StateRow) -> bool:
    """Return whether something of the row must be fed before a token can be sampled after it."""
    return row.logits is None and row.error is None and bool(row.token_ids)


def read_logits(
    model: LanguageModel, row: StateRow, indices: Sequence[int], *, max_batch_tokens: int | None = None
) -> torch.Tensor:
    """Return (len(indices), V), the logits after the tokens at `indices` of a row, ascending, 0 or larger, at least one.

    Cost: the tokens from the first index to the last are fed once more; their keys and values are let go again.
    """
    kept = min(row.cached, indices[0])
    batch = open_batch(model, [row.kv[:kept] if row.kv is not None and kept else None])
    start = batch.lengths[0]
    lines: list[torch.Tensor] = []
    rest = indices
    while rest:
        stop = min(rest[-1] + 1, start + (max_batch_tokens or rest[-1] + 1))
        now = [index for index in rest if index < stop]
        chunk = row.token_ids[start:stop]
        fed = batch.feed([chunk], [[index - start for index in now]])
        model.count(Meter(forwards=1, fed_tokens=len(chunk), recomputed_tokens=max(min(row.cached, stop) - start, 0)))
        lines += [fed.logits[0, fed.places[0][index - start]] for index in now]
        start, rest = stop, rest[len(now) :]
    return torch.stack(lines)


def _fill(model: LanguageModel, rows: list[StateRow], group: list[int], max_batch_tokens: int | None) -> None:
    """Feed the rows of `group`, which may run together, until the logits of each are known."""
    while group:
        now = group if max_batch_tokens is None else group[:max_batch_tokens]
        width = None if max_batch_tokens is None else max_batch_tokens // len(now)
        fed: list[StateRow] = []
        try:
            fed = _fed(model, [rows[i] for i in now], width)
        except KVBudgetError:
            if len(now) == 1:
                raise
        if not fed:
            # Not in the handler, whose traceback keeps the batch alive and what it reads in memory.
            half = len(now) // 2
            _fill(model, rows, now[:half], max_batch_tokens)
            _fill(model, rows, now[half:], max_batch_tokens)
        for i, row in zip(now, fed, strict=False):
            rows[i] = row
        group = [i for i in group if is_lacking(rows[i])]


def _fed(model: LanguageModel, rows: Sequence[StateRow], width: int | None) -> list[StateRow]:
    """Return the rows after one forward, in which each was fed at most `width` tokens."""
    # The last token is fed once more where only its logits are lacking.
    kept = [min(row.cached, len(row.token_ids) - 1) for row in rows]
    shares = [row.kv[:count] if row.kv is not None and count else None for row, count in zip(rows, kept, strict=True)]
    batch = open_batch(model, shares)
    starts = batch.lengths
    chunks = [
        row.token_ids[start:][:width] if width is not None else row.token_ids[start:]
        for row, start in zip(rows, starts, strict=True)
    ]
    again = sum(
        max(min(row.cached, start + len(chunk)) - start, 0)
        for row, start, chunk in zip(rows, starts, chunks, strict=True)
    )
    ends = [start + len(chunk) == len(row.token_ids) for row, start, chunk in zip(rows, starts, chunks, strict=True)]
    wanted = [[len(chunk) - 1] if is_end else [] for chunk, is_end in zip(chunks, ends, strict=True)]
    fed = batch.feed(chunks, wanted)
    model.count(Meter(forwards=1, fed_tokens=sum(map(len, chunks)), recomputed_tokens=again))
    out = []
    for at, (row, share) in enumerate(zip(rows, batch.release_all(), strict=True)):
        # A copy, so that the logits of the other rows are let go.
        logits = fed.logits[at, fed.places[at][len(chunks[at]) - 1]].clone() if ends[at] else None
        out.append(replace(row, kv=share, logits=logits))
    return out
