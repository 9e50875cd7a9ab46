"""Attention on a GPU, with grouped heads and heads of real sizes, as the plain form computes it in double precision."""

from __future__ import annotations

import pytest
import torch

from outlines_cont.kv.attention import additive_mask, attend, causal_mask, plain_attend, prefix_attention
from outlines_cont.kv.paged.attention import paged_attend, plain_paged_attend
from tests.fakes import random_network

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
_SHAPES = [(2, 4, 1, 33, 64), (3, 2, 5, 101, 64), (1, 8, 64, 2048, 128), (4, 2, 4, 17, 32), (2, 4, 1, 2048, 128), (1, 2, 3, 70, 256)]


def _drawn(rows: int, key_heads: int, groups: int, queries: int, keys: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(rows, heads, count, size) for heads, count in ((key_heads * groups, queries), (key_heads, keys), (key_heads, keys))]
    return [torch.randn(shape, generator=generator, device="cuda", dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", list(_TOLERANCE))
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("rows", "heads", "queries", "keys", "size"), _SHAPES)
def test_attention_is_that_of_the_plain_form(
    rows: int, heads: int, queries: int, keys: int, size: int, groups: int, is_masked: bool, dtype: torch.dtype
) -> None:
    query, key, value = _drawn(rows, heads, groups, queries, keys, size, dtype)
    mask = None
    if is_masked:
        visible = torch.rand((rows, 1, queries, keys), device="cuda", generator=torch.Generator("cuda").manual_seed(1)) < 0.7
        visible[..., 0] = True  # every query sees a key
        mask = additive_mask(visible, dtype)
    out, norm = attend(query, key, value, 0.1, mask)
    plain, plain_norm = plain_attend(query.double(), key.double(), value.double(), 0.1, None if mask is None else mask.double())
    torch.testing.assert_close(out.double(), plain, rtol=0, atol=_TOLERANCE[dtype])
    torch.testing.assert_close(norm.double(), plain_norm, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", list(_TOLERANCE))
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("queries", "keys", "size"), [(7, 7, 64), (7, 300, 64), (64, 2048, 128), (2, 3, 256)])
def test_several_queries_without_a_mask_are_the_last_tokens(queries: int, keys: int, size: int, groups: int, dtype: torch.dtype) -> None:
    query, key, value = _drawn(2, 2, groups, queries, keys, size, dtype)
    module = random_network("llama").model.layers[0].self_attn
    with torch.inference_mode():
        found, _ = prefix_attention(module, query, key, value, None, scaling=0.1)
    mask = causal_mask(queries, keys, torch.float64, query.device)
    plain, _ = plain_attend(query.double(), key.double(), value.double(), 0.1, mask)
    torch.testing.assert_close(found.transpose(1, 2).double(), plain, rtol=0, atol=_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(_TOLERANCE))
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("count", "size"), [(1, 128), (5, 64), (300, 128), (2, 256), (1, 80)])
def test_attention_over_slots_of_a_pool_is_that_of_the_plain_form(
    count: int, size: int, groups: int, window: int | None, dtype: torch.dtype
) -> None:
    pytest.importorskip("triton")
    draw = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(3, 2 * groups, count, size, generator=draw, device="cuda", dtype=dtype)
    keys, values = torch.randn(2, 5000, 2, size, generator=draw, device="cuda", dtype=dtype)
    table = torch.stack([torch.randperm(5000, generator=draw, device="cuda")[:1500] for _ in range(3)]).to(torch.int32)
    table[1, :700] = table[2, :700]
    lengths = torch.tensor([count, 900, 1500], dtype=torch.int32, device="cuda")
    found = paged_attend(query, keys, values, table, lengths, size**-0.5, window=window)
    wanted = plain_paged_attend(query.double(), keys.double(), values.double(), table, lengths, size**-0.5, window=window)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=_TOLERANCE[dtype])
