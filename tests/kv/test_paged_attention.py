"""Attention over slots of a pool: the plain form against each row alone, the kernels against the plain form in Triton's interpreter, and
compiled for cards that are not there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont.kv.attention import causal_mask, plain_attend
from outlines_cont.kv.paged.attention import paged_attend, plain_paged_attend
from tests.examples import examples

_SLOTS = 900
_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@contextmanager
def _imported(*, interpreted: bool) -> Iterator[ModuleType]:
    """The kernels as Triton's interpreter runs them, or as it compiles them: which, has to be known before Triton is imported."""
    if find_spec("triton") is None:
        pytest.skip("needs triton, which comes with torch for CUDA")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", str(int(interpreted)))
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_of_triton(name)}
        try:
            yield importlib.import_module("outlines_cont.kv.paged.kernel")
        finally:
            for name in list(sys.modules):
                if _is_of_triton(name):
                    del sys.modules[name]
            sys.modules.update(before)


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The kernels in Triton's interpreter."""
    with _imported(interpreted=True) as module:
        yield module


def _is_of_triton(name: str) -> bool:
    """Whether a module is to be imported anew; those in C cannot be."""
    return name == "outlines_cont.kv.paged.kernel" or (name.split(".")[0] == "triton" and not name.startswith("triton._C"))


