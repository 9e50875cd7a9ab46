"""JSON extraction with the bundled model, or another: this repository, `model.generate` without a constraint, and outlines.

    python -m benchmarks.generate                  # three engines, five rounds; some minutes
    python -m benchmarks.generate --rounds 1 --records 4
    python -m benchmarks.generate --model FOLDER --clock processor --rounds 3 --records 4 --batch 4 --max-tokens 80 \\
        --engines ours,drafted,transformers,outlines --output generate_real

The same weights, prompts and schema, greedy. Each engine has a fresh process per round, one core and one thread. It writes one
batch and one record before the clock starts (outlines compiles a kernel then), then all records one by one, then in batches.
transformers is free to write anything, and ends where the model does; so its texts, and their number of tokens, may differ.
On a machine that has other work `--clock processor` measures the time of the process on its core, not that on the wall.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table
from benchmarks.rounds import Message, Send, in_process

ENGINES = ("ours", "transformers", "outlines")
CLOCKS = {"wall": perf_counter, "processor": process_time}
_CLOCK_NAMES = {"wall": "the clock on the wall", "processor": "the processor, on a machine with other work"}
_PACKAGES = ("outlines-cont", "transformers", "outlines", "outlines-core", "torch")


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    described = machine.describe(_PACKAGES)
    prompts = held_out_prompts(options.records)
    names = options.engines.split(",")
    measured = (options.batch, options.core, options.model, options.clock, options.max_tokens)
    found = all_rounds(names, prompts, options.rounds, *measured)
    report = {
        "machine": described,
        "settings": {
            "rounds": options.rounds,
            "records": options.records,
            "batch": options.batch,
            "model": _called(options.model),
            "clock": options.clock,
            "max_tokens": options.max_tokens,
        },
        "engines": {name: summary(messages) for name, messages in found.items()},
    }
    text = _page(report)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes per engine (default: 5)")
    parser.add_argument("--records", type=int, default=16, help="messages to read (default: 16)")
    parser.add_argument("--batch", type=int, default=8, help="messages in a batch (default: 8)")
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}, drafted (ours with prompt lookup)"
    )
    parser.add_argument("--model", type=Path, help="folder of another model (default: the bundled one)")
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help="what measures seconds (default: wall)")
    parser.add_argument("--max-tokens", type=int, default=400, help="the most tokens of a record (default: 400)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="generate", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _called(folder: Path | None) -> str:
    """What a page calls the model."""
    if folder is None:
        return "The bundled model"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = f"width {config['hidden_size']:,}, {config['num_hidden_layers']} layers, {config['vocab_size']:,} tokens"
    return f"A {config['model_type']} from a folder ({sizes})"


def held_out_prompts(count: int) -> list[str]:
    """Messages with names and things that the model never saw in training, the same on every machine."""
    from scripts.tiny.corpus import DEMO_KINDS, MessageSource

    source, rng = MessageSource(held_out=True), random.Random(20)
    messages = [source.draw(rng, rng.choice(DEMO_KINDS), complete=True) for _ in range(count)]
    return [f"Message: {message.text}\nRecord: " for message in messages]


def all_rounds(
    names: Sequence[str],
    prompts: Sequence[str],
    rounds: int,
    batch: int,
    core: int | None,
    folder: Path | None = None,
    clock: str = "wall",
    max_tokens: int = 400,
) -> dict[str, list[Message]]:
    """Return what every engine has measured in each round, in a process of its own."""
    found: dict[str, list[Message]] = {name: [] for name in names}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=rounds * len(names))
        for number in range(rounds):
            for name in names:
                progress.update(bar, description=f"round {number + 1}: {name}")
                for message in in_process(_measure, name, prompts, batch, core, folder, clock, max_tokens):
                    if "failed" in message:
                        raise SystemExit(f"{name}: {message['failed']}")
                    found[name].append(message)
                progress.advance(bar)
    return found


def _measure(
    send: Send,
    name: str,
    prompts: Sequence[str],
    batch: int,
    core: int | None,
    folder: Path | None,
    clock: str,
    max_tokens: int,
) -> None:
    """Make one engine and let it write everything twice."""
    machine.pin(core)
    import torch

    from benchmarks.writers import WRITERS, load

    torch.set_num_threads(1)
    now = CLOCKS[clock]
    weights = load(folder, max_tokens)
    start = now()
    writer = WRITERS[name](weights)
    prepared = now() - start
    start = now()
    writer.write(prompts[:batch])
    writer.write(prompts[:1])
    warmed = now() - start
    send(
        {
            "prepare_seconds": prepared,
            "warm_up_seconds": warmed,
            "one by one": _write_all(writer, [[prompt] for prompt in prompts], now),
            "in batches": _write_all(writer, [prompts[i : i + batch] for i in range(0, len(prompts), batch)], now),
        }
    )


def _write_all(writer: Any, groups: list[Any], now: Callable[[], float]) -> dict[str, float]:
    counts, texts = writer.counts, list[str]()
    counts.forwards = counts.fed = counts.written = 0
    start = now()
    for group in groups:
        texts += writer.write(group)
    seconds = now() - start
    return {
        "seconds": seconds,
        "records_per_second": len(texts) / seconds,
        "tokens_per_second": counts.written / seconds,
        "tokens_per_record": counts.written / len(texts),
        "forwards_per_record": counts.forwards / len(texts),
        "fed_per_record": counts.fed / len(texts),
        "valid": sum(map(_is_valid, texts)) / len(texts),
    }


def _is_valid(text: str) -> bool:
    from benchmarks.writers import Record

    try:
        Record.model_validate_json(text)
    except ValidationError:
        return False
    return True


def summary(rounds: list[Message]) -> dict[str, Any]:
    """Medians over the rounds, and the spread of the speed."""
    out: dict[str, Any] = {
        key: statistics.median(message[key] for message in rounds) for key in ("prepare_seconds", "warm_up_seconds")
    }
    for mode in ("one by one", "in batches"):
        figures = [message[mode] for message in rounds]
        out[mode] = {key: statistics.median(f[key] for f in figures) for key in figures[0]}
        speeds = [f["tokens_per_second"] for f in figures]
        out[mode]["tokens_per_second_spread"] = [min(speeds), max(speeds)]
    return out


def _page(report: dict[str, Any]) -> str:
    settings, engines = report["settings"], report["engines"]
    parts = [
        f"# Extraction\n\n{machine.sentence(report['machine'])} {settings['model']} (float32), {settings['records']} held-out messages, "
        f"one record of six fields and at most {settings['max_tokens']} tokens each, greedy, one core and one thread; medians of "
        f"{settings['rounds']} rounds; seconds are those of {_CLOCK_NAMES[settings['clock']]}. "
        "Forwards are calls of the model; a batch is one call. The last columns are this repository's speed over each engine's.\n"
    ]
    for mode in ("one by one", "in batches"):
        title = mode if mode == "one by one" else f"{mode} of {settings['batch']}"
        parts += [f"## {title[0].upper()}{title[1:]}\n", _mode_table(engines, mode)]
    head = ["engine", "prepare s", "first batch and record s"]
    rows = ([name, found["prepare_seconds"], found["warm_up_seconds"]] for name, found in engines.items())
    parts += ["## Before the clock starts\n", table.markdown(head, rows)]
    return "\n".join(parts)


def _mode_table(engines: dict[str, Any], mode: str) -> str:
    head = ["engine", "tokens/s", "lowest to highest", "records/s", "tokens per record", "forwards per record",
            "tokens fed per record", "valid", "ours: tokens/s", "ours: records/s"]  # fmt: skip
    ours = engines.get("ours", {}).get(mode)
    rows = []
    for name, found in engines.items():
        figures = found[mode]
        low, high = figures["tokens_per_second_spread"]
        ratios = [
            f"{ours[key] / figures[key]:.2f}x" if ours else None for key in ("tokens_per_second", "records_per_second")
        ]
        rows.append(
            [
                name, figures["tokens_per_second"], f"{low:.0f} to {high:.0f}", figures["records_per_second"],
                figures["tokens_per_record"], figures["forwards_per_record"], figures["fed_per_record"],
                f"{figures['valid']:.0%}", *ratios,
            ]
        )  # fmt: skip
    return table.markdown(head, rows)


if __name__ == "__main__":
    main()
