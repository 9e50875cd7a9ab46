"""Continuing a state: slices, chains, forks and ragged batches against what transformers does without them.

    python -m benchmarks.continuation              # every case, five rounds; some minutes
    python -m benchmarks.continuation --rounds 1 --cases fork,slice

A Llama of random weights (width 512, 8 layers, 8 query and 2 key heads, 32,000 tokens, float32), one thread of one core, on a
GPU where `--device cuda` says so. Every case measures both sides in turn, round after round, in one process; the figures are
medians, and the ratios are of the medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table

_PACKAGES = ("outlines-cont", "transformers", "torch")
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        name: short, for `--cases`.
        title: what is done.
        aim: what was to be reached.
        measure: from the rig and the number of rounds to figures; `ratio` is the one that the aim is about.
    """

    name: str
    title: str
    aim: str
    measure: Callable[[Rig, int], Figures]


class Rig:
    """The model, wrapped and bare, and prompts of any length."""

    def __init__(self, device: str) -> None:
        import torch
        import transformers
        from tokenizers import Tokenizer, decoders, pre_tokenizers
        from tokenizers.models import BPE

        from outlines_cont import models

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        source = Tokenizer(BPE(vocab={"</s>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
        source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        source.decoder = decoders.ByteLevel()
        config = transformers.LlamaConfig(
            vocab_size=32_000,
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=32_768,
            eos_token_id=None,
            bos_token_id=None,
        )
        torch.manual_seed(0)
        self.device = device
        self.network = transformers.LlamaForCausalLM(config).to(device).eval()
        self.network.generation_config.pad_token_id = 0
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=source)
        self.model = models.from_transformers(self.network, wrapped)
        assert self.model.can_branch, self.model.capabilities

    def text(self, length: int, seed: int = 0) -> str:
        """A prompt of `length` tokens, one per character."""
        return "".join(chr(97 + (i * i + seed * 7 + i // 5) % 26) for i in range(length))

    def ids(self, text: str) -> Any:
        """(1, T) ids of a text on the device."""
        import torch

        return torch.tensor([self.model.tokenizer.encode(text)], device=self.device)

    def writer(self, **options: Any) -> Any:
        """Free text, continuous."""
        from outlines_cont import continuous, generate

        return continuous(generate.text(self.model, **options))

    def timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Return the seconds that `work` takes, and its result."""
        import torch

        gc.collect()
        start = perf_counter()
        result = work()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return perf_counter() - start, result

    def timed_plain(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """The same without collecting garbage first, for what is called at every step."""
        start = perf_counter()
        result = work()
        return perf_counter() - start, result

    def decode_steps(self, cache: Any, rows: int, steps: int) -> float:
        """Return the seconds of one plain decode step on a cache of transformers, median of `steps`."""
        import torch

        token = torch.full((rows, 1), 7, device=self.device)
        with torch.inference_mode():
            times = [
                self.timed(lambda: self.network(input_ids=token, past_key_values=cache, use_cache=True))[0]
                for _ in range(steps)
            ]
        return statistics.median(times)

    def prefilled(self, text: str, rows: int = 1) -> Any:
        """A `DynamicCache` of a text, repeated."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache()
        with torch.inference_mode():
            self.network(input_ids=self.ids(text), past_key_values=cache, use_cache=True, logits_to_keep=1)
        if rows > 1:
            cache.batch_repeat_interleave(rows)
        return cache


def _slice(rig: Rig, rounds: int) -> Figures:
    text, write = rig.text(2100), rig.writer()
    state = write(text, max_tokens=1)
    ours, anew, step = [], [], []
    for number in range(rounds):
        stop = 2048 - number
        ours.append(rig.timed(partial(_next, write, state, stop))[0])
        anew.append(rig.timed(partial(write, text[:stop], max_tokens=1))[0])
        step.append(rig.decode_steps(rig.prefilled(text[:stop]), 1, 3))
    mine, theirs, plain = (statistics.median(times) for times in (ours, anew, step))
    return {
        "ours ms": mine * 1e3,
        "theirs ms": theirs * 1e3,
        "ratio": theirs / mine,
        "ours over one step": mine / plain,
    }


def _next(write: Any, state: Any, stop: int) -> Any:
    return write(state[:stop], max_tokens=1)


def _chain(rig: Rig, rounds: int) -> Figures:
    import torch

    prompt, write = rig.text(1024), rig.writer()
    ours, theirs, fed = [], [], 0
    length = 0
    for _ in range(rounds):
        with rig.model.meter() as meter:
            seconds, state = rig.timed(lambda: _our_chain(write, prompt))
        ours.append(seconds)
        fed, length = meter.fed_tokens, state.shape[2]

        def grown() -> Any:
            ids = rig.ids(prompt)
            for piece in range(10):
                ids = torch.cat([ids, rig.ids(f" {piece}:")], dim=1)
                ids = rig.network.generate(ids, max_new_tokens=8, do_sample=False)
            return ids

        theirs.append(rig.timed(grown)[0])
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "ours ms": mine * 1e3,
        "theirs ms": other * 1e3,
        "ratio": other / mine,
        "tokens fed": fed,
        "distinct tokens but the last": length - 1,
    }


def _our_chain(write: Any, prompt: str) -> Any:
    state: Any = prompt
    for piece in range(10):
        state = state + f" {piece}:"
        state = write(state, max_tokens=8)
    return state


def _branches(rig: Rig, rounds: int) -> Figures:
    text, steps = rig.text(2048), 24
    write = rig.writer()
    state = write(text, max_tokens=1)
    ours, theirs = [], []
    for _ in range(rounds):
        forks = state.fork(16)
        seconds = rig.timed(partial(write, forks, max_tokens=steps))[0]
        ours.append(16 * steps / seconds)
        theirs.append(16 / rig.decode_steps(rig.prefilled(text, 16), 16, 8))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"ours tokens/s": mine, "theirs tokens/s": other, "ratio": mine / other}


def _memory(rig: Rig, rounds: int) -> Figures:
    write = rig.writer()
    state = write(rig.text(2048), max_tokens=1)
    forks = write(state.fork(64), max_tokens=32)
    per_token = 8 * 2 * 2 * 64 * 4
    needed = (2048 + 64 * 32) * per_token
    logits = 64 * 32_000 * 4
    held = forks.nbytes - (logits if forks.rows[0][0].logits is not None else 0)
    return {"ours MB": held / 1e6, "prefix once + tails MB": needed / 1e6, "ratio": held / needed}


def _fork(rig: Rig, rounds: int) -> Figures:
    state = rig.writer()(rig.text(2048), max_tokens=1)
    before = rig.model.kv_store.nbytes
    times = [rig.timed(lambda: state.fork(16))[0] for _ in range(max(rounds, 5))]
    return {
        "ours ms": statistics.median(times) * 1e3,
        "ratio": statistics.median(times) * 1e3,
        "new KV bytes": rig.model.kv_store.nbytes - before,
    }


def _samples(rig: Rig, rounds: int) -> Figures:
    from outlines_cont import samplers

    text = rig.text(2048)
    write = rig.writer(sampler=samplers.multinomial(16))
    ours, theirs = [], []
    for number in range(max(rounds // 2, 1)):
        ours.append(rig.timed(partial(write, text, max_tokens=32, rng=number))[0])
        generate = partial(rig.network.generate, rig.ids(text), max_new_tokens=32, do_sample=True, top_k=0)
        theirs.append(rig.timed(partial(generate, num_return_sequences=16))[0])
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"ours s": mine, "theirs s": other, "ratio": other / mine}


def _threshold(rig: Rig, rounds: int) -> Figures:
    from outlines_cont.kv import KVBatch
    from outlines_cont.kv.share import Sharing

    figures = {}
    for rows, length in ((4, 64), (16, 64), (16, 512)):
        first = KVBatch(rig.model, [None])
        ids = rig.model.tokenizer.encode(rig.text(length))
        first.feed([ids], [[length - 1]])
        shares = first.release_all() * rows
        batches = [KVBatch(rig.model, shares, sharing=Sharing(least, least)) for least in (1, 10**9)]
        times: list[list[float]] = [[], []]
        for _ in range(4 * max(rounds, 3)):
            for batch, found in zip(batches, times, strict=True):
                found.append(rig.timed_plain(partial(batch.feed, [[7]] * rows, [[0]] * rows))[0])
        figures[f"{(rows - 1) * length} copies"] = statistics.median(times[0]) / statistics.median(times[1])
    return {"ratio": figures["960 copies"], **figures}


def _long(rig: Rig, rounds: int) -> Figures:
    import torch
    from transformers import DynamicCache

    from outlines_cont.kv import KVBatch, RowKV

    length = 16_384
    pairs = [tuple(torch.randn(2, length, 64, device=rig.device) for _ in range(2)) for _ in range(8)]
    cache = DynamicCache()
    for index, (keys, values) in enumerate(pairs):
        cache.update(keys[None].clone(), values[None].clone(), index)
    batch = KVBatch(rig.model, [RowKV.of_layers(rig.model.kv_store, [(k, v) for k, v in pairs])])
    batch.feed([[7]], [[0]])
    ours, theirs = [], []
    for _ in range(max(rounds, 3) * 4):
        ours.append(rig.timed(lambda: batch.feed([[7]], [[0]]))[0])
        theirs.append(rig.decode_steps(cache, 1, 1))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"ours ms": mine * 1e3, "theirs ms": other * 1e3, "ratio": other / mine}


def _ragged(rig: Rig, rounds: int) -> Figures:
    from outlines_cont import SequenceState

    write = rig.writer()
    states = write([rig.text(560, seed) for seed in range(16)], max_tokens=1)
    cut = SequenceState.stack([states[row, : 520 - 7 * row] for row in range(16)])
    ours, theirs = [], []
    for _ in range(max(rounds // 2, 1)):
        ours.append(rig.timed(lambda: write(cut, max_tokens=1))[0])
        theirs.append(rig.timed(lambda: write(cut.detach_cache(), max_tokens=1))[0])
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"ours ms": mine * 1e3, "theirs ms": other * 1e3, "ratio": other / mine}


def _overhead(rig: Rig, rounds: int) -> Figures:
    write = rig.writer()
    state = write([rig.text(256, seed) for seed in range(16)], max_tokens=1)
    shares = []
    forward, inside = rig.model.forward, [0.0]

    def counted(*arguments: Any) -> Any:
        seconds, result = rig.timed_plain(lambda: forward(*arguments))
        inside[0] += seconds
        return result

    rig.model.forward = counted
    try:
        for _ in range(rounds):
            inside[0] = 0.0
            total = rig.timed(lambda: write(state, max_tokens=32))[0]
            shares.append(total / inside[0] - 1)
    finally:
        del rig.model.forward
    return {"ratio": statistics.median(shares)}


CASES = [
    Case(
        "slice",
        "next token after `state[:k]`, k about 2,048, against prefill from text",
        ">= 20x; <= 1.3 steps",
        _slice,
    ),
    Case(
        "chain", "ten pieces of 8 tokens on a prompt of 1,024, against `generate` with the grown ids", ">= 3x", _chain
    ),
    Case("branches", "16 branches on 2,048 tokens, decoding, against `DynamicCache` with 16 rows", ">= 4x", _branches),
    Case("memory", "64 branches of 32 tokens on 2,048, bytes against prefix once + tails", "<= 1.1", _memory),
    Case("fork", "`state.fork(16)`, ms", "<= 1 ms, no bytes", _fork),
    Case("samples", "16 samples of 32 tokens, prompt of 2,048, against `num_return_sequences=16`", ">= 4x", _samples),
    Case("long", "decode step at 16,384 tokens against `DynamicCache`", ">= 1.15x", _long),
    Case("ragged", "16 rows cut at 16 places, next token, against recomputing", ">= 5x", _ragged),
    Case(
        "threshold",
        "a step with a shared prefix over one with copies, about 1,000 copies of a token saved",
        "about 1",
        _threshold,
    ),
    Case("overhead", "time of the loop outside the forward over that inside, 16 rows", "<= 0.10", _overhead),
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.continuation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side (default: 5)")
    parser.add_argument("--cases", default="", help=f"of {', '.join(case.name for case in CASES)} (default: all)")
    parser.add_argument("--device", default="cpu", help="where the model runs (default: cpu)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="continuation", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _page(report: dict[str, Any], chosen: list[Case]) -> str:
    head = ["what", "aim", "measured", "figures"]
    rows = []
    for case in chosen:
        figures = report["cases"][case.name]
        others = ", ".join(f"{name} {table.number(float(value))}" for name, value in figures.items() if name != "ratio")
        rows.append([case.title, case.aim, table.number(float(figures["ratio"])), others])
    return (
        f"# Continuing states\n\n{machine.sentence(report['machine'])} A Llama of random weights (width 512, 8 layers, 8 query and "
        f"2 key heads, 32,000 tokens, float32) on {report['device']}, one core and one thread, medians of {report['rounds']} "
        "measurements of each side in turn. 'Theirs' is transformers without this package, or the same without the cache.\n\n"
        + table.markdown(head, rows)
    )


if __name__ == "__main__":
    main()
