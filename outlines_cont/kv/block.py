"""Keys and values that never change: `KVBlock` holds those of several rows, `RowKV` is one row's share of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Layer = tuple[torch.Tensor, torch.Tensor] | None


@dataclass(frozen=True, slots=True, eq=False)
class KVBlock:
    """Keys and values of R rows and C columns, one pair of (R, H, C, D) tensors per layer, never written again.

    A layer is None where the model keeps none of its own (it shares those of another layer).
    """

    layers: tuple[Layer, ...]

    @classmethod
    def of_cache(cls, cache: DynamicCache) -> KVBlock:
        """Return what `cache` holds now, without a copy; sound while the cache grows by concatenation only."""
        return cls(tuple(_layer(layer) for layer in cache.layers))

    @property
    def num_rows(self) -> int:
        """R."""
        return next((layer[0].shape[0] for layer in self.layers if layer), 0)

    @property
    def num_columns(self) -> int:
        """C."""
        return next((layer[0].shape[2] for layer in self.layers if layer), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the storage behind all tensors."""
        tensors = [tensor for layer in self.layers if layer for tensor in layer]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def gather(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> KVBlock:
        """Return a new block whose row i, column j is row `rows[i]`, column `columns[i, j]` of this one; a copy.

        Args:
            rows: (R2,) int64.
            columns: (R2, C2) int64.
        """
        device = next((layer[0].device for layer in self.layers if layer), torch.device("cpu"))
        row_index = torch.tensor(rows, device=device)[:, None]
        column_index = torch.tensor(columns, device=device)

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            index = (row_index.to(tensor.device), column_index.to(tensor.device))
            return tensor.transpose(1, 2)[index].transpose(1, 2).contiguous()

        return KVBlock(tuple((pick(layer[0]), pick(layer[1])) if layer else None for layer in self.layers))

    def narrow(self, start: int, stop: int) -> KVBlock:
        """Return the columns from `start` up to `stop`, as views."""
        return KVBlock(
            tuple((layer[0][:, :, start:stop], layer[1][:, :, start:stop]) if layer else None for layer in self.layers)
        )

    def to_cache(self) -> DynamicCache:
        """Return a `DynamicCache` that begins with these tensors; it grows by concatenation, so they stay as they are."""
        cache = DynamicCache()
        cache.layers = [_cache_layer(layer) for layer in self.layers]
        return cache


def stack(blocks: Sequence[KVBlock]) -> KVBlock:
    """Return one block with the rows of all, in order; blocks with fewer columns get zeros on the left.

    Cost: one copy of everything.
    """
    width = max(block.num_columns for block in blocks)

    def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
        rows = sum(t.shape[0] for t in tensors)
        _, heads, _, size = tensors[0].shape
        out = tensors[0].new_zeros((rows, heads, width, size))
        row = 0
        for tensor in tensors:
            count, _, columns, _ = tensor.shape
            out[row : row + count, :, width - columns :] = tensor
            row += count
        return out

    return KVBlock(
        tuple(
            (joined([layer[0] for layer in group if layer]), joined([layer[1] for layer in group if layer]))
            if group[0]
            else None
            for group in zip(*(block.layers for block in blocks), strict=True)
        )
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowKV:
    """The keys and values of the first tokens of one sequence: token i lies in row `row`, column `columns[i]` of `block`.

    Attributes:
        block: where they lie; other sequences may have their share in it.
        row: the row of the block.
        columns: int64, 1-D, ascending, read-only.
    """

    block: KVBlock
    row: int
    columns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, key: slice) -> RowKV:
        """Return the share of fewer tokens, without a copy."""
        return RowKV(self.block, self.row, self.columns[key])


def _layer(layer: object) -> Layer:
    # An exact type: layers with a recurrent state derive from DynamicLayer, too, and their state would be lost.
    if type(layer) is not DynamicLayer:
        raise TypeError(f"expected a plain DynamicLayer in the cache, got {type(layer).__name__}")
    if layer.keys is None or layer.values is None or not layer.is_initialized:
        return None
    return layer.keys, layer.values


def _cache_layer(pair: Layer) -> DynamicLayer:
    layer: DynamicLayer = DynamicLayer()  # type: ignore[no-untyped-call]
    if pair is not None:
        layer.lazy_initialization(*pair)
        layer.keys, layer.values = pair
    return layer
