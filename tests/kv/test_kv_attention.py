"""Attention in parts: each part is what a softmax over it gives, and parts are merged into the whole, empty ones included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.device_proxy import Proxy
from outlines_cont.kv.attention import NAME, Prefix, _merge, additive_mask, attend, plain_attend, prefix_attention, prefix_attention_of
from tests.examples import examples
from tests.fakes import random_network
from tests.oracle import assert_close

_SIZES = st.integers(1, 5)


def _whole(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Attention as in a textbook, heads repeated; zeros where nothing is visible."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = (query @ keys.transpose(-1, -2) * 0.5).masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ values


@settings(max_examples=examples(60), deadline=None)
@given(_SIZES, st.sampled_from([(2, 1), (4, 2), (3, 3)]), _SIZES, _SIZES, _SIZES, st.integers(0, 10**6))
def test_two_parts_are_the_whole(rows: int, heads: tuple[int, int], count: int, first: int, second: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads[0], count, 4, generator=draw, dtype=torch.float64)
    keys, values = torch.randn(2, rows, heads[1], first + second, 4, generator=draw, dtype=torch.float64)
    hidden = torch.rand(rows, count, first + second, generator=draw) < 0.4
    mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)[:, None]
    wanted = _whole(query, keys, values, hidden)
    for function in (attend, plain_attend):
        parts = [
            function(query, keys[:, :, part], values[:, :, part], 0.5, mask[..., part].contiguous())
            for part in (slice(0, first), slice(first, None))
        ]
        seen = ~hidden.all(-1)[:, None].expand(-1, heads[0], -1)
        out, norm = _merge(*parts[0], *parts[1], None)
        assert torch.equal(norm.isfinite(), seen)
        assert_close(out[seen], wanted[seen], 1e-12)


def test_the_attention_of_the_user_is_back_after_the_block_and_after_an_error() -> None:
    config = random_network("llama").config
    with prefix_attention_of(config), prefix_attention_of(config):
        assert config._attn_implementation == NAME
    assert config._attn_implementation == "sdpa"
    with pytest.raises(RuntimeError, match="broken"), prefix_attention_of(config):
        raise RuntimeError("broken")
    assert config._attn_implementation == "sdpa"


def test_what_carries_a_prefix_is_the_same_tensor_to_others() -> None:
    keys = torch.randn(2, 2, 3, 4)[:, :, :2]
    prefix = Prefix([])
    carrier = prefix.attach(keys)
    assert carrier.data_ptr() == keys.data_ptr()
    assert torch.equal(carrier, keys)
    assert not hasattr(keys, "_outlines_cont_prefix")


@settings(max_examples=examples(30), deadline=None)
@given(
    rows=st.integers(1, 3),
    key_heads=st.integers(1, 2),
    groups=st.integers(1, 3),
    queries=st.integers(1, 5),
    before=st.integers(0, 9),
    is_half=st.booleans(),
    is_masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_kernels_that_are_chosen_for_cuda_attend_as_the_plain_form(
    rows: int, key_heads: int, groups: int, queries: int, before: int, is_half: bool, is_masked: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads = key_heads * groups
    count = before + queries  # without a mask the queries are the last tokens
    shapes = ((rows, heads, queries, 16), (rows, key_heads, count, 16), (rows, key_heads, count, 16))
    dtype = torch.bfloat16 if is_half else torch.float32
    query, keys, values = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    visible = torch.ones(rows, 1, queries, count, dtype=torch.bool).tril(before)
    if is_masked:
        visible &= (torch.rand(visible.shape, generator=generator) < 0.6) | torch.ones_like(visible).tril(before).triu(before)
    wanted, _ = plain_attend(query.double(), keys.double(), values.double(), 0.3, additive_mask(visible, torch.float64))
    with torch.inference_mode(), Proxy() as proxy:
        for tensor in (query, keys, values, visible):
            proxy.place(tensor)
        mask = additive_mask(visible, dtype) if is_masked else None
        module = random_network("llama").model.layers[0].self_attn
        found, _ = prefix_attention(module, query, keys, values, mask, scaling=0.3)
        assert proxy.steps[-1].plans == 0
        got = found.transpose(1, 2).cpu()
    assert_close(got.double(), wanted, 2e-2 if is_half else 1e-5)
