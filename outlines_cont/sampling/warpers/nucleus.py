"""`floor_of_listed`, `floor_of_rows`: the smallest logit of a nucleus (top-p) without sorting the vocabulary: by prefix sums over the
largest logits, which may not suffice, or by a histogram of the probability over the distance from the largest logit, of which only one
bucket is sorted. `TypicalP` uses the histogram, too (`border_bucket`, `padded_rows`).
"""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

from outlines_cont.sampling.kernels.blocks import exact

_BUCKETS = 2048


def floor_of_listed(
    listed: torch.Tensor, largest_prob: torch.Tensor, top_p: torch.Tensor, before: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the floor of each row, and the number of listed logits that are not below it.

    Args:
        listed: (r, n) logits in descending order.
        largest_prob: (r, 1) probability of the first of them.
        top_p: (r, 1) float64, the share that is kept.
        before: (r, 1) float64, the probability of all tokens with larger logits than the listed ones.

    Returns:
        (r, 1) logits, the last one for which the tokens before it have less than `top_p`; and (r, 1) int64, n where more than the
        listed tokens may be needed.
    """
    largest, probs = listed[:, :1], exact(listed)
    probs = (probs - exact(largest)).exp() * exact(largest_prob)
    before = before + probs.cumsum(dim=-1) - probs
    needed = (before < top_p.to(probs.device)).sum(dim=-1, keepdim=True).clamp_min(1).to(listed.device)
    return listed.gather(-1, needed - 1), needed


def floor_of_rows(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the floor of each row for any distribution.

    The logits are put into buckets by their distance from the largest, and the probability in each bucket is summed; then
    only the bucket in which the share is reached is sorted. Replaces the plain form: sort the row descending, and keep
    a token while the probabilities before it sum to less than `top_p`.

    Args:
        logits: (r, V), minus infinity for tokens that are excluded already.
        top_p: (r, 1) float64, below 1.

    Returns:
        (r, 1) logits.

    Cost: about ten passes, and a sort of one bucket.
    """
    probs, largest = logits.softmax(dim=-1), logits.amax(dim=-1, keepdim=True)
    # V tokens deeper than this have less than 1 - top_p together.
    deepest = torch.log(logits.shape[-1] / (1 - top_p)).clamp_min(1e-3)
    inside, before = border_bucket(largest - logits, deepest, probs, top_p)
    listed = padded_rows(logits, inside, -torch.inf).sort(dim=-1, descending=True).values
    first_prob = exact(listed[:, :1] - largest).exp() * exact(probs.amax(dim=-1, keepdim=True))
    return floor_of_listed(listed, first_prob, top_p.to(before.device), before)[0]


def border_bucket(
    depths: torch.Tensor, deepest: torch.Tensor, probs: torch.Tensor, share: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens are in the bucket in which the share is reached, and the probability of the buckets before it.

    Args:
        depths: (r, V), 0 or more; tokens are kept in ascending order of it. It is overwritten.
        deepest: (r, 1) float64: an upper bound of the depth of the last kept token; deeper tokens are in the last bucket.
        probs: (r, V), their probabilities.
        share: (r, 1) float64, below 1.

    Returns:
        (r, V) bool, and (r, 1) float64.
    """
    scaled = depths.mul_((_BUCKETS / deepest).to(depths)).clamp_(max=_BUCKETS - 1)
    # NaN, of a row without a distribution, becomes any number.
    buckets = scaled.int().clamp_(0, _BUCKETS - 1)
    mass = exact(_sums(buckets, probs))
    upto = mass.cumsum(dim=-1)
    border = (upto < share.to(upto.device)).sum(dim=-1, keepdim=True).clamp_max(_BUCKETS - 1)
    return buckets == border.to(buckets.device), (upto - mass).gather(-1, border)


def _sums(buckets: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Return (r, _BUCKETS): the probability in each bucket."""
    rows = torch.arange(len(buckets), dtype=torch.int32, device=buckets.device)[:, None]
    places = buckets + rows * _BUCKETS if len(buckets) > 1 else buckets
    return torch.bincount(places.view(-1), probs.view(-1), len(buckets) * _BUCKETS).view(-1, _BUCKETS)


def padded_rows(values: torch.Tensor, inside: torch.Tensor, padding: float) -> torch.Tensor:
    """Return (r, n): the values of each row for which `inside`, (r, V) bool, is true, padded to the same length."""
    parts = torch.split(values[inside], inside.sum(dim=-1).tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=padding)
