"""`plan`: which cached tokens the rows of a batch read in place instead of from a copy each (prefix sharing), greedily from the first token
on: among rows whose next tokens are in the same row of the same buffer, the group of longest parts with the largest (rows - 1) * common
tokens shares them if that is at least 1,024; on the rest again, so that groups may nest. Equal tokens in different buffers are not found.
`segments` joins shares in neighbouring rows of a buffer, with a mask, into one call of attention per layer where at most half is wasted.

What is not worth sharing is copied; 1,024 tokens or more of one row alone are read in place, too, except on a GPU in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.kv.attention import PrefixLayer, Queries, additive_mask
from outlines_cont.kv.buffer import Buffer
from outlines_cont.kv.row import KVPart, RowKV


@dataclass(frozen=True, slots=True)
class Sharing:
    """The thresholds from which on tokens are read in place instead of copied.

    A segment costs one more call of attention per layer; a copy of its tokens costs memory, and is read at every step.

    Attributes:
        min_copies: tokens that several rows have in common are shared when that saves this many copies of a token.
        min_view: tokens of one row alone are read in place when they are this many.
    """

    min_copies: int
    min_view: int


# Measured on a CPU with 8 layers of width 512 (the case `threshold` of benchmarks/continuation.py): a shared step takes 1.05 of the
# time of a copied one at 250 copies, as long at 1,000, and 0.8 to 0.9 at 7,700. A view saves a single row one copy and nothing per step.
SHARING = Sharing(min_copies=1024, min_view=1024)
# On an H100 in float32 (same model) a shared step takes 1.04 to 1.08 of a copied one at 1,500 to 32,000 copies, 0.79 at 129,000, 0.71 at
# 258,000; a view of 16,384 tokens takes 2.7 times as long as a copy of them, whose keys more of the chip reads. In bfloat16, with 32 layers
# of width 4,096, a view of 2,048 tokens takes half as long as the copy, and shared steps 0.45 to 0.5 (benchmarks/results/gpu.md).
_GPU_FLOAT32 = Sharing(min_copies=1024, min_view=sys.maxsize)


def sharing_on(device: torch.device, dtype: torch.dtype) -> Sharing:
    """Return the thresholds for a kind of device and a float type."""
    return _GPU_FLOAT32 if device.type != "cpu" and dtype.itemsize >= 4 else SHARING


@dataclass(frozen=True, eq=False)
class Share:
    """Tokens (`part`) in one row of a buffer that some `rows` of the batch (ascending) have in common."""

    part: KVPart
    rows: tuple[int, ...]


def plan(shares: Sequence[RowKV | None], sharing: Sharing) -> tuple[list[Share], list[tuple[KVPart, ...]]]:
    """Return the shares that are read in place, in the order of the tokens, and for each row the parts that are copied.

    Cost: a few array comparisons per part.
    """
    rests = [list(share[: len(share)].parts) if share is not None else [] for share in shares]
    found: list[Share] = []
    waiting = {row for row, parts in enumerate(rests) if parts}
    while waiting:
        groups: dict[tuple[int, int], list[int]] = {}
        for row in sorted(waiting):
            groups.setdefault((id(rests[row][0].buffer), rests[row][0].row), []).append(row)
        for rows in groups.values():
            waiting.difference_update(rows)
            share = _best_share(rows, rests, sharing)
            if share is not None:
                found.append(share)
                _cut(share, rests)
                waiting.update(row for row in rows if rests[row])
    return found, [tuple(parts) for parts in rests]


def _best_share(rows: Sequence[int], rests: Sequence[Sequence[KVPart]], sharing: Sharing) -> Share | None:
    """Return the share that saves most copies, for some of `rows`, whose next parts are in one row of a buffer; None for none."""
    by_length = sorted(rows, key=lambda row: -len(rests[row][0]))
    longest = rests[by_length[0]][0]
    common, best, saved = len(longest), None, 0
    for count, row in enumerate(by_length, 1):
        common = min(common, _common(longest.columns, rests[row][0].columns))
        if count > 1 and (count - 1) * common > saved:
            saved = (count - 1) * common
            best = Share(longest[:common], tuple(sorted(by_length[:count])))
    if best is not None and saved >= sharing.min_copies:
        return best
    return Share(longest, (by_length[0],)) if len(longest) >= sharing.min_view else None


def _common(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return how many of the first entries are equal."""
    size = min(len(first), len(second))
    differs = first[:size] != second[:size]
    return int(differs.argmax()) if differs.any() else size


