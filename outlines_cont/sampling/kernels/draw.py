"""One token per row of logits: the largest (`most_probable`), or one by inverse transform sampling (`inverse_cdf`): prefix sums over
blocks of 256 probabilities find the block, then those inside find the token, in float64, without a sort. Rows up to 4096 values take one
prefix sum. Also the block helpers, and truncation below a floor (`not_below`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Rows up to this length are looked at as they are: fewer calls then count more than fewer passes.
_SMALL = 4096
# Values per block: a pass over blocks of this size is as fast as memory, and their sums are few.
_SIZE = 256

# Nothing that is so much less likely than another token is ever drawn, in float64 either.
_DEEPEST = 1000.0

Drawn = tuple[torch.Tensor, torch.Tensor]
"""(R,) int64 indices, and (R,) log-probabilities of these."""
Reduce = Callable[..., torch.Tensor]


def reduced(values: torch.Tensor, size: int, reduce: Reduce) -> torch.Tensor:
    """Return (R, ceil(N / size)): `reduce`, such as `torch.amax`, of every block of (R, N) values."""
    whole = values.shape[-1] // size * size
    parts = [reduce(values[:, whole:], -1, keepdim=True)] if whole < values.shape[-1] else []
    if whole:
        parts.insert(0, reduce(values[:, :whole].view(len(values), -1, size), -1))
    return torch.cat(parts, dim=-1)


def places(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Return (R, B * size) int64: the indices of all values of (R, B) blocks; behind the end where a block is shorter."""
    return (blocks[..., None] * size + torch.arange(size, device=blocks.device)).flatten(1)


def taken(values: torch.Tensor, at: torch.Tensor, behind: float) -> torch.Tensor:
    """Return the values of (R, N) at (R, M) indices, and `behind` for indices behind the end."""
    last = values.shape[-1] - 1
    return values.gather(-1, at.clamp_max(last)).masked_fill(at > last, behind)


def most_probable(logits: torch.Tensor) -> Drawn:
    """Return the largest of each row of (R, V) logits, of equal ones the first.

    Cost: a softmax and one more pass; `max` with its indices alone takes longer than both.
    """
    if logits.shape[-1] <= _SMALL:
        token_ids = logits.max(dim=-1, keepdim=True).indices
    else:
        at = places(reduced(logits, _SIZE, torch.amax).max(dim=-1, keepdim=True).indices, _SIZE)
        token_ids = at.gather(-1, taken(logits, at, -torch.inf).max(dim=-1, keepdim=True).indices)
    return token_ids[:, 0], logits.softmax(dim=-1).gather(-1, token_ids)[:, 0].log()


def inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor) -> Drawn:
    """Return where the cumulative distribution of each row first exceeds its number.

    Args:
        logits: (R, N), minus infinity for what cannot be drawn.
        uniforms: (R,) float64 in [0, 1).

    Replaces the plain form, `searchsorted` in the cumulative sum of the whole row: first the block is found, then the index
    in it, and only those sums are made, in float64.

    Cost: a softmax and one more pass.
    """
    probs = logits.softmax(dim=-1)
    if logits.shape[-1] <= _SMALL:
        cumulative = exact(probs).cumsum(dim=-1)
        found = _first_above(cumulative, _target(cumulative, uniforms)).to(probs.device)
    else:
        found = _found_in_blocks(probs, uniforms)
    return found[:, 0], probs.gather(-1, found)[:, 0].log()


def _found_in_blocks(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return (R, 1) indices, as `inverse_cdf` does."""
    sums = exact(reduced(probs, _SIZE, torch.sum)).cumsum(dim=-1)
    target = _target(sums, uniforms)
    block = _first_above(sums, target)
    before = torch.where(block > 0, sums.gather(-1, (block - 1).clamp_min(0)), 0)
    at = places(block.to(probs.device), _SIZE)
    inside = exact(taken(probs, at, 0)).cumsum(dim=-1)
    place = _first_above(inside, target - before)
    return at.gather(-1, place.to(at.device)).clamp_max(probs.shape[-1] - 1)


def _target(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return (R, 1): the share of each row's total that its number stands for."""
    return uniforms.to(cumulative.device)[:, None] * cumulative[:, -1:]


def not_below(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return (R, N) logits of the same distribution with minus infinity for what is below the (R, 1) floor of its row.

    They are shifted by the floor, which makes two plain passes of it: filling under a mask that cannot be predicted takes
    eight times as long on a CPU.
    """
    # So far below the largest the probability is 0; and a floor of minus infinity has nothing to shift by.
    floor = torch.maximum(floor, logits.amax(dim=-1, keepdim=True) - _DEEPEST)
    return torch.threshold_(logits - floor, -torch.finfo(logits.dtype).tiny, -torch.inf)


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers, on the same device where that has them."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return (R, 1): the first index of each row whose sum is above the target; never one that adds nothing."""
    total = cumulative[:, -1:]
    # Rounding could lift the target to the total itself, behind the last place that adds something.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).clamp_max(cumulative.shape[-1] - 1)
