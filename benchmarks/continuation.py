"""Continuing a state: slices, chains, forks and ragged batches against what transformers does without them.

    python -m benchmarks.continuation              # every case, five rounds; some minutes
    python -m benchmarks.continuation --rounds 1 --cases fork,slice

A Llama of random weights (width 512, 8 layers, 8 query and 2 key heads, 32,000 tokens, float32), one thread of one core, on a
GPU where `--device cuda` says so. Every case measures both sides in turn, round after round, in one process; the figures are
medians, and the ratios are of the medians.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks.comparison import Comparison, Figures, main
from benchmarks.rig import Rig


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
    config, itemsize = rig.network.config, rig.network.dtype.itemsize
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize
    needed = (2048 + 64 * 32) * per_token
    logits = 64 * config.vocab_size * itemsize
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
    from outlines_cont.kv.batch import KVBatch
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

    from outlines_cont.kv.batch import KVBatch
    from outlines_cont.kv.row import RowKV

    length = 16_384
    config = rig.network.config
    shape = (config.num_key_value_heads, length, config.head_dim)
    pairs = [
        tuple(torch.randn(shape, device=rig.device, dtype=rig.network.dtype) for _ in range(2))
        for _ in range(config.num_hidden_layers)
    ]
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
    Comparison(
        "slice",
        "next token after `state[:k]`, k about 2,048, against prefill from text",
        ">= 20x; <= 1.3 steps",
        _slice,
    ),
    Comparison(
        "chain", "ten pieces of 8 tokens on a prompt of 1,024, against `generate` with the grown ids", ">= 3x", _chain
    ),
    Comparison(
        "branches", "16 branches on 2,048 tokens, decoding, against `DynamicCache` with 16 rows", ">= 4x", _branches
    ),
    Comparison("memory", "64 branches of 32 tokens on 2,048, bytes against prefix once + tails", "<= 1.1", _memory),
    Comparison("fork", "`state.fork(16)`, ms", "<= 1 ms, no bytes", _fork),
    Comparison(
        "samples", "16 samples of 32 tokens, prompt of 2,048, against `num_return_sequences=16`", ">= 4x", _samples
    ),
    Comparison("long", "decode step at 16,384 tokens against `DynamicCache`", ">= 1.15x", _long),
    Comparison("ragged", "16 rows cut at 16 places, next token, against recomputing", ">= 5x", _ragged),
    Comparison(
        "threshold",
        "a step with a shared prefix over one with copies, about 1,000 copies of a token saved",
        "about 1",
        _threshold,
    ),
    Comparison("overhead", "time of the loop outside the forward over that inside, 16 rows", "<= 0.10", _overhead),
]


if __name__ == "__main__":
    main("continuation", "Continuing states", (__doc__ or "").split("\n")[0], CASES)
