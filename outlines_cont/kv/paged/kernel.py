"""The kernels of Triton behind `kv.paged.attention`: flash attention with a table of slots, split over the keys (flash decoding, Dao et al.
2023), and the sum of the splits by their log-sum-exp. Importing it needs `triton`, which comes with PyTorch for CUDA.

The number of splits follows from shapes alone, so that a step of one shape is one graph. float32 is multiplied exactly, not as tf32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# A program attends with at most so many queries, those of the query heads of one key head, ...
_LARGEST_QUERIES = 64
# ... a split has at least so many keys, and there are splits until so many programs run: two on each of the 132 processors of an H100.
_LEAST_SPLIT = 256
_MOST_SPLITS = 64
_PROGRAMS = 264
OPTIONS = {"enable_fp_fusion": True}
"""Options of the compiler: a product and a sum are one instruction, rounded once."""


@triton.jit
def _attend(
    query, keys, values, table, lengths, out, norm, scale, window, count, splits, split,
    row_stride, head_stride, query_stride, slot_stride, key_head_stride, value_slot_stride, value_head_stride, table_stride,
    groups: tl.constexpr, size: tl.constexpr, padded_size: tl.constexpr, num_queries: tl.constexpr, num_keys: tl.constexpr,
    is_exact: tl.constexpr,
):  # fmt: skip
    """Attend with `num_queries` queries to one split of the keys of a row and key head; store the mean and the log-sum-exp in float32.

    The plain form is `attention.plain_paged_attend` over the keys of the split.
    """
    blocks = tl.cdiv(count * groups, num_queries)
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    key_head, part = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    # In a large pool a head may be more than 2**31 numbers behind the first.
    keys += key_head.to(tl.int64) * key_head_stride
    values += key_head.to(tl.int64) * value_head_stride
    # The query heads of a key head are its queries: query `at // groups` of head `at % groups`.
    at = block * num_queries + tl.arange(0, num_queries)
    is_query = at < count * groups
    index, head = at // groups, key_head * groups + at % groups
    position = length - count + index
    d = tl.arange(0, padded_size)
    in_head = d < size
    places = (
        query + row.to(tl.int64) * row_stride + head[:, None] * head_stride + index[:, None] * query_stride + d[None]
    )
    q = tl.load(places, mask=is_query[:, None] & in_head[None], other=0.0)
    highest = tl.full((num_queries,), -float("inf"), tl.float32)
    total = tl.zeros((num_queries,), tl.float32)
    mean = tl.zeros((num_queries, padded_size), tl.float32)
    earliest = length - count + (block * num_queries) // groups
    latest = length - count + tl.minimum(block * num_queries + num_queries - 1, count * groups - 1) // groups
    start = tl.maximum(part * split, (tl.maximum(earliest - window + 1, 0) // num_keys) * num_keys)
    stop = tl.minimum(part * split + split, latest + 1)
    for first in range(start, stop, num_keys):
        column = first + tl.arange(0, num_keys)
        is_token = column < stop
        slot = tl.load(table + row * table_stride + column, mask=is_token, other=0).to(tl.int64)
        is_read = is_token[:, None] & in_head[None]
        k = tl.load(keys + slot[:, None] * slot_stride + d[None], mask=is_read, other=0.0)
        v = tl.load(values + slot[:, None] * value_slot_stride + d[None], mask=is_read, other=0.0)
        if is_exact:
            scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee") * scale
        else:
            scores = tl.dot(q, tl.trans(k)) * scale
        seen = is_token[None] & (column[None] <= position[:, None]) & (column[None] > position[:, None] - window)
        scores = tl.where(seen, scores, -float("inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(new == -float("inf"), 0.0, new)  # of a query that has seen nothing yet
        weights = tl.exp(scores - base[:, None])
        kept = tl.exp(highest - base)
        if is_exact:
            mean = mean * kept[:, None] + tl.dot(weights, v.to(tl.float32), input_precision="ieee")
        else:
            mean = mean * kept[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * kept + tl.sum(weights, 1)
        highest = new
    has_seen = total > 0
    sums = tl.where(has_seen, total, 1.0)
    heads = tl.num_programs(1) * groups
    target = ((row.to(tl.int64) * heads + head) * count + index) * splits + part
    tl.store(norm + target, tl.where(has_seen, highest + tl.log(sums), -float("inf")), mask=is_query)
    tl.store(out + target[:, None] * size + d[None], mean / sums[:, None], mask=is_query[:, None] & in_head[None])


@triton.jit
def _sum(
    out, norm, target, splits, size: tl.constexpr, padded_size: tl.constexpr, padded_splits: tl.constexpr
):  # fmt: skip
    """Store the mean of the splits of one query, weighed by the exponentials of their log-sum-exps; zeros if all of these are infinite."""
    at = tl.program_id(0).to(tl.int64)
    part, d = tl.arange(0, padded_splits), tl.arange(0, padded_size)
    norms = tl.load(norm + at * splits + part, mask=part < splits, other=-float("inf"))
    highest = tl.max(norms, 0)
    weights = tl.exp(norms - tl.where(highest == -float("inf"), 0.0, highest))
    total = tl.sum(weights, 0)
    is_read = (part < splits)[:, None] & (d < size)[None]
    means = tl.load(out + (at * splits + part)[:, None] * size + d[None], mask=is_read, other=0.0)
    found = tl.sum(means * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(target + at * size + d, found.to(target.dtype.element_ty), mask=d < size)


def blocks(queries: int, size: int, *, is_exact: bool = False) -> tuple[int, int]:
    """Return how many queries, and how many keys at once, a program has, for `queries` of a key head and heads of a size.

    They are fewer for large heads and for float32 (`is_exact`), so that they fit into the shared memory of small cards, 99 KiB.
    """
    most = max(16, _LARGEST_QUERIES // max(triton.next_power_of_2(size) * (1 + is_exact) // 128, 1))
    return max(16, min(most, triton.next_power_of_2(queries))), most


def num_splits(programs: int, columns: int) -> int:
    """Return into how many parts the keys are split: until there are programs for a whole device, but few for long tables."""
    return max(1, min(-(-columns // _LEAST_SPLIT), _MOST_SPLITS, -(-_PROGRAMS // programs)))


def paged_attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    window: int | None = None,
) -> Tensor:
    """See `attention.paged_attend`: float16, bfloat16 or float32, heads of at most 256, and the last dimension of all contiguous.

    On a CPU it runs in Triton's interpreter if TRITON_INTERPRET=1 was set when this module was imported; for tests only.
    """
    (rows, heads, count, size), key_heads = query.shape, keys.shape[1]
    groups, columns = heads // key_heads, table.shape[1]
    # The interpreter multiplies bfloat16 wrongly.
    is_exact = query.dtype == torch.float32 or query.device.type == "cpu"
    num_queries, num_keys = blocks(count * groups, size, is_exact=is_exact)
    num_blocks = triton.cdiv(count * groups, num_queries)
    splits = num_splits(rows * num_blocks * key_heads, columns)
    split = triton.cdiv(triton.cdiv(columns, splits), num_keys) * num_keys
    parts = torch.empty((rows, heads, count, splits, size), dtype=torch.float32, device=query.device)
    norms = torch.empty((rows, heads, count, splits), dtype=torch.float32, device=query.device)
    padded = max(16, triton.next_power_of_2(size))
    _attend[(rows * num_blocks, key_heads, splits)](
        query, keys, values, table, lengths, parts, norms, scale, columns if window is None else window, count, splits, split,
        *query.stride()[:3], *keys.stride()[:2], *values.stride()[:2], table.stride(0),
        groups=groups, size=size, padded_size=padded, num_queries=num_queries, num_keys=num_keys, is_exact=is_exact,
        **OPTIONS,
    )  # fmt: skip
    found = torch.empty((rows, heads, count, size), dtype=query.dtype, device=query.device)
    _sum[(rows * heads * count,)](
        parts,
        norms,
        found,
        splits,
        size=size,
        padded_size=padded,
        padded_splits=triton.next_power_of_2(splits),
        **OPTIONS,
    )
    return found
