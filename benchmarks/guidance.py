"""Guidance: a greedy text that is guided by a negative prompt, beside the same text without one and beside transformers' `guidance_scale`.

    python -m benchmarks.guidance

A random model of 512 x 8 with 32,000 tokens, one thread. All sides run in turn in one process, round after round: 32 tokens behind
prompts and a negative prompt of some length, for one row and for eight. The guided sides write the same tokens, which is checked. The
figures are processor time, which other processes of the machine disturb less than the clock.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

from rich.console import Console

from benchmarks import machine, table

_NUM_NEW = 32
_SCALE = 1.5


def _sides(rig: Any, length: int, size: int) -> dict[str, Callable[[], list[list[int]]]]:
    """Return what is timed; each returns the tokens that it has written."""
    import torch

    from outlines_cont import Guidance, continuous, generate

    prompts, negative = [rig.text(length, seed) for seed in range(size)], rig.text(length, size)
    ids, negative_ids = (
        torch.tensor([rig.model.tokenizer.encode(text) for text in texts]) for texts in (prompts, [negative] * size)
    )
    writer = continuous(generate.text(rig.model))

    def ours(**options: Any) -> list[list[int]]:
        rig.model.prefix_cache.clear()  # else the prompts of the round before would be reused
        written: list[list[int]] = writer(prompts, max_tokens=_NUM_NEW, **options).token_ids[:, 0, length:].tolist()
        return written

    def theirs(**options: Any) -> list[list[int]]:
        mask = torch.ones_like(ids)
        found = rig.network.generate(ids, attention_mask=mask, max_new_tokens=_NUM_NEW, do_sample=False, **options)
        written: list[list[int]] = found[:, length:].tolist()
        return written

    return {
        "ours": ours,
        "ours, guided": lambda: ours(guidance=Guidance(negative, _SCALE)),
        "transformers": theirs,
        "transformers, guided": lambda: theirs(guidance_scale=_SCALE, negative_prompt_ids=negative_ids),
    }


def _measure(rig: Any, length: int, size: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of processor time of each side."""
    sides = _sides(rig, length, size)
    texts = {name: side() for name, side in sides.items()}  # the first round warms up
    for ours, theirs in (("ours", "transformers"), ("ours, guided", "transformers, guided")):
        if texts[ours] != texts[theirs]:
            raise RuntimeError(
                f"expected the same tokens from {ours!r} and {theirs!r} for {length} tokens and {size} rows"
            )
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        order = [*sides] if number % 2 else [*reversed(sides)]
        for name in order:
            start = process_time()
            sides[name]()
            times[name].append(process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guidance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side (default: 5)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="guidance", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(("outlines-cont", "transformers", "torch"))
    import torch

    from benchmarks.rig import Rig

    torch.set_num_threads(1)
    rig = Rig("cpu")
    with torch.no_grad():
        rig.network.lm_head.weight[257:] = (
            0  # tokens without text, which we never write, are never the most probable ones
        )
    rows: list[list[str]] = []
    cases: list[dict[str, Any]] = []
    for length, size in ((32, 1), (512, 1), (32, 8), (256, 8)):
        found = _measure(rig, length, size, options.rounds)
        ratios = (
            found["ours, guided"] / found["ours"],
            found["transformers, guided"] / found["transformers"],
            found["transformers, guided"] / found["ours, guided"],
        )
        cases.append({"tokens": length, "rows": size, "seconds": found})
        rows.append([str(length), str(size), *(f"{found[name]:.2f}" for name in found), *(f"{x:.2f}" for x in ratios)])
    head = [
        "prompt",
        "rows",
        "ours, s",
        "guided, s",
        "transformers, s",
        "guided, s",
        "ours: guided / not",
        "theirs: guided / not",
    ]
    head += ["theirs / ours, guided"]
    text = f"# Guidance\n\n{machine.sentence(described)} {_NUM_NEW} greedy tokens of a random model of 512 x 8; prompts and the negative "
    text += (
        f"prompt of so many tokens; equal tokens on both sides. Processor time, medians of {options.rounds} rounds.\n\n"
        + table.markdown(head, rows)
    )
    Console(width=180, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, {"machine": described, "rounds": options.rounds, "cases": cases}, text)


if __name__ == "__main__":
    main()