def _cut(share: Share, rests: list[list[KVPart]]) -> None:
    for row in share.rows:
        part = rests[row][0]
        rests[row][:1] = [part[len(share.part) :]] if len(part) > len(share.part) else []


class Segment:
    """Shares in neighbouring rows of one buffer, one per row of the segment, read by one call of attention per layer."""

    def __init__(self, shares: Sequence[Share], num_rows: int) -> None:
        """Join `shares`, whose rows of the buffer follow each other, for a batch of `num_rows` rows."""
        self.shares = list(shares)
        first = shares[0].part
        self.buffer: Buffer = first.buffer
        self._rows = slice(first.row, first.row + len(shares))
        columns = _columns(shares)
        self._columns = slice(columns.start, columns.stop)
        self.num_columns = len(columns)
        self._visible = np.zeros((len(shares), len(columns)), dtype=bool)
        for index, share in enumerate(shares):
            self._visible[index, share.part.columns - columns.start] = True
        self._queries = _queries([share.rows for share in shares], num_rows)
        self._on_device: dict[torch.device, tuple[torch.Tensor | None, Queries]] = {}

    def layer(self, index: int) -> PrefixLayer | None:
        """Return the segment in one layer, None if the model keeps no keys and values in it."""
        pair = self.buffer.layer(index)
        if pair is None:
            return None
        keys, values = (tensor[self._rows, :, self._columns] for tensor in pair)
        if keys.device not in self._on_device:
            self._on_device[keys.device] = self._mask(keys), self._queries.to(keys.device)
        return PrefixLayer(keys, values, *self._on_device[keys.device])

    def _mask(self, keys: torch.Tensor) -> torch.Tensor | None:
        if self._visible.all():
            return None
        return additive_mask(upload(self._visible[:, None, None], keys.device), keys.dtype)


def _columns(shares: Sequence[Share]) -> range:
    """Return the columns from the first of some shares to the last."""
    all_columns = [share.part.columns for share in shares]
    return range(min(int(columns[0]) for columns in all_columns), max(int(columns[-1]) for columns in all_columns) + 1)


def segments(shares: Sequence[Share], num_rows: int) -> list[Segment]:
    """Return the shares as few segments; those of neighbouring rows become one where that wastes little."""
    out: list[Segment] = []
    group: list[Share] = []
    for share in sorted(shares, key=lambda share: (id(share.part.buffer), int(share.part.columns[0]), share.part.row)):
        if group and not _fits(group, share):
            out.append(Segment(group, num_rows))
            group = []
        group.append(share)
    return [*out, Segment(group, num_rows)] if group else out


def _fits(group: Sequence[Share], share: Share) -> bool:
    last = group[-1].part
    if share.part.buffer is not last.buffer or share.part.row != last.row + 1:
        return False
    together = [*group, share]
    samples = max(len(member.rows) for member in together)
    cells = len(_columns(together)) * samples * len(together)
    return cells <= 2 * sum(len(member.part) * len(member.rows) for member in together)


def _queries(groups: Sequence[Sequence[int]], num_rows: int) -> Queries:
    """Return which queries attend to a segment whose row i is shared by the batch rows `groups[i]`."""
    samples = max(map(len, groups))
    gather = [group[min(i, len(group) - 1)] for group in groups for i in range(samples)]
    if gather == list(range(num_rows)):
        return Queries()
    indices = {row: at * samples + i for at, group in enumerate(groups) for i, row in enumerate(group)}
    rows = sorted(indices)
    gathered = torch.tensor([indices[row] for row in rows], device="cpu")
    return Queries(
        torch.tensor(gather, device="cpu"),
        None if len(rows) == num_rows else torch.tensor(rows, device="cpu"),
        gathered,
    )
