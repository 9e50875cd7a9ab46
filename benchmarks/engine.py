"""The engine: many rows at once, against what transformers does with the same settings.

    python -m benchmarks.engine              # every case, five rounds; some ten minutes
    python -m benchmarks.engine --rounds 1 --cases greedy,queue

The model, the machine and the way of measuring are those of `benchmarks.continuation`.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table
from benchmarks.continuation import Case, Figures, Rig

_PACKAGES = ("outlines-cont", "transformers", "torch")
_ROWS = 16
_TOKENS = 64


def _ratio(ours: list[float], theirs: list[float], **more: float) -> Figures:
    """Medians, and how many times as long theirs takes."""
    own, other = statistics.median(ours), statistics.median(theirs)
    return {"ratio": other / own, "ours s": own, "theirs s": other, **more}


def _generate(rig: Rig, ids: Any, tokens: int, **options: Any) -> Any:
    """What transformers writes after (R, T) ids."""
    import torch

    with torch.inference_mode():
        return rig.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            **options,
        )


def _top_p(rig: Rig, rounds: int) -> Figures:
    """16 rows, top-p sampling."""
    from outlines_cont import samplers

    prompts = [rig.text(32, seed) for seed in range(_ROWS)]
    ids = rig.ids("".join(prompts)).reshape(_ROWS, -1)
    write = rig.writer(sampler=samplers.multinomial(top_p=0.9, temperature=0.8))
    options = {"do_sample": True, "top_p": 0.9, "temperature": 0.8, "top_k": 0}
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(rig.timed(lambda: write(prompts, max_tokens=_TOKENS, rng=1))[0])
        theirs.append(rig.timed(lambda: _generate(rig, ids, _TOKENS, **options))[0])
    return _ratio(ours, theirs)


def _greedy(rig: Rig, rounds: int) -> Figures:
    """16 rows, greedy: our step over the bare forward, with a cache that grows in place as ours does."""
    import torch
    from transformers import StaticCache

    prompts = [rig.text(32, seed) for seed in range(_ROWS)]
    ids = rig.ids("".join(prompts)).reshape(_ROWS, -1)
    write = rig.writer()

    def bare() -> None:
        cache = StaticCache(config=rig.network.config, max_cache_len=32 + _TOKENS)
        chunk = ids
        with torch.inference_mode():
            for _ in range(_TOKENS):
                logits = rig.network(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                chunk = logits[:, -1].argmax(-1, keepdim=True)

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(rig.timed(lambda: write(prompts, max_tokens=_TOKENS))[0])
        theirs.append(rig.timed(bare)[0])
    own, other = statistics.median(ours), statistics.median(theirs)
    return {"ratio": own / other, "ours s": own, "bare s": other}


def _tree(rig: Rig, rounds: int) -> Figures:
    """16 leaves on a prompt of 2,048 tokens, 32 tokens each, against 16 generations of their own."""
    from outlines_cont import kv_bytes

    text = rig.text(2048)
    ids = rig.ids(text)
    from outlines_cont import samplers

    write = rig.writer(sampler=samplers.multinomial(16))
    ours, theirs, held = [], [], 0
    for _ in range(rounds):
        seconds, state = rig.timed(lambda: write(text, max_tokens=32, rng=1))
        ours.append(seconds)
        held = kv_bytes([state])
        theirs.append(rig.timed(lambda: [_generate(rig, ids, 32, do_sample=True) for _ in range(16)])[0])
    apart = 16 * (2048 + 32) * _bytes_per_token(rig)
    return _ratio(ours, theirs, **{"ours MB": held / 1e6, "theirs MB": apart / 1e6, "bytes ratio": apart / held})


def _bytes_per_token(rig: Rig) -> int:
    config = rig.network.config
    width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * width * rig.network.dtype.itemsize)


def _conversations(rig: Rig, rounds: int) -> Figures:
    """32 conversations on one system prompt of 1,024 tokens, 64 tokens each, against a batch of 32."""
    from outlines_cont import SequenceState

    system, users = rig.text(1024), [rig.text(16, seed + 1) for seed in range(32)]
    ids = rig.ids("".join(system + user for user in users)).reshape(32, -1)
    write = rig.writer()

    def ours_once() -> Any:
        shared = write(system, max_tokens=1).tokens[..., :1024]
        return write(SequenceState.stack([shared] * 32) + users, max_tokens=_TOKENS)

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(rig.timed(ours_once)[0])
        theirs.append(rig.timed(lambda: _generate(rig, ids, _TOKENS))[0])
    return _ratio(ours, theirs)


def _queue(rig: Rig, rounds: int) -> Figures:
    """1,000 rows queued: what is neither forward, masks nor sampling, per row and step."""
    from outlines_cont import Engine, engine_of

    write = rig.writer()
    prompts = [rig.text(4, seed) for seed in range(1000)]
    per_row = []
    for _ in range(rounds):
        rig.model.memo["engine"] = Engine(rig.model, max_rows=64)
        write(prompts, max_tokens=8)
        stats = engine_of(rig.model).stats
        per_row.append(stats.python_seconds / stats.rows * 1e6)
    del rig.model.memo["engine"]
    return {"ratio": statistics.median(per_row), "rows per step": stats.rows_per_step}


CASES = [
    Case("top_p", "16 rows, top-p sampling, against `generate`", ">= 1.6x", _top_p),
    Case("greedy", "16 rows, greedy: our step over the bare forward", "<= 1.10x", _greedy),
    Case("tree", "16 leaves on 2,048 tokens, against 16 generations", ">= 8x", _tree),
    Case("conversations", "32 conversations on 1,024 shared tokens, against a batch of 32", ">= 3x", _conversations),
    Case("queue", "1,000 rows queued: Python per row and step, in us", "<= 60", _queue),
]


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(_PACKAGES)
    import torch

    torch.set_num_threads(1)
    rig = Rig(options.device)
    chosen = [case for case in CASES if not options.cases or case.name in options.cases.split(",")]
    found: dict[str, Figures] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen))
        for case in chosen:
            progress.update(bar, description=case.name)
            found[case.name] = case.measure(rig, options.rounds)
            progress.advance(bar)
    report = {"machine": described, "rounds": options.rounds, "device": options.device, "cases": found}
    text = _page(report, chosen)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=(__doc__ or "").split("\n")[0])
    add = partial(parser.add_argument)
    add("--rounds", type=int, default=5, help="measurements of each side (default: 5)")
    add("--cases", default="", help=f"of {', '.join(case.name for case in CASES)} (default: all)")
    add("--device", default="cpu", help="where the model runs (default: cpu)")
    add("--core", type=int, help="processor core to run on (default: the last)")
    add("--output", default="engine", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _page(report: dict[str, Any], chosen: list[Case]) -> str:
    head = ["what", "aim", "measured", "figures"]
    rows = []
    for case in chosen:
        figures = report["cases"][case.name]
        others = ", ".join(f"{name} {table.number(float(value))}" for name, value in figures.items() if name != "ratio")
        rows.append([case.title, case.aim, table.number(float(figures["ratio"])), others])
    return (
        f"# The engine\n\n{machine.sentence(report['machine'])} A Llama of random weights (width 512, 8 layers, 8 query and 2 key "
        f"heads, 32,000 tokens, float32) on {report['device']}, one core and one thread, medians of {report['rounds']} measurements "
        "of each side in turn.\n\n" + table.markdown(head, rows)
    )


if __name__ == "__main__":
    main()
