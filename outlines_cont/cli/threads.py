"""`set_threads`: chooses how many threads torch uses: it times short forwards with all cores, then with fewer (powers of two), until the
larger number saves at least 15 % of the time, or a forward takes more than half a second. With a GPU, or with `OMP_NUM_THREADS` set,
nothing is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlines_cont.checks import num_cores

_VARIABLE = "OMP_NUM_THREADS"
# More threads must save at least this share of a forward's time.
_MIN_SAVING = 0.15
_REPEATS = 3
# Seconds. A model with a longer forward gets all cores, without further timing.
_LONG = 0.5


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The chosen number of threads (None on a GPU), and a text on the reason."""

    threads: int | None
    why: str

    def __str__(self) -> str:
        waiting = f"waiting: {os.environ.get('OMP_WAIT_POLICY', 'as OpenMP does').lower()}"
        return f"Threads: {self.why}; {waiting}"


def set_threads(model: Any, num_rows: int) -> ThreadChoice:
    """Choose the number of threads for a `HuggingFaceModel` with `num_rows` rows at a time, and set it in torch.

    Cost: some forwards of a few tokens, at most about two seconds.
    """
    import torch

    if model.device.type != "cpu":
        return ThreadChoice(None, f"the model runs on {model.device}")
    if _VARIABLE in os.environ:
        return ThreadChoice(torch.get_num_threads(), f"{torch.get_num_threads()}, as set by {_VARIABLE}")
    input_ids = torch.zeros((num_rows, 2), dtype=torch.int64)

    def forward(threads: int) -> float:
        torch.set_num_threads(threads)
        return _fastest(lambda: model.hugging_face(input_ids))

    with torch.inference_mode():
        choice = choose_threads(forward, num_cores())
    assert choice.threads is not None
    torch.set_num_threads(choice.threads)
    return choice


def choose_threads(forward: Callable[[int], float], num_cores: int) -> ThreadChoice:
    """Choose the number of threads, at most `num_cores`, by `forward`, which returns the seconds of a forward with a number of threads."""
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < num_cores]
    chosen, best = num_cores, forward(num_cores)
    seconds = {num_cores: best}
    for count in reversed(counts):
        if best > _LONG:
            break
        seconds[count] = forward(count)
        if seconds[count] * (1 - _MIN_SAVING) > best:
            break
        chosen, best = count, min(best, seconds[count])
    shown = ", ".join(f"{1000 * value:.1f} ms with {count}" for count, value in sorted(seconds.items()))
    return ThreadChoice(chosen, f"{chosen} of {num_cores} (a short forward takes {shown})")


def _fastest(run: Callable[[], object]) -> float:
    from time import perf_counter

    best = float("inf")
    for _ in range(_REPEATS):
        started = perf_counter()
        run()
        best = min(best, perf_counter() - started)
        if best > _LONG:
            break
    return best
