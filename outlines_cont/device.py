"""`upload`: numpy arrays as tensors of a device, for which the host does not wait."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device: on a CPU the same memory, on CUDA a copy that is made while the host goes on."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
