"""How certain the values of the records of `benchmarks.quality` are, and how well that tells right values from wrong ones (`auroc`).

Of a record, each value by its path: the share of samples with an equal value (`agreed`); and by the tokens of the record alone
(`measured`) the least probability of a token of the value under the schema, the probability of all of its tokens, and e to the minus of
the largest entropy (in nats) of the model, under the schema, before a token of it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from outlines_cont.state.row import StateRow

WAYS = ("agreement", "least probability", "probability", "entropy")


def agreed(text: str, samples: Sequence[str]) -> dict[str, float]:
    """Return the share of the samples with an equal value, for each value of a record; nothing if it was cut."""
    from outlines_cont.pipelines.calibration import agreement

    record = _read(text)
    return {} if record is None else agreement(record, [_read(sample) for sample in samples])


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def measured(model: Any, row: StateRow) -> dict[str, dict[str, float]]:
    """Return the certainty of each value of a record by its tokens alone, in three ways; nothing if it was cut.

    Cost: one forward of the row for the entropies, which no state keeps.
    """
    from outlines_cont.events.json_paths import byte_ranges

    if row.piece is None:
        return {}
    start = row.piece.start
    parts = [model.tokenizer.text_bytes([token_id]) for token_id in row.token_ids[start:]]
    if _read(b"".join(parts).decode(errors="replace")) is None:
        return {}
    ends, logprobs, entropies = list(accumulate(map(len, parts))), row.sampling_logprobs[start:], _entropies(model, row)
    found: dict[str, dict[str, float]] = {name: {} for name in WAYS[1:]}
    for path, (first, last) in byte_ranges(b"".join(parts)).items():
        span = slice(bisect_right(ends, first), min(bisect_left(ends, last) + 1, len(parts)))
        found["least probability"][path] = math.exp(min(logprobs[span], default=0.0))
        found["probability"][path] = math.exp(sum(logprobs[span]))
        found["entropy"][path] = math.exp(-max(entropies[span], default=0.0))
    return found


def _entropies(model: Any, row: StateRow) -> list[float]:
    """Return the entropy of the model under the constraint before each token of the record, in nats."""
    from outlines_cont.state.inspection import _allowed, constrained

    assert row.piece is not None
    (fed,) = model.prefilled([row])
    indices = range(row.piece.start, len(row.token_ids))
    lines = model.read_logits(fed, [index - 1 for index in indices]).float().cpu()
    states, found = constrained(row), []
    for index, line in zip(indices, lines, strict=True):
        if index not in states:
            found.append(0.0)
            continue
        token_fsm, state, _ = states[index]
        inside = line[_allowed(token_fsm, state, len(line))].log_softmax(-1)
        found.append(-float((inside.exp() * inside.clamp(min=-1e4)).sum()))
    return found


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Return the chance that a right value is more certain than a wrong one, ties counted half (the area under the ROC curve).

    None if there is no right or no wrong value.
    """
    if not right or not wrong:
        return None
    pairs = torch.tensor(right)[:, None] - torch.tensor(wrong)[None]
    return float(((pairs > 0).float() + (pairs == 0).float() / 2).mean())
