"""A controller that thinks for 20 ms beside a forward of 20 ms: how long is a step?

    python -m benchmarks.control

Both sleep, so what is measured is whether they overlap, and what the loop adds. The model is a small Llama of random weights.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from benchmarks import machine
from outlines_cont import Branch, TokenSet, control, models

_SECONDS = 0.02
_TOKENS = 100


def _model() -> Any:
    """The bundled model, each forward of which takes 20 ms."""
    model = models.tiny(dtype=torch.float64)
    forward = model.forward
    assert model.can_stack  # probed by forwards of its own
    assert model.can_branch

    def slow(*arguments: Any) -> torch.Tensor:
        end = time.perf_counter() + _SECONDS
        logits = forward(*arguments)
        time.sleep(max(end - time.perf_counter(), 0.0))
        return logits

    model.forward = slow  # type: ignore[method-assign]
    return model


def _steps(model: Any) -> list[float]:
    """Milliseconds from one call of a controller to the next, over 100 tokens."""
    begun: list[float] = []

    def controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        begun.append(time.perf_counter())
        time.sleep(_SECONDS)
        return [Branch(sample_mask=TokenSet.of(range(10, 200)))] if len(begun) <= _TOKENS else []

    control.run(model, controller, "Message: ").check()
    return [(after - before) * 1e3 for before, after in pairwise(begun)]


def main() -> None:
    steps = sorted(_steps(_model()))
    print(machine.sentence(machine.describe(("outlines-cont", "transformers", "torch"))))
    print(f"step: median {statistics.median(steps):.1f} ms, 9 in 10 below {steps[int(len(steps) * 0.9)]:.1f} ms")


if __name__ == "__main__":
    main()
