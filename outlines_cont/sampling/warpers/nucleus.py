"""Where `top_p` ends: the smallest logit among the fewest that together have a share of the probability."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

from outlines_cont.sampling.draw import exact

_BUCKETS = 2048


def floor_of_listed(
    listed: torch.Tensor, largest_prob: torch.Tensor, top_p: torch.Tensor, before: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the floor of each row, and how many of what is listed are not below it.

    Args:
        listed: (r, n) logits in descending order.
        largest_prob: (r, 1) probability of the first of them.
        top_p: (r, 1) float64, the share that is kept.
        before: (r, 1) float64, the probability of what is larger than all that is listed.

    Returns:
        (r, 1) logits, the last one of which what comes before has less than `top_p`; and (r, 1) int64, n where more than what
        is listed may be needed.
    """
    largest, probs = listed[:, :1], exact(listed)
    probs = (probs - exact(largest)).exp() * exact(largest_prob)
    before = before + probs.cumsum(dim=-1) - probs
    needed = (before < top_p.to(probs.device)).sum(dim=-1, keepdim=True).clamp_min(1).to(listed.device)
    return listed.gather(-1, needed - 1), needed


def floor_of_rows(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the floor of each row, whatever the distribution.

    The logits are put into buckets by how far they lie below the largest, and the probability in each bucket is summed; then
    only the bucket in which the share is reached is put in order. Replaces the plain form: sort the row descending, and keep
    a token while the probabilities before it sum to less than `top_p`.

    Args:
        logits: (r, V), minus infinity where a token is not kept anyway.
        top_p: (r, 1) float64, below 1.

    Returns:
        (r, 1) logits.

    Cost: about ten passes, and a sort of what is in one bucket.
    """
    probs, largest = logits.softmax(dim=-1), logits.amax(dim=-1, keepdim=True)
    top_p = top_p.to(exact(largest).device)
    buckets = _buckets(largest - logits, top_p)
    mass = exact(_sums(buckets, probs))
    upto = mass.cumsum(dim=-1)
    border = (upto < top_p).sum(dim=-1, keepdim=True).clamp_max(_BUCKETS - 1)
    inside = buckets == border.to(buckets.device)
    listed = _listed(logits, inside).sort(dim=-1, descending=True).values
    first_prob = exact(listed[:, :1] - largest).exp() * exact(probs.amax(dim=-1, keepdim=True))
    return floor_of_listed(listed, first_prob, top_p, (upto - mass).gather(-1, border))[0]


def _buckets(depths: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return (r, V) int32 buckets: fine as far down as the floor can lie, the last one for all that is deeper."""
    # V tokens deeper than this have less than 1 - top_p together.
    deepest = torch.log(depths.shape[-1] / (1 - top_p)).clamp_min(1e-3)
    scaled = depths.mul_((_BUCKETS / deepest).to(depths)).clamp_(max=_BUCKETS - 1)
    # NaN, of a row without a distribution, becomes any number.
    return scaled.int().clamp_(0, _BUCKETS - 1)


def _sums(buckets: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Return (r, _BUCKETS): the probability in each bucket."""
    rows = torch.arange(len(buckets), dtype=torch.int32, device=buckets.device)[:, None]
    places = buckets + rows * _BUCKETS if len(buckets) > 1 else buckets
    return torch.bincount(places.view(-1), probs.view(-1), len(buckets) * _BUCKETS).view(-1, _BUCKETS)


def _listed(logits: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return (r, n): what is inside of each row, and minus infinity where that is less than in others."""
    parts = torch.split(logits[inside], inside.sum(dim=-1).tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=-torch.inf)
