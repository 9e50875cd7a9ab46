"""The law of one token in its plain form: numpy, float64, one row, every step in its order, and the row sorted in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outlines_cont.sampling import Law

Row = NDArray[np.float64]


def plain_law(logits: Sequence[float], law: Law, in_row: Sequence[int] = (), generated: Sequence[int] = ()) -> Row:
    """(V,) probabilities of the next token after `in_row`, of which the last ones were `generated`."""
    x = penalised(np.array(logits, dtype=np.float64), law, in_row, generated)
    if law.is_greedy:
        return np.eye(len(x))[int(x.argmax())]
    x = x / law.temperature
    if law.top_k is not None:
        x = np.where(x >= np.sort(x)[::-1][min(law.top_k, len(x)) - 1], x, -np.inf)
    if law.top_p is not None:
        ranked = np.sort(x)[::-1]
        probs = softmax(ranked)
        before = np.cumsum(probs) - probs
        needed = max(int((before < law.top_p).sum()), 1) if law.top_p < 1 else len(x)
        x = np.where(x >= ranked[needed - 1], x, -np.inf)
    if law.min_p is not None:
        x = np.where(softmax(x) >= law.min_p * softmax(x).max() * (1 - 1e-12), x, -np.inf)
    return softmax(x)


def penalised(x: Row, law: Law, in_row: Sequence[int], generated: Sequence[int]) -> Row:
    """Bias, repetition, frequency, presence, token by token."""
    penalties = law.penalties
    for token_id, bias in penalties.logit_bias:
        x[token_id] += bias
    for token_id in set(in_row):
        x[token_id] = x[token_id] * penalties.repetition if x[token_id] < 0 else x[token_id] / penalties.repetition
    for token_id in generated:
        x[token_id] -= penalties.frequency
    for token_id in set(generated):
        x[token_id] -= penalties.presence
    return x


def softmax(x: Row) -> Row:
    """Probabilities."""
    weights = np.exp(x - x.max())
    total: Row = weights / weights.sum()
    return total
