"""A decode loop that follows its constraint on the device, beside one that asks the host for every token.

    python -m benchmarks.device_tables                # one thread of one core
    python -m benchmarks.device_tables --device cuda

Masks, the most probable tokens and the next states of 16 rows over 131,072 tokens (tekken), without a model: random logits that
stay where they are. Both sides run in turn, round after round; the figures are medians. The lazy side is what the engine does:
a mask per row from the token FSM, all of them applied at once, the ids to the host, and the next states there.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks import machine, table
from benchmarks.tekken import tekken

_PACKAGES = ("outlines-cont", "torch")
_ROWS = 16
_STEPS = 24
_LANGUAGES = {
    "a date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])( \d\d:\d\d:\d\d)?(Z|[+-]\d\d:\d\d)",
    "a choice of words": "(" + "|".join(f"{a} {b}" for a in ("red", "dark", "light") for b in ("green", "blue", "house")) + ") +",
    "lower-case letters": "[a-z ]{30,60}",
}  # fmt: skip


def _measure(pattern: str, device: str, rounds: int) -> dict[str, Any]:
    import torch

    import fsm
    from outlines_cont import DeviceTables, TokenSet
    from outlines_cont.engine.drawing.masking import Masker

    tokenizer = tekken()
    vocabulary = fsm.Vocabulary(tokenizer.tokens, [tokenizer.eos_token_id])
    token_fsm = fsm.TokenFSM(fsm.regex(pattern), vocabulary)
    start = perf_counter()
    written = token_fsm.to_tensors()
    making = perf_counter() - start
    tables = DeviceTables(written, len(vocabulary), device)
    draw = torch.Generator().manual_seed(0)
    logits = [torch.rand((_ROWS, len(vocabulary)), generator=draw).to(device) for _ in range(_STEPS)]
    for line in logits:
        line[:, tokenizer.eos_token_id] = -1.0  # nobody ends before all do
    masker = Masker()

    def on_device() -> Any:
        states, found = tables.initial(_ROWS), []
        for line in logits:
            token_ids = tables.masked(line, states).argmax(-1)
            states = tables.advance(states, token_ids)
            found.append(token_ids)
        return torch.stack(found).tolist()

    def lazily() -> Any:
        states, found = [token_fsm.initial_state] * _ROWS, []
        for line in logits:
            masks = [TokenSet.of_bitmask(token_fsm.bitmask(state)) for state in states]
            token_ids = masker.masked(line, masks).argmax(-1).tolist()
            states = [
                state if i == tokenizer.eos_token_id else token_fsm.next_state(state, i)
                for state, i in zip(states, token_ids, strict=True)
            ]
            found.append(token_ids)
        return found

    sides = {"on the device": on_device, "lazily": lazily}
    assert _common(lazily(), tokenizer.eos_token_id) == _common(on_device(), tokenizer.eos_token_id)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = perf_counter()
            side()
            seconds[name].append(perf_counter() - start)
    figures: dict[str, Any] = {name: statistics.median(found) / _STEPS * 1e3 for name, found in seconds.items()}
    shape = {"states": len(written.transitions), "classes": written.transitions.shape[1], "MB": tables.nbytes / 1e6}
    return {**shape, "making ms": making * 1e3, **figures}


def _common(found: list[list[int]], eos_token_id: int) -> list[list[int]]:
    """The ids of every row up to its end; what comes behind means nothing."""
    rows = [list(row) for row in zip(*found, strict=True)]
    return [row[: row.index(eos_token_id)] if eos_token_id in row else row for row in rows]


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device_tables", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each side (default: 9)")
    parser.add_argument("--device", default="cpu", help="where the logits are (default: cpu)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="device_tables", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(_PACKAGES)
    import torch

    torch.set_num_threads(1)
    found = {name: _measure(pattern, options.device, options.rounds) for name, pattern in _LANGUAGES.items()}
    columns = ["states", "classes", "MB", "making ms", "on the device", "lazily"]
    rows = [[name, *(figures[column] for column in columns)] for name, figures in found.items()]
    text = (
        f"# Constraints on the device\n\n{machine.sentence(described)} {_ROWS} rows over 131,072 tokens on {options.device}, one core "
        f"and one thread; milliseconds per step, medians of {options.rounds} loops of {_STEPS} steps of each side in turn.\n\n"
        + table.markdown(["language", *columns[:4], "ms on the device", "ms lazily"], rows)
    )
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, {"machine": described, "device": options.device, "cases": found}, text)


if __name__ == "__main__":
    main()
