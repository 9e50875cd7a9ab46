"""Feeding what rows have not fed yet, without sampling: their keys and values, and the logits after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv import open_batch
from outlines_cont.models.meter import Meter
from outlines_cont.state_row import StateRow


def prefilled(model: LanguageModel, rows: Sequence[StateRow]) -> list[StateRow]:
    """Return the rows with all tokens cached and the logits after them known; rows that failed or are empty as they are.

    Cost: one forward, or one per row for a model that cannot stack rows; none where everything is known.
    """
    lacking = [i for i, row in enumerate(rows) if row.logits is None and row.error is None and row.token_ids]
    groups = [lacking] if model.can_stack and lacking else [[i] for i in lacking]
    filled = list(rows)
    for group in groups:
        for i, row in zip(group, _fed(model, [rows[i] for i in group]), strict=True):
            filled[i] = row
    return filled


def _fed(model: LanguageModel, rows: Sequence[StateRow]) -> list[StateRow]:
    # The last token is fed once more where only its logits are lacking.
    kept = [min(row.cached, len(row.token_ids) - 1) for row in rows]
    shares = [row.kv[:count] if row.kv is not None and count else None for row, count in zip(rows, kept, strict=True)]
    batch = open_batch(model, shares)
    again = sum(row.cached - count for row, count in zip(rows, batch.lengths, strict=True))
    chunks = [row.token_ids[count:] for row, count in zip(rows, batch.lengths, strict=True)]
    fed = batch.feed(chunks, [[len(chunk) - 1] for chunk in chunks])
    model.count(Meter(forwards=1, fed_tokens=sum(map(len, chunks)), recomputed_tokens=again))
    out = []
    for at, (row, share) in enumerate(zip(rows, batch.release_all(), strict=True)):
        place = fed.places[at][len(chunks[at]) - 1]
        # A copy, so that the logits of the other rows are let go.
        out.append(replace(row, kv=share, logits=fed.logits[at, place].clone()))
    return out
