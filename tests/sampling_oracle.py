"""The law of one token in its plain form: numpy, float64, one row, every step in its order, and the row sorted in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.samplers import DRY, XTC, MinP, Mirostat, Temperature, TopA, TopK, TopP, TypicalP, Warper
from outlines_cont.sampling import SamplingParams

Row = NDArray[np.float64]


def plain_law(
    logits: Sequence[float], params: SamplingParams, in_row: Sequence[int] = (), generated: Sequence[int] = (), drawn: Sequence[float] = ()
) -> Row:
    """(V,) probabilities of the next token after `in_row`, of which the last ones were `generated`, some `drawn` with these logprobs."""
    x = penalised(np.array(logits, dtype=np.float64), params, in_row, generated)
    if params.is_greedy:
        return np.eye(len(x))[int(x.argmax())]
    return law_after(x, params.warpers, Held(in_row, drawn))


@dataclass(frozen=True)
class Held:
    """What a row holds: its tokens, and the log-probabilities of those that count for `Mirostat`."""

    token_ids: Sequence[int] = ()
    drawn: Sequence[float] = field(default=())


NOTHING = Held()
Step = Callable[[Row, Warper, Held], Row]


def law_after(x: Row, warpers: Sequence[Warper], held: Held = NOTHING, step: Step | None = None) -> Row:
    """(V,) probabilities after some warpers; both sides of a coin are followed to the end."""
    for index, warper in enumerate(warpers):
        if isinstance(warper, XTC):
            rest = warpers[index + 1 :]
            excluded = law_after(_excluded(x, warper), rest, held, step)
            return warper.probability * excluded + (1 - warper.probability) * law_after(x, rest, held, step)
        x = (step or warped)(x, warper, held)
    return softmax(x)


def warped(x: Row, warper: Warper, held: Held = NOTHING) -> Row:
    """(V,) logits after one standard warper, whatever came before."""
    match warper:
        case DRY():
            return _less_repeating(x, warper, list(held.token_ids))
        case TypicalP(p=p):
            return _typical(x, p)
        case TopA(a=a):
            probs = softmax(x)
            return np.where(probs >= a * probs.max() ** 2 * (1 - 1e-12), x, -np.inf)
        case Mirostat(tau=tau, eta=eta):
            mu = 2 * tau
            for logprob in held.drawn:
                mu -= eta * (-math.log2(math.exp(logprob)) - tau)
            probs = softmax(x)
            with np.errstate(divide="ignore"):
                return np.where((-np.log2(probs) <= mu + 1e-12) | (x == x.max()), x, -np.inf)
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


def _typical(x: Row, p: float) -> Row:
    """Tokens by their distance from the entropy, until they have the share; and all as near as the last of them."""
    if p == 1:
        return x
    probs = softmax(x)
    surprise = np.full(len(x), np.inf)
    surprise[probs > 0] = -np.log(probs[probs > 0])
    distances = np.abs(surprise - probs[probs > 0] @ surprise[probs > 0])
    order = np.argsort(distances, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    border = distances[order][max(int((before < p).sum()), 1) - 1]
    return np.where(distances <= border + 1e-12, x, -np.inf)


def _excluded(x: Row, warper: XTC) -> Row:
    """Without the tokens that are likely, but for the least likely of these."""
    probs = softmax(x)
    kept = probs <= min(probs[probs >= warper.threshold], default=2.0)
    kept[[i for i in warper.keep if i < len(x)]] = True
    return np.where(kept, x, -np.inf)


def _less_repeating(x: Row, dry: DRY, ids: list[int]) -> Row:
    """For every token, every place where it stood, and every length: are the tokens before it the last ones?"""
    x, ids = x.copy(), ids[-dry.range if dry.range else 0 :]
    for token_id in set(ids) - set(dry.breakers):
        longest = 0
        for at in (i for i, other in enumerate(ids) if other == token_id):
            for length in range(1, at + 1):
                if ids[at - length : at] == ids[len(ids) - length :] and not set(ids[at - length : at]) & set(dry.breakers):
                    longest = max(longest, length)
        if longest >= dry.allowed_length and token_id < len(x):
            x[token_id] -= min(dry.multiplier * dry.base ** min(longest - dry.allowed_length, 500), 10_000)
    return x


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