def _drawn(
    seed: int, lengths: list[int], key_heads: int, groups: int, count: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, table and lengths; rows share slots at random, and slots without a token are no numbers."""
    draw = torch.Generator().manual_seed(seed)
    columns = max(*lengths, 1) + int(torch.randint(0, 40, (), generator=draw))
    table = torch.stack([torch.randperm(_SLOTS, generator=draw)[:columns] for _ in lengths])
    shared = int(torch.randint(0, columns + 1, (), generator=draw))
    table[:, :shared] = table[:1, :shared]
    query = torch.randn(len(lengths), key_heads * groups, count, size, generator=draw).to(dtype)
    keys, values = torch.randn(2, _SLOTS, key_heads, size, generator=draw).to(dtype)
    used = torch.cat([line[:length] for line, length in zip(table, lengths, strict=True)])
    unused = torch.ones(_SLOTS, dtype=torch.bool).index_fill(0, used, False)
    keys[unused], values[unused] = torch.nan, torch.nan
    return query, keys, values, table.to(torch.int32), torch.tensor(lengths, dtype=torch.int32)


_LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=4)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 999), _LENGTHS, st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.none() | st.integers(1, 30))
def test_the_plain_form_attends_in_each_row_to_its_own_tokens(
    seed: int, lengths: list[int], key_heads: int, groups: int, count: int, window: int | None
) -> None:
    query, keys, values, table, sizes = _drawn(seed, lengths, key_heads, groups, count, 8, torch.float64)
    found = plain_paged_attend(query, keys, values, table, sizes, 0.4, window=window)
    assert torch.equal(found, paged_attend(query, keys, values, table, sizes, 0.4, window=window)), "on a CPU"
    for row, length in enumerate(lengths):
        for index in range(count):
            stop = length - count + index + 1
            slots = table[row, max(0, stop - (window or stop)) : max(stop, 0)].long()
            if not len(slots):
                assert not found[row, :, index].any()
                continue
            own = [one[slots].transpose(0, 1)[None] for one in (keys, values)]
            wanted, _ = plain_attend(query[row : row + 1, :, index : index + 1], own[0], own[1], 0.4, None)
            torch.testing.assert_close(found[row, :, index], wanted[0, :, 0], rtol=0, atol=1e-12)


def test_a_table_of_columns_in_order_is_causal_attention() -> None:
    query, keys, values, table, _ = _drawn(3, [50], 2, 2, 7, 16, torch.float64)
    lengths = torch.tensor([50], dtype=torch.int32)
    table[0, :50] = torch.arange(50)
    keys, values = torch.randn(2, _SLOTS, 2, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = [one[:50].transpose(0, 1)[None] for one in (keys, values)]
    wanted, _ = plain_attend(query, own[0], own[1], 0.3, causal_mask(7, 50, torch.float64, query.device))
    torch.testing.assert_close(plain_paged_attend(query, keys, values, table, lengths, 0.3), wanted, rtol=0, atol=1e-12)


@settings(max_examples=examples(8), deadline=None)
@given(
    seed=st.integers(0, 999),
    lengths=st.lists(st.one_of(st.integers(0, 60), st.integers(200, 600)), min_size=1, max_size=3),
    key_heads=st.integers(1, 2),
    groups=st.sampled_from([1, 3, 4]),
    count=st.sampled_from([1, 1, 2, 9, 17]),
    size=st.sampled_from([16, 40, 64]),
    window=st.none() | st.integers(1, 300),
    dtype=st.sampled_from(list(_TOLERANCE)),
)
def test_the_kernels_attend_as_the_plain_form(
    kernel: ModuleType,
    seed: int,
    lengths: list[int],
    key_heads: int,
    groups: int,
    count: int,
    size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    query, keys, values, table, sizes = _drawn(seed, lengths, key_heads, groups, count, size, dtype)
    found = kernel.paged_attend(query, keys, values, table, sizes, 0.2, window=window)
    wanted = plain_paged_attend(query.double(), keys.double(), values.double(), table, sizes, 0.2, window=window)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=_TOLERANCE[dtype])


def test_long_rows_are_split_and_the_splits_are_summed(kernel: ModuleType) -> None:
    query, keys, values, table, lengths = _drawn(1, [700, 3, 0], 1, 2, 1, 128, torch.float32)
    assert kernel.num_splits(3, table.shape[1]) > 1
    found = kernel.paged_attend(query, keys, values, table, lengths, 0.1)
    torch.testing.assert_close(found, plain_paged_attend(query, keys, values, table, lengths, 0.1), rtol=0, atol=2e-6)


@given(st.integers(1, 10_000), st.integers(1, 200_000))
def test_splits_are_never_empty_nor_many(kernel: ModuleType, programs: int, columns: int) -> None:
    splits = kernel.num_splits(programs, columns)
    assert 1 <= splits <= 64
    assert splits == 1 or columns / splits >= 128


def test_the_kernels_compile_for_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with _imported(interpreted=False) as kernel:
        for architecture, dtype, size in ((80, "bf16", 64), (90, "bf16", 128), (90, "fp32", 128)):
            attend, add = (_compiled(kernel, function, architecture, dtype, size) for function in (kernel._attend, kernel._sum))
            assert ("mma" in attend.asm["ptx"]) is (dtype == "bf16"), "tensor cores, but for float32, which is exact"
            assert "mma" not in add.asm["ptx"]


def _compiled(kernel: ModuleType, function: Any, architecture: int, dtype: str, size: int) -> Any:
    """A kernel for a card of NVIDIA."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", architecture, 32)
    num_queries, num_keys = kernel.blocks(64, size, is_exact=dtype == "fp32")
    constants: dict[str, Any] = {
        "groups": 4, "size": size, "padded_size": size, "num_queries": num_queries, "num_keys": num_keys,
        "padded_splits": 8, "is_exact": dtype == "fp32",
    }  # fmt: skip
    types = {"out": "*fp32", "norm": "*fp32", "scale": "fp32", "table": "*i32", "lengths": "*i32"}
    types |= dict.fromkeys(("query", "keys", "values", "target"), f"*{dtype}")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    known = {(function.arg_names.index(name),): value for name, value in constants.items() if name in function.arg_names}
    made = compiler.compile(compiler.ASTSource(function, signature, known), target=target, options=kernel.OPTIONS)
    assert len(made.asm["cubin"]) > 0
    assert made.metadata.shared <= 99 * 1024, "which every card of these has"
    return made
