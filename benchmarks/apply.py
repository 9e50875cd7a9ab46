"""Applying a mask to one row of logits on the CPU, with few and with many tokens allowed: ours, xgrammar's and llguidance's.

    python -m benchmarks.apply

131,072 tokens in float32, one thread. The two masks of a kind take turns, so that nothing remembers the last one. All sides run in
turn, round after round; the figures are medians. Ours returns new logits, as samplers want them; the others change theirs in place.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import cycle
from time import perf_counter_ns
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, table

_PACKAGES = ("outlines-cont", "xgrammar", "llguidance", "torch", "numpy")
_VOCAB_SIZE = 131_072
_KINDS = {"3 tokens allowed": 3, "half of them": _VOCAB_SIZE // 2, "all but 2 %": _VOCAB_SIZE * 98 // 100}


def _sides(words: list[Any]) -> dict[str, Callable[[], object]]:
    import llguidance.numpy
    import llguidance.torch
    import torch
    import xgrammar

    from outlines_cont import TokenSet
    from outlines_cont.engine.drawing.masking import Masker

    logits = torch.randn((1, _VOCAB_SIZE), generator=torch.Generator().manual_seed(0))
    masker, sets = Masker(), cycle([TokenSet.of_bitmask(one) for one in words])
    tensors, arrays = cycle([torch.from_numpy(one.copy())[None] for one in words]), cycle([one[None] for one in words])
    copies = [logits.clone() for _ in range(3)]
    return {
        "ours": lambda: masker.masked(logits, [next(sets)]),
        "xgrammar": lambda: xgrammar.apply_token_bitmask_inplace(copies[0], next(tensors)),
        "llguidance, torch": lambda: llguidance.torch.apply_token_bitmask_inplace(copies[1], next(tensors)),
        "llguidance, numpy": lambda: llguidance.numpy.apply_token_bitmask_inplace(copies[2].numpy(), next(arrays)),
        "a copy of the row": lambda: logits.clone(),
    }


def _words(num_allowed: int, seed: int) -> Any:
    chosen = np.random.default_rng(seed).permutation(_VOCAB_SIZE)[:num_allowed]
    bits = np.zeros(_VOCAB_SIZE, np.uint8)
    bits[chosen] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _measure(num_allowed: int, rounds: int) -> dict[str, float]:
    sides = _sides([_words(num_allowed, seed) for seed in range(2)])
    times: dict[str, list[int]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            for _ in range(20):
                start = perf_counter_ns()
                side()
                times[name].append(perf_counter_ns() - start)
    return {name: round(statistics.median(found) / 1e3, 1) for name, found in times.items()}


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apply", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of 20 calls of every side (default: 40)")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(_PACKAGES)
    found = {kind: _measure(count, options.rounds) for kind, count in _KINDS.items()}
    rows = [[side, *(found[kind][side] for kind in found)] for side in next(iter(found.values()))]
    text = f"# A mask on a row of logits\n\n{machine.sentence(described)} Microseconds, medians.\n\n"
    text += table.markdown(["side", *found], rows)
    table.write("apply", {"machine": described, "microseconds": found}, text)
    Console(width=160, highlight=False).print(text, markup=False)


if __name__ == "__main__":
    main()
