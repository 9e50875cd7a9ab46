"""`Masker`: applies the token bitmasks of a batch to its logits at once, by a table of bytes, or by ids where all masks allow few tokens
(on a CPU). `overlap_mask_computation`: computes lazy masks in a thread while a forward runs, on a CPU; elsewhere they are computed after
it. Errors of a mask are raised when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from operator import is_
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.device import upload
from outlines_cont.policies.branch import LazyTokenSet, TokenSet
from outlines_cont.policies.slow_work import bounded

_FEW_WORDS = 512
"""The most non-zero words of a mask for which a list of its ids is faster than the table."""
_SMALL = 4096
"""The largest vocabulary for which the table is always faster."""
_NUM_KEPT = 2**18
"""How many numbers of tables are cached."""


class Masker:
    """Applies masks to logits; caches the last masks that all rows shared, those of one row once they are used again."""

    def __init__(self) -> None:
        # By the id of the mask, which is held, so that no other one has it; None for a mask that was used once.
        self._shared: dict[int, tuple[TokenSet, torch.Tensor | None]] = {}
        self._table = torch.empty(0)  # that of the device and the type of the logits

    def masked(self, logits: torch.Tensor, masks: Sequence[TokenSet]) -> torch.Tensor:
        """Return (R, V) logits with minus infinity for the tokens that a row's mask forbids.

        Cost: one pass over the logits, or over the result alone if the masks allow few tokens: 40 us for 131,072 tokens on a CPU.
        """
        first, size = masks[0], logits.shape[-1]
        is_shared = all(map(is_, masks, repeat(first)))
        if is_shared and first is TokenSet.all:
            return logits
        if logits.device.type == "cpu" and size > _SMALL:
            few = [mask.few_ids(size, _FEW_WORDS) for mask in masks]
            if all(ids is not None for ids in few):
                return _kept(logits, few)
        if not is_shared:
            return self._added(masks, logits).add_(logits)
        known, added = self._shared.get(id(first), (None, None))
        if added is None or added.shape[-1] != size or added.dtype != logits.dtype:
            added = self._added([first], logits)
            if len(self._shared) >= max(_NUM_KEPT // size, 1):
                self._shared.clear()
            # One that is used once needs no memory but that of its result.
            is_once = known is None and len(masks) == 1
            self._shared[id(first)] = first, None if is_once else added
            if is_once:
                return added.add_(logits)
        return logits + added

    def _added(self, masks: Sequence[TokenSet], logits: torch.Tensor) -> torch.Tensor:
        """Return (len(masks), V) of the type of the logits: minus infinity for the tokens that a mask forbids, else 0."""
        vocab_size = logits.shape[-1]
        num_words = -(-vocab_size // 32)
        words = [mask.words for mask in masks]
        lines = [
            line if len(line) == num_words else mask.bitmask(vocab_size)
            for line, mask in zip(words, masks, strict=True)
        ]
        data = np.concatenate(lines).reshape(len(masks), num_words).view(np.uint8)
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
        with suppress(Exception), bounded():  # raised again when the row uses the mask
            _ = mask.words


# By the value of a byte of a mask, the addends of the logits of its eight tokens: 0, or minus infinity.
_BY_BYTE = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf)
_TABLES = {torch.float32: _BY_BYTE.astype(np.float32), torch.float64: _BY_BYTE}
