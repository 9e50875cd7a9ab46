"""How OpenMP's threads wait for each other: torch's spin for a while, which is slow as soon as another process uses a core.
`wait_passively` lets them sleep, and `SpinWatch` warns where that came too late, after torch was loaded.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # Linux alone counts the preemptions of a thread
    getrusage = None  # type: ignore[assignment]

# A forward that waits this many seconds, more than twice the processor time of its thread, which was preempted this often.
_LONG = 0.1
_RATIO = 2
_PREEMPTIONS = 5
_SET_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_passively() -> bool:
    """Make OpenMP's threads wait passively, unless the environment says how they wait; return whether torch was loaded too early for it.

    OpenMP reads the environment when torch is loaded; processes that this one starts inherit it.
    """
    if any(name in os.environ for name in _SET_BY_USER):
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return "torch" in sys.modules


class SpinWatch:
    """Warns of the first forward that was slow because threads spin on a machine that does other work.

    Attributes:
        is_on: whether threads spin, and nothing was warned of yet.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on and getrusage is not None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure a block that runs in this thread: a forward of several threads. Cost: 2 us."""
        before, started = getrusage(RUSAGE_THREAD), time.perf_counter()
        yield
        seconds, after = time.perf_counter() - started, getrusage(RUSAGE_THREAD)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.note(seconds, processor, after.ru_nivcsw - before.ru_nivcsw)

    def note(self, seconds: float, processor: float, preemptions: int) -> None:
        """Warn once of a forward that took `seconds`, in which its thread had `processor` seconds and was preempted so many times."""
        if self.is_on and seconds > max(_LONG, _RATIO * processor) and preemptions >= _PREEMPTIONS:
            self.is_on = False
            warnings.warn(
                f"a forward took {seconds:.2f} s, and its thread had a processor for {processor:.2f} s of them: other processes use "
                "the cores, and torch's threads spin while they wait, as torch was imported before outlines_cont. Write "
                "`import outlines_cont` before `import torch`, or set OMP_WAIT_POLICY=PASSIVE in the environment.",
                RuntimeWarning,
                stacklevel=2,
            )


spin_watch = SpinWatch(wait_passively())
