"""`default_prefix_cache_bytes`: the default size of the prefix cache, a sixteenth of the memory of the device and at most 4 GiB.
`memory_bytes` is the memory of a CUDA device, or of the machine within the limit of its container (cgroup); 8 GiB where the system does
not report it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# The memory that is assumed where the system does not report it.
_UNKNOWN = 8 * 2**30
_SHARE = 16
_MOST = 4 * 2**30


def default_prefix_cache_bytes(device: torch.device) -> int:
    """Return the default size of a prefix cache: a sixteenth of the memory, and no more than 4 GiB.

    It suffices for many prompts: of 32 GB a sixteenth is 16,000 tokens of a model of 8 billion parameters with grouped keys (128 KiB a
    token).
    """
    return min(memory_bytes(device) // _SHARE, _MOST)


def memory_bytes(device: torch.device) -> int:
    """Return the bytes of memory of a device; for the CPU the limit of the container, if there is one."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):  # not on every system
        found = [_UNKNOWN]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or its content is "max"
            found.append(int(Path(path).read_text()))
    return min(found)
