"""`Masker`: applies the token bitmasks of a batch to its logits at once, by a table of bytes, or by ids where all masks allow few tokens
(on a CPU). `overlap_mask_computation`: computes lazy masks in a thread while a forward runs, on a CPU; elsewhere they are computed after
it. Errors of a mask are raised when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.policies.branch import LazyTokenSet, TokenSet

_FEW_WORDS = 512
"""The most non-zero words of a mask for which a list of its ids is faster than the table."""


class Masker:
    """Applies masks to logits; caches the last mask that all rows shared, of one row once it is used again."""

    def __init__(self) -> None:
        self._last: TokenSet | None = None
        self._last_added = torch.empty(0)
        self._table = torch.empty(0)  # that of the device and the type of the logits

    def masked(self, logits: torch.Tensor, masks: Sequence[TokenSet]) -> torch.Tensor:
        """Return (R, V) logits with minus infinity for the tokens that a row's mask forbids.

        Cost: one pass over the logits, or over the result alone if the masks allow few tokens: 40 us for 131,072 tokens on a CPU.
        """
        if all(mask is TokenSet.all for mask in masks):
            return logits
        few = [mask.few_ids(logits.shape[-1], _FEW_WORDS) for mask in masks] if logits.device.type == "cpu" else []
        if few and all(ids is not None for ids in few):
            return _kept(logits, few)
        if any(mask is not masks[0] for mask in masks):
            return self._added(masks, logits).add_(logits)
        fits = self._last_added.shape[-1:] == logits.shape[-1:] and self._last_added.dtype == logits.dtype
        if masks[0] is not self._last or not fits:
            added, is_new = self._added(masks[:1], logits), masks[0] is not self._last
            self._last, self._last_added = masks[0], added
            if is_new and len(masks) == 1:  # one that is used once needs no memory but that of its result
                self._last_added = torch.empty(0)
                return added.add_(logits)
        return logits + self._last_added

    def _added(self, masks: Sequence[TokenSet], logits: torch.Tensor) -> torch.Tensor:
        """Return (len(masks), V) of the type of the logits: minus infinity for the tokens that a mask forbids, else 0."""
        vocab_size = logits.shape[-1]
        data = np.stack([mask.bitmask(vocab_size) for mask in masks]).view(np.uint8)
        table = _TABLES[logits.dtype]
        if logits.device.type == "cpu":
            return torch.from_numpy(np.take(table, data, axis=0).reshape(len(masks), -1)[:, :vocab_size])
        # The bits are copied to the device, not 32 times as many bytes of floats.
        index = upload(data, logits.device).int()
        if (self._table.dtype, self._table.device) != (logits.dtype, logits.device):
            self._table = upload(table, logits.device)
        return self._table[index].reshape(len(masks), -1)[:, :vocab_size]


def _kept(logits: torch.Tensor, ids: Sequence[NDArray[np.int64] | None]) -> torch.Tensor:
    """Return (R, V) on the CPU: the logits of a few ids of each row, else minus infinity."""
    out = torch.full_like(logits, -torch.inf)
    for source, target, few in zip(logits.numpy(), out.numpy(), ids, strict=True):
        target[few] = source[few]
    return out


@contextmanager
def overlap_mask_computation(masks: Sequence[TokenSet], device: torch.device) -> Iterator[None]:
    """Compute the lazy ones among `masks` in a thread while the body, a forward, runs. Cost: 0.1 ms for the thread, if there are any.

    Not on other devices than the CPU: they compute asynchronously, so the masks may be computed after the body as well.
    """
    lazy = [mask for mask in masks if not mask.is_made]
    if not lazy or device.type != "cpu":
        yield
        return
    thread = Thread(target=_compute, args=(lazy,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _compute(masks: Sequence[LazyTokenSet]) -> None:
    for mask in masks:
        with suppress(Exception):  # raised again when the row uses the mask
            _ = mask.words


# By the value of a byte of a mask, the addends of the logits of its eight tokens: 0, or minus infinity.
_BY_BYTE = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf)
_TABLES = {torch.float32: _BY_BYTE.astype(np.float32), torch.float64: _BY_BYTE}
