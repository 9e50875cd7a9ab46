"""Attention in parts: each part is what a softmax over it gives, and parts are merged into the whole, empty ones included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv.attention import NAME, Prefix, _merge, attend, plain_attend, prefix_attention_of
from tests.fakes import random_network
from tests.oracle import assert_close

_SIZES = st.integers(1, 5)


def _whole(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Attention as in a textbook, heads repeated; zeros where nothing is visible."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = (query @ keys.transpose(-1, -2) * 0.5).masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ values


@settings(max_examples=60, deadline=None)
@given(_SIZES, st.sampled_from([(2, 1), (4, 2), (3, 3)]), _SIZES, _SIZES, _SIZES, st.integers(0, 10**6))
def test_two_parts_are_the_whole(
    rows: int, heads: tuple[int, int], count: int, first: int, second: int, seed: int
) -> None:
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


def test_a_part_with_nothing_visible_changes_nothing() -> None:
    query, keys, values = (torch.randn(2, 2, 3, 4) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 3)
    mask[1] = -torch.inf
    out, norm = attend(query, keys, values, 0.5, None)
    empty, empty_norm = attend(query, keys, values, 0.5, mask)
    assert bool((empty_norm[1] == -torch.inf).all())
    merged, merged_norm = _merge(out, norm, empty, empty_norm, None)
    assert torch.equal(merged[1], out[1])
    assert torch.equal(merged_norm[1], norm[1])
    assert not torch.equal(merged[0], out[0]) or torch.equal(empty[0], out[0])


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
