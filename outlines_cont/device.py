"""`upload`: numpy arrays as tensors of a device, for which the host does not wait; `upload_together`: several by one copy. `Trimmer`: gives
memory of the host that caches have let go back to the system, where the C library (glibc) would keep it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsm.process_fork import lock

TRIM_FROM_BYTES = 64 << 20
"""Memory is given back each time that as much was let go."""
_ALIGNED_BYTES = 8  # of the largest type, at whose multiples a tensor may begin
_DELAY_SECONDS = 0.1  # in which those who let go of it have freed it


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device: on a CPU the same memory, on CUDA a copy that is made while the host goes on."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def upload_together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on a device, each as `upload` does, by one copy for all of them on CUDA."""
    if device.type != "cuda" or len(arrays) == 1:
        return [upload(array, device) for array in arrays]
    starts = [0, *accumulate(-(-array.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for array in arrays)]
    packed = np.empty(max(starts[-1], _ALIGNED_BYTES), dtype=np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved = upload(packed, device)
    return [
        moved[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    ]


class Trimmer:
    """Calls `malloc_trim` of the C library, if it has that, in a thread, each time that `TRIM_FROM_BYTES` were let go."""

    def __init__(self, trim: Callable[[int], object] | None = None) -> None:
        self._trim = _malloc_trim() if trim is None else trim
        self._lock = lock()
        self._let_go = 0

    def let_go(self, nbytes: int) -> None:
        """Record that a cache lets go of so many bytes. Any thread may call it."""
        with self._lock:
            self._let_go += nbytes
            if self._let_go < TRIM_FROM_BYTES or self._trim is None:
                return
            self._let_go = 0
        timer = threading.Timer(_DELAY_SECONDS, self._trim, (0,))
        timer.daemon = True
        timer.start()


def _malloc_trim() -> Callable[[int], object] | None:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None
    return found


trimmer = Trimmer()
"""That of the process."""
