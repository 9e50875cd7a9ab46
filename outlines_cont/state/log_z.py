"""`LogZ`: an estimate, from samples with importance weights, of the log-probability that the model alone writes a text of the language
from which they were drawn; `effective_size`: how many samples of equal weight are as good (Kish 1965).

A sample x that was drawn with the probability q(x) has the weight p(x) / q(x), p being that of the model. The mean of the weights is an
estimate of the sum of p over all texts of the language, without bias. The standard error of its logarithm is that of the first order
(delta method).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class LogZ(NamedTuple):
    """An estimate for each of B batch entries; each attribute is a (B,) float64 tensor.

    Attributes:
        value: the logarithm of the mean weight of the samples; minus infinity if all weights are 0.
        error: its standard error; NaN for one sample, and if all weights are 0.
        effective: the effective sample size, from 1 to the number of samples; 0 if all weights are 0.
    """

    value: torch.Tensor
    error: torch.Tensor
    effective: torch.Tensor

    @classmethod
    def of(cls, log_weights: Sequence[Sequence[float]]) -> LogZ:
        """Return the estimate from the logarithms of the weights, one sequence for each batch entry, none of them empty."""
        found = [_estimate(weights) for weights in log_weights]
        value, error, effective = (
            torch.tensor(column, dtype=torch.float64, device="cpu") for column in zip(*found, strict=True)
        )
        return cls(value, error, effective)


def effective_size(log_weights: Sequence[float]) -> float:
    """Return (sum of weights)^2 / (sum of squared weights), from the logarithms of weights; 0 if all are 0."""
    high = max(log_weights, default=-math.inf)
    if high == -math.inf:
        return 0.0
    weights = [math.exp(log - high) for log in log_weights]
    return math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)


def _estimate(log_weights: Sequence[float]) -> tuple[float, float, float]:
    count, high = len(log_weights), max(log_weights)
    effective = effective_size(log_weights)
    if high == -math.inf:
        return -math.inf, math.nan, 0.0
    value = high + math.log(math.fsum(math.exp(log - high) for log in log_weights) / count)
    error = math.sqrt(max(count / effective - 1, 0.0) / (count - 1)) if count > 1 else math.nan
    return value, error, effective
