"""Draws at the ends of [0, 1): the first and the last number of a stream never choose a token that is masked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.sampling.kernels import inverse_cdf

LAST = math.nextafter(1.0, 0.0)
UNIFORMS = [0.0, 5e-324, 2.0**-53, 0.5, 1 - 2.0**-32, LAST]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 40), st.sampled_from(UNIFORMS), st.sampled_from([torch.float32, torch.float64]))
def test_no_number_draws_a_token_that_is_masked(
    data: st.DataObject, size: int, uniform: float, dtype: torch.dtype
) -> None:
    logits = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=size, max_size=size))
    allowed = data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    row = [value if ok else -math.inf for value, ok in zip(logits, allowed, strict=True)]
    (token_id,), (logprob,) = inverse_cdf(
        torch.tensor([row], dtype=dtype), torch.tensor([uniform], dtype=torch.float64)
    )
    assert allowed[int(token_id)]
    assert math.isfinite(float(logprob))


@pytest.mark.parametrize("size", [5, 4096, 4097, 70_000])
def test_the_last_number_draws_the_last_token_that_can_be_drawn(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for _ in range(20):
        logits = torch.randn(1, size, generator=generator)
        stop = int(torch.randint(1, size, (), generator=generator))
        logits[:, stop:] = -torch.inf
        (token_id,), _ = inverse_cdf(logits, torch.tensor([LAST], dtype=torch.float64))
        assert int(token_id) < stop
        (token_id,), _ = inverse_cdf(logits, torch.tensor([0.0], dtype=torch.float64))
        assert int(token_id) == 0


@pytest.mark.parametrize("size", [4097, 4200, 70_001])
def test_behind_the_end_there_is_nothing_to_draw(size: int) -> None:
    """The last block of a row is not full: what is added up in it may be a little less than what the number stands for."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(400 if size < 10_000 else 40, size, generator=generator)
    logits[:, size - size % 64 + size % 64 // 2 :] = -torch.inf
    logits[:, size - size % 64] = 9.0
    token_ids, logprobs = inverse_cdf(logits, torch.full((len(logits),), LAST, dtype=torch.float64))
    assert logprobs.isfinite().all()
    assert logits.gather(-1, token_ids[:, None]).isfinite().all()
