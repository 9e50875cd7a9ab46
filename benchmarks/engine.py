"""The engine: many rows at once, against what transformers does with the same settings.

    python -m benchmarks.engine              # every case, five rounds; some ten minutes
    python -m benchmarks.engine --rounds 1 --cases greedy,queue

The model and the way of measuring are those of `benchmarks.continuation`.
"""

from __future__ import annotations

import statistics
from functools import partial
from time import perf_counter, sleep
from typing import Any
from unittest import mock

from benchmarks.comparison import Comparison, Figures, main, ratio
from benchmarks.requests import Served, load, serve_continuously, serve_in_batches, serve_ours
from benchmarks.rig import Rig

_ROWS = 16
_TOKENS = 64
_REQUESTS, _SECONDS = 64, 8.0
_SLOW = 0.02


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
    return ratio(ours, theirs)


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
                logits = rig.plain(chunk, cache, logits_to_keep=1).logits
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
    return ratio(ours, theirs, **{"ours MB": held / 1e6, "theirs MB": apart / 1e6, "bytes ratio": apart / held})


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
    return ratio(ours, theirs)


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


def _requests(rig: Rig, rounds: int) -> Figures:
    """64 requests with schemas, against fixed batches with xgrammar."""
    waiting = load(rig, _REQUESTS, _SECONDS)
    ours, theirs = [], []
    for _ in range(rounds):
        rig.ending_model.memo.pop("constraints", None)  # as theirs, every schema is compiled again
        ours.append(serve_ours(rig, waiting, constrained=True))
        theirs.append(serve_in_batches(rig, waiting))
    return _rates(ours, theirs)


def _continuous(rig: Rig, rounds: int) -> Figures:
    """64 requests without a constraint, against continuous batching."""
    waiting = load(rig, _REQUESTS, _SECONDS)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(serve_ours(rig, waiting, constrained=False))
        theirs.append(serve_continuously(rig, waiting))
    return _rates(ours, theirs)


def _rates(ours: list[Served], theirs: list[Served]) -> Figures:
    own, other = (statistics.median(served.rate for served in side) for side in (ours, theirs))
    tokens = {"our tokens": float(ours[0].tokens), "their tokens": float(theirs[0].tokens)}
    return {"ratio": own / other, "ours tokens/s": own, "theirs tokens/s": other, **tokens}


def _beside(rig: Rig, rounds: int) -> Figures:
    """A mask that takes 20 ms at every step, beside a forward that takes 20 ms."""
    import fsm
    from outlines_cont import continuous, generate, models
    from outlines_cont.policies import Constraint

    model, expression, steps = models.tiny(), fsm.regex("[a-z]{40}"), 40
    write = continuous(generate.fsm(model, expression))
    token_fsm = Constraint.of_model(model, expression).token_fsm
    slow = {"bitmask": partial(_lasting, token_fsm.bitmask), "is_late": lambda state: True}
    slow_forward = partial(_lasting, model.forward)
    seconds = []
    for _ in range(rounds):
        with mock.patch.multiple(token_fsm, **slow), mock.patch.object(model, "forward", slow_forward):
            took, state = rig.timed(lambda: write("a"))
        seconds.append(took / int(state.cached[0, 0]))
    return {"ratio": statistics.median(seconds) * 1e3, "steps": float(steps)}


def _lasting(work: Any, *arguments: Any) -> Any:
    """Do the work, and let it take 20 ms."""
    start = perf_counter()
    result = work(*arguments)
    sleep(max(_SLOW - (perf_counter() - start), 0))
    return result


CASES = [
    Comparison("top_p", "16 rows, top-p sampling, against `generate`", ">= 1.6x", _top_p),
    Comparison("greedy", "16 rows, greedy: our step over the bare forward", "<= 1.10x", _greedy),
    Comparison("tree", "16 leaves on 2,048 tokens, against 16 generations", ">= 8x", _tree),
    Comparison(
        "conversations", "32 conversations on 1,024 shared tokens, against a batch of 32", ">= 3x", _conversations
    ),
    Comparison(
        "requests",
        "64 requests at random, JSON schema on each: tokens/s against `generate` by 16 with xgrammar",
        ">= 1.5x",
        _requests,
    ),
    Comparison(
        "continuous", "64 requests at random, free text: tokens/s against continuous batching", ">= 1.3x", _continuous
    ),
    Comparison("beside", "a step with a mask of 20 ms and a forward of 20 ms, in ms", "< 25", _beside),
    Comparison("queue", "1,000 rows queued: Python per row and step, in us", "<= 60", _queue),
]


if __name__ == "__main__":
    main("engine", "The engine", (__doc__ or "").split("\n")[0], CASES)
