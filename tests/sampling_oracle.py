"""The law of one token in its plain form: numpy, float64, one row, every step in its order, and the row sorted in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.samplers import MinP, Temperature, TopK, TopP, Warper
from outlines_cont.sampling import SamplingParams

Row = NDArray[np.float64]


def plain_law(
    logits: Sequence[float], params: SamplingParams, in_row: Sequence[int] = (), generated: Sequence[int] = ()
) -> Row:
    """(V,) probabilities of the next token after `in_row`, of which the last ones were `generated`."""
    x = penalised(np.array(logits, dtype=np.float64), params, in_row, generated)
    if params.is_greedy:
        return np.eye(len(x))[int(x.argmax())]
    for warper in params.warpers:
        x = warped(x, warper)
    return softmax(x)


def warped(x: Row, warper: Warper) -> Row:
    """(V,) logits after one standard warper, whatever came before."""
    match warper:
        case Temperature(t=t):
            return x / t
        case TopK(k=k):
            return np.where(x >= np.sort(x)[::-1][min(k, len(x)) - 1], x, -np.inf)
        case TopP(p=p):
            ranked = np.sort(x)[::-1]
            probs = softmax(ranked)
            before = np.cumsum(probs) - probs
            needed = max(int((before < p).sum()), 1) if p < 1 else len(x)
            return np.where(x >= ranked[needed - 1], x, -np.inf)
        case MinP(p=p):
            return np.where(softmax(x) >= p * softmax(x).max() * (1 - 1e-12), x, -np.inf)
    raise TypeError(warper)


def penalised(x: Row, params: SamplingParams, in_row: Sequence[int], generated: Sequence[int]) -> Row:
    """Bias, repetition, frequency, presence, token by token."""
    penalties = params.penalties
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


def made_row(shape: str, seed: int, vocab_size: int) -> torch.Tensor:
    """(V,) logits, of very different kinds."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(vocab_size, generator=generator, dtype=torch.float64)
    if shape == "peaked":
        x[torch.randperm(vocab_size, generator=generator)[:40]] += 9
    elif shape == "tied":
        x = (x * 2).round() / 2
    elif shape == "equal":
        x = torch.zeros_like(x)
    elif shape in ("masked", "one"):
        kept = torch.randperm(vocab_size, generator=generator)[: 1 if shape == "one" else 300]
        x = torch.full_like(x, -torch.inf).index_copy(0, kept, x[kept])
    return x
