"""Attention to a part of the keys on a GPU, as the plain form computes it in double precision."""

from __future__ import annotations

import pytest
import torch

from outlines_cont.kv.attention import additive_mask, attend, plain_attend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", list(_TOLERANCE))
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(
    ("rows", "heads", "queries", "keys", "size"), [(2, 4, 1, 33, 64), (3, 2, 5, 101, 64), (1, 8, 64, 2048, 128), (4, 2, 4, 17, 32)]
)
def test_attention_is_that_of_the_plain_form(
    rows: int, heads: int, queries: int, keys: int, size: int, is_masked: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (torch.randn(rows, heads, n, size, generator=generator, device="cuda", dtype=dtype) for n in (queries, keys, keys))
    mask = None
    if is_masked:
        visible = torch.rand((rows, 1, queries, keys), generator=generator, device="cuda") < 0.7
        visible[..., 0] = True  # every query sees a key
        mask = additive_mask(visible, dtype)
    out, norm = attend(query, key, value, 0.1, mask)
    plain, plain_norm = plain_attend(query.double(), key.double(), value.double(), 0.1, None if mask is None else mask.double())
    torch.testing.assert_close(out.double(), plain, rtol=0, atol=_TOLERANCE[dtype])
    torch.testing.assert_close(norm.double(), plain_norm, rtol=0, atol=1e-4)
