"""Healing: the time to the first new token with `heal=True` against the same call without.

    python -m benchmarks.healing

The bundled model on prompts of some 60 and 600 tokens, alone and in a batch of 8; where a longer token comes, where those that were
given back come again, and where others spell the same text. Both sides in turn in one process, one thread; medians of wall time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks import machine, table

_MESSAGE = "Message: Hello, this is Marta Keller from Porto. Please send 12 desk lamps by 2031-05-14.\n"
# How a prompt ends, and what that means for the bundled model.
_ENDS = {
    "a longer token comes": '{"cust',
    "the same tokens come again": '{"customer',
    "two tokens come again": '{"customer":"Marta',
    "other tokens spell it": '{"customer": "Mar',  # a token more is drawn before there is new text
}


def ratio(rounds: int, plain: Callable[[], Any], healed: Callable[[], Any]) -> dict[str, float]:
    """Return medians in milliseconds, and how many times as long the healed call takes, pair by pair."""
    times: dict[str, list[float]] = {"plain": [], "healed": []}
    for number in range(rounds + 3):
        sides = [("plain", plain), ("healed", healed)]
        for name, side in sides if number % 2 else reversed(sides):
            start = perf_counter()
            side()
            if number >= 3:  # the first ones warm up
                times[name].append((perf_counter() - start) * 1e3)
    pairs = [ours / theirs for ours, theirs in zip(times["healed"], times["plain"], strict=True)]
    return {name: statistics.median(values) for name, values in (*times.items(), ("ratio", pairs))}


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.healing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=101, help="measurements of each side (default: 101)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="healing", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(("outlines-cont", "transformers", "torch"))
    import torch

    from outlines_cont import generate, models

    torch.set_num_threads(1)
    model = models.tiny()
    writer = generate.text(model)
    rows: list[list[str]] = []
    cases: list[dict[str, Any]] = []
    for title, end in _ENDS.items():
        for repeats, size in ((1, 1), (1, 8), (14, 1), (14, 8)):
            prompts = [_MESSAGE * repeats + "Record: " + end] * size
            length = len(model.tokenizer.encode(prompts[0], add_special_tokens=True))

            def first(heal: bool, prompts: list[str] = prompts) -> None:
                next(iter(writer.stream(prompts, max_tokens=1, heal=heal)))

            found = ratio(options.rounds, partial(first, False), partial(first, True))
            cases.append({"end": title, "tokens": length, "rows": size, **found})
            numbers = [f"{found['plain']:.2f}", f"{found['healed']:.2f}", f"{found['ratio']:.3f}"]
            rows.append([title, str(length), str(size), *numbers])
    head = ["after the prompt", "tokens", "rows", "without, ms", "with, ms", "ratio"]
    text = f"# Healing\n\n{machine.sentence(described)} Time to the first new token, medians of {options.rounds} pairs.\n\n"
    text += table.markdown(head, rows)
    Console(width=160, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, {"machine": described, "rounds": options.rounds, "cases": cases}, text)


if __name__ == "__main__":
    main()
