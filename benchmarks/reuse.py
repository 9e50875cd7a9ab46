"""What is not paid twice, and what is guessed ahead: drafts and the prefix cache, against the same work without them and against peers.

    python -m benchmarks.reuse                   # every case, three rounds; some minutes
    python -m benchmarks.reuse --rounds 1 --cases lookup,second
    python -m benchmarks.reuse --rounds 1 --cases memory

Records: the bundled model, as `benchmarks.generate` measures it, with a fresh process for each engine and round. Both sides of every
other case run in turn in one process. Where something is guessed ahead, the text is compared with the one written without guesses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache, partial
from time import perf_counter
from typing import Any
from unittest import mock

from benchmarks import machine
from benchmarks.comparison import Comparison, Figures, main, ratio
from benchmarks.draft_pair import TEMPERATURE, DraftPair
from benchmarks.generate import all_rounds, held_out_prompts, summary
from benchmarks.rig import Rig, byte_tokenizer
from benchmarks.rounds import Send, in_process

_RECORDS, _BATCH = 16, 8
_PACKAGES = ("outlines-cont", "transformers", "outlines", "outlines-core", "torch")
_DRAFTED_TOKENS = 128
_CACHE_BYTES = 2**30
_REQUESTS, _SECONDS, _SYSTEM, _OWN, _ANSWER = 64, 3.0, 1024, 32, 16
_PROMPTS, _SMALL_CACHE = 10_000, 2**18


# -- drafts ------------------------------------------------------------------------------------------------------------


@cache
def _records(rounds: int) -> dict[str, dict[str, Any]]:
    """What each engine has measured, as the benchmark of extraction does."""
    names = ("drafted", "ours", "transformers", "outlines")
    found = all_rounds(names, held_out_prompts(_RECORDS), rounds, _BATCH, None)
    return {name: summary(messages) for name, messages in found.items()}


def _against(peer: str, mode: str, rig: Rig, rounds: int) -> Figures:
    """Records per second with `draft="lookup"` over those of a peer."""
    found = _records(rounds)
    rates = {name: figures[mode]["records_per_second"] for name, figures in found.items()}
    return {
        "ratio": rates["drafted"] / rates[peer],
        "records/s": rates["drafted"],
        "without a draft": rates["ours"],
        "theirs": rates[peer],
        "valid": found["drafted"][mode]["valid"],
    }


def _forwards(rig: Rig, rounds: int) -> Figures:
    """Calls of the model for each token of a record, one by one."""

    def per_token(name: str) -> float:
        figures = _records(rounds)[name]["one by one"]
        return float(figures["forwards_per_record"] / figures["tokens_per_record"])

    return {"ratio": per_token("drafted"), "without a draft": per_token("ours"), "outlines": per_token("outlines")}


def _model_draft(accepted: float, rig: Rig, rounds: int) -> Figures:
    """One row of 128 tokens with the first two layers as draft, and without."""
    from outlines_cont import continuous, generate, samplers

    pair, prompt = DraftPair(accepted), rig.text(64)
    sampler = samplers.multinomial(temperature=TEMPERATURE)
    plain, drafted = (
        partial(
            continuous(generate.text(pair.target, sampler=sampler, draft=draft)),
            prompt,
            max_tokens=_DRAFTED_TOKENS,
            rng=1,
        )
        for draft in (None, pair.draft)
    )
    with pair.target.meter() as meter:
        assert plain() == drafted(), "a draft has changed the text"
    theirs, ours = _in_turn(rig, plain, drafted, rounds)
    found = {"right": pair.share, "accepted": meter.accepted_tokens, "of proposed": meter.proposed_tokens}
    return ratio(ours, theirs, **found)


# -- the prefix cache --------------------------------------------------------------------------------------------------


def _cached(rig: Rig, max_bytes: int) -> Any:
    """The model of the rig with a prefix cache of its own."""
    from outlines_cont import models

    return models.from_transformers(rig.network, byte_tokenizer(), prefix_cache_bytes=max_bytes)


def _second_call(rig: Rig, rounds: int) -> Figures:
    """A prompt of 2,048 tokens to its first token, twice."""
    from outlines_cont import generate

    write = generate.text(_cached(rig, _CACHE_BYTES))
    write(rig.text(64, 99), max_tokens=1)
    first, second = [], []
    for seed in range(rounds):
        prompt = rig.text(2048, seed)
        first.append(rig.timed(lambda prompt=prompt: write(prompt, max_tokens=1))[0])
        second.append(rig.timed(lambda prompt=prompt: write(prompt, max_tokens=1))[0])
    return ratio(second, first)


def _shared_prompt(rig: Rig, rounds: int) -> Figures:
    """64 requests that begin alike, each with a task of its own; to the last answer."""
    draw = random.Random(7)
    arrivals = [draw.uniform(0, _SECONDS) for _ in range(_REQUESTS)]
    system = rig.text(_SYSTEM)
    prompts = [system + rig.text(_OWN, seed + 1) for seed in range(_REQUESTS)]
    model, plain = _cached(rig, _CACHE_BYTES), rig.model
    ours, theirs, answers = [], [], list[Any]()
    times = (rounds + 2) // 3  # the other side takes most of a minute
    for _ in range(times):
        model.prefix_cache.clear()
        for one, seconds in ((model, ours), (plain, theirs)):
            passed, texts = rig.timed(lambda one=one: asyncio.run(_serve(one, prompts, arrivals)))
            seconds.append(passed)
            answers.append(texts)
    assert all(texts == answers[0] for texts in answers), "the cache has changed a text"
    return ratio(ours, theirs, **{"arrive within s": _SECONDS, "measurements": times})


async def _serve(model: Any, prompts: Sequence[str], arrivals: Sequence[float]) -> list[str]:
    from outlines_cont import generate

    write = generate.text(model)

    async def answer(prompt: str, arrival: float) -> str:
        await asyncio.sleep(arrival)
        text: str = await write.acall(prompt, max_tokens=_ANSWER)
        return text

    return list(await asyncio.gather(*map(answer, prompts, arrivals)))


def _memory(rig: Rig, rounds: int) -> Figures:
    """The most bytes of the cache over what it may have, read after every change, while 10,000 random prompts run."""
    (figures,) = in_process(_measure_memory, _PROMPTS, _SMALL_CACHE)
    if "failed" in figures:
        raise SystemExit(f"memory: {figures['failed']}")
    return figures


def _measure_memory(send: Send, count: int, max_bytes: int) -> None:
    """Run prompts, half of which begin like earlier ones, through a very small model; send the peak."""
    machine.pin()
    import torch
    import transformers

    from outlines_cont import generate, models
    from outlines_cont.kv.prefix_cache import PrefixCache

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).eval()
    model = models.from_transformers(network, byte_tokenizer(), prefix_cache_bytes=max_bytes)
    write, draw, peak, keep = generate.text(model), random.Random(3), 0, PrefixCache.keep
    prompts = _random_prompts(draw, count)

    def kept(cache: PrefixCache, *arguments: Any) -> None:
        nonlocal peak
        keep(cache, *arguments)
        peak = max(peak, cache.nbytes)

    started = perf_counter()
    with mock.patch.object(PrefixCache, "keep", kept):
        for first in range(0, count, 32):
            write(prompts[first : first + 32], max_tokens=2)
    cache = model.prefix_cache
    send(
        {
            "ratio": peak / max_bytes,
            "KB": peak / 1e3,
            "KB allowed": max_bytes / 1e3,
            "hits": float(cache.hits),
            "entries at the end": float(cache.entries),
            "s": perf_counter() - started,
        }
    )


def _random_prompts(draw: random.Random, count: int) -> list[str]:
    prompts: list[str] = []
    for _ in range(count):
        start = draw.choice(prompts[-20:])[: draw.randint(1, 160)] if prompts and draw.random() < 0.5 else ""
        prompts.append(start + "".join(draw.choices("abcdefgh ", k=draw.randint(1, 100))))
    return [prompt[:240] for prompt in prompts]


# -- all of it ---------------------------------------------------------------------------------------------------------


def _in_turn(rig: Rig, first: Any, second: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of both, taken in turn."""
    pairs = [(rig.timed(first)[0], rig.timed(second)[0]) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


CASES = [
    Comparison(
        "lookup",
        'records with `draft="lookup"`, one by one, times outlines',
        "2",
        partial(_against, "outlines", "one by one"),
    ),
    Comparison("batches", f"the same in batches of {_BATCH}", "1.6", partial(_against, "outlines", "in batches")),
    Comparison("forwards", "forwards per token of a record, one by one", "at most 0.45", _forwards),
    Comparison(
        "free",
        "the same records, times unconstrained `generate`",
        "1.5",
        partial(_against, "transformers", "one by one"),
    ),
    *(
        Comparison(
            f"share{round(share * 100)}",
            f"a smaller model as draft, of whose guesses a share of {share} is accepted, times no draft",
            aim,
            partial(_model_draft, share),
        )
        for share, aim in ((0.0, "0.95"), (0.5, "0.95"), (0.9, "1.8"))
    ),
    Comparison("second", "the second call with 2,048 tokens, to its first token, times the first", "20", _second_call),
    Comparison(
        "shared",
        f"{_REQUESTS} requests that share {_SYSTEM:,} tokens, times the same without the cache",
        "3",
        _shared_prompt,
    ),
    Comparison("memory", f"bytes of the cache over those allowed, {_PROMPTS:,} random prompts", "at most 1", _memory),
]
_NOTE = (
    f"Records: the bundled model (float32), {_RECORDS} held-out messages, greedy, a fresh process for each engine and round. A smaller "
    f"model as draft: a target with 512 tokens in place of 32,000, and its first two layers, at temperature {TEMPERATURE}; what the other "
    "layers add is scaled so that of guesses of four tokens the share that is said is accepted. Memory: a very small model."
)

if __name__ == "__main__":
    main("reuse", "Reuse and drafts", (__doc__ or "").split("\n")[0], CASES, note=_NOTE, packages=_PACKAGES, rounds=3)
