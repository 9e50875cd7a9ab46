"""The machine: what it is, one core and one thread of it for a measurement, and how much memory a process holds."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_MADV_POPULATE_WRITE = (
    23  # Linux 5.14; asked for again at each fork, so that copy-on-write is not part of what is timed
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """Say where and when a measurement is made: processor, cores, memory, load, date, versions."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_at_start": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def sentence(machine: dict[str, Any]) -> str:
    """`describe` in one line, for people."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"load {machine['load_at_start']} before the start, Python {machine['python']}, {versions}."
    )


def use_one_thread() -> None:
    """Ask every library for one thread; call before they are imported, and in the parent of the measured processes."""
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def pin(core: int | None = None) -> None:
    """Keep this process on one core; the last one if none is named."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if core is None else core})


def resident_mb() -> float:
    """Memory of this process that is in RAM, in MB (10**6 bytes)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def own_all_pages() -> None:
    """Copy every page shared with the parent now: a fork would otherwise pay for each at its first write.

    Where the kernel does not know the request (Linux before 5.14), nothing happens.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw") and rights.endswith("p"):
            first, last = (int(edge, 16) for edge in span.split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_POPULATE_WRITE)


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from this repository" if package == "outlines-cont" else "not installed"
