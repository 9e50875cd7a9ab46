"""How certain the values of the records of `benchmarks.quality` are, and how well that tells right values from wrong ones (`auroc`).

Of a record, each value by its path: the share of samples with an equal value (`agreed`); and by the tokens of the record alone
(`measured`) the least probability of a token of the value under the schema, the probability of all of its tokens, and e to the minus of
the largest entropy (in nats) of the model, under the schema, before a token of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.quality_questions import is_same

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
    from outlines_cont.pipelines.calibration import value_tokens

    if row.piece is None:
        return {}
    start = row.piece.start
    parts = [model.tokenizer.text_bytes([token_id]) for token_id in row.token_ids[start:]]
    if _read(b"".join(parts).decode(errors="replace")) is None:
        return {}
    logprobs, entropies = row.sampling_logprobs[start:], _entropies(model, row)
    found: dict[str, dict[str, float]] = {name: {} for name in WAYS[1:]}
    for path, span in value_tokens(parts).items():
        found["least probability"][path] = math.exp(min(logprobs[span], default=0.0))
        found["probability"][path] = math.exp(sum(logprobs[span]))
        found["entropy"][path] = math.exp(-max(entropies[span], default=0.0))
    return found


def _entropies(model: Any, row: StateRow) -> list[float]:
    """Return the entropy of the model under the constraint before each token of the record, in nats."""
    from outlines_cont.state.inspection import constrained

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
        inside = line[token_fsm.allowed_token_ids(state).tolist()].log_softmax(-1)
        found.append(-float((inside.exp() * inside.clamp(min=-1e4)).sum()))
    return found


def judged(text: str, answer: str, certainty: dict[str, float]) -> list[tuple[float, bool]]:
    """Return for each value of a record how certain it is, and whether it is that of the right answer."""
    from outlines_cont.events.json_paths import leaves

    expected = leaves(json.loads(answer))
    found = leaves(_read(text)) if certainty else {}
    return [
        (certainty[path], path in expected and is_same(value, expected[path]))
        for path, value in found.items()
        if path in certainty
    ]


def auroc(values: Sequence[tuple[float, bool]]) -> float | None:
    """Return the chance that a right value is more certain than a wrong one, ties counted half (the area under the ROC curve).

    None if there is no right or no wrong value. Cost: a sort (it is the statistic of Mann and Whitney).
    """
    sure = np.asarray([number for number, _ in values])
    is_right = np.asarray([right for _, right in values], dtype=bool)
    num_right, num_wrong = int(is_right.sum()), int((~is_right).sum())
    if not num_right or not num_wrong:
        return None
    _, inverse, counts = np.unique(sure, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # the mean rank of equal numbers
    return float((ranks[is_right].sum() - num_right * (num_right + 1) / 2) / (num_right * num_wrong))


def right_among(values: Sequence[tuple[float, bool]], share: float) -> float:
    """Return the share of right values among a share of the values, the most certain ones; ties are all right in their mean share."""
    ordered = sorted(values, key=lambda one: -one[0])
    count = max(round(share * len(ordered)), 1)
    least = ordered[count - 1][0]
    above = [right for sure, right in ordered if sure > least]
    tied = [right for sure, right in ordered if sure == least]
    return (sum(above) + (count - len(above)) * sum(tied) / len(tied)) / count
