"""What a step takes on a GPU, beside transformers, in one command of eight minutes for two models.

    python -m benchmarks.gpu                          # a small model in float32, then seven billion parameters in bfloat16
    python -m benchmarks.gpu --device cpu --small     # every case once, in seconds, to see that it runs

Each round takes every case, ours and the other sides in turn, with prompts of a length that no round before has had: kernels that are
planned by shape are planned anew, as in use. The first round is thrown away. *DynamicCache* and *StaticCache* are bare loops of forwards,
*generate* is that of transformers; each is measured without and with attention by cuDNN, which PyTorch prefers on an H100. Figures are
medians of milliseconds, and *busy* is the part of our time in which the device computes, by PyTorch's profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import describe, sentence
from benchmarks.rig import SHAPES, Rig
from benchmarks.table import markdown

Side = Callable[[int], float]
"""The seconds of one unit of the work of a case (a step, a call), in a round."""


@dataclass(frozen=True)
class Sizes:
    """How long prompts are, and how many tokens follow them."""

    prompt: int = 2048
    long: int = 16_384
    ragged: int = 560
    cut: int = 7
    rows: int = 16
    json_rows: int = 64
    steps: int = 24
    pieces: int = 10


SMALL = Sizes(prompt=48, long=96, ragged=40, cut=1, rows=3, json_rows=4, steps=4, pieces=2)


class Bench:
    """A model, and the sides of transformers."""

    def __init__(self, rig: Rig, sizes: Sizes) -> None:
        self.rig, self.sizes = rig, sizes

    def ours(self, prepare: Callable[[int], Callable[[], Any]], units: int = 1, *, counts_tokens: bool = False) -> Side:
        """Our side: `prepare` returns what is measured; with `counts_tokens` a unit is a token of a row."""

        def side(number: int) -> float:
            seconds, state = self.rig.timed(prepare(number))
            return seconds / (_written(state) if counts_tokens else units)

        return side

    def steps(self, texts: Callable[[int], list[str]], **given: Any) -> dict[str, Side]:
        """Decode steps of transformers on texts of one length."""
        return self._both(
            {"DynamicCache": partial(self._dynamic, texts), "StaticCache": partial(self._static, texts)}
        ) | (self.generate(texts, **given))

    def generate(self, texts: Callable[[int], list[str]], units: int | None = None, **given: Any) -> dict[str, Side]:
        """`generate` on texts of one length, the prompts included in its time."""
        return self._both({"generate": partial(self._generate, texts, units or self.sizes.steps, given)})

    def prefill(self, texts: Callable[[int], list[str]]) -> dict[str, Side]:
        """A forward of texts of one length."""
        return self._both({"prefill": lambda number: self.rig.timed(lambda: self._prefilled(texts(number)))[0]})

    def _both(self, sides: Mapping[str, Side]) -> dict[str, Side]:
        if self.rig.device == "cpu":
            return dict(sides)
        return {
            f"{name}, cuDNN {word}": _with_cudnn(is_on, side)
            for name, side in sides.items()
            for is_on, word in ((False, "off"), (True, "on"))
        }

    def _ids(self, texts: list[str]) -> Any:
        import torch

        return torch.cat([self.rig.ids(text) for text in texts])

    def forward(self, ids: list[list[int]], cache: Any) -> None:
        """Feed (R, Q) ids on top of a cache of transformers."""
        import torch

        with torch.inference_mode():
            self.rig.plain(torch.tensor(ids, device=self.rig.device), cache)

    def _prefilled(self, texts: list[str], cache: Any = None) -> Any:
        import torch
        from transformers import DynamicCache

        cache = DynamicCache() if cache is None else cache
        with torch.inference_mode():
            self.rig.plain(self._ids(texts), cache, logits_to_keep=1)
        return cache

    def _decoded(self, cache: Any, rows: int) -> float:
        """Return the seconds of a step that takes the most probable token, and reads it, as a loop does that may end."""
        import torch

        steps = self.sizes.steps

        def decode() -> None:
            ids = torch.full((rows, 1), 7, device=self.rig.device)
            with torch.inference_mode():
                for _ in range(steps):
                    logits = self.rig.plain(ids, cache).logits
                    ids = logits[:, -1].argmax(-1, keepdim=True)
                    ids.tolist()

        return self.rig.timed(decode)[0] / steps

    def _dynamic(self, texts: Callable[[int], list[str]], number: int) -> float:
        found = texts(number)
        if len(set(found)) > 1:
            return self._decoded(self._prefilled(found), len(found))
        cache = self._prefilled(found[:1])
        cache.batch_repeat_interleave(len(found))
        return self._decoded(cache, len(found))

    def _static(self, texts: Callable[[int], list[str]], number: int) -> float:
        from transformers import StaticCache

        found = texts(number)
        cache = StaticCache(config=self.rig.network.config, max_cache_len=len(found[0]) + self.sizes.steps + 1)
        return self._decoded(self._prefilled(found, cache), len(found))

    def _generate(self, texts: Callable[[int], list[str]], tokens: int, given: Mapping[str, Any], number: int) -> float:
        ids = self._ids(texts(number))
        work = partial(
            self.rig.network.generate,
            ids,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            **{"do_sample": False, **given},
        )
        return self.rig.timed(work)[0] / tokens


def _with_cudnn(is_on: bool, side: Side) -> Side:
    def measured(number: int) -> float:
        with _cudnn(is_on):
            return side(number)

    return measured


@contextmanager
def _cudnn(is_on: bool) -> Iterator[None]:
    import torch

    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(is_on)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _written(state: Any) -> int:
    """Return the most tokens that a row of a state has after its prompt."""
    counts: list[int] = [len(row.token_ids) - row.prompt_length for rows in state.rows for row in rows]
    return max(1, *counts)


# -- the cases ---------------------------------------------------------------------------------------------------------


def _texts(bench: Bench, rows: int, length: int, *, is_same: bool = False) -> Callable[[int], list[str]]:
    return lambda number: [bench.rig.text(length + number, 0 if is_same else row) for row in range(rows)]


def _text(bench: Bench, rows: int) -> dict[str, Side]:
    write, texts = bench.rig.writer(), _texts(bench, rows, 32)

    def prepare(number: int) -> Callable[[], Any]:
        state = write(texts(number), max_tokens=1)
        return lambda: write(state, max_tokens=bench.sizes.steps)

    return {"ours": bench.ours(prepare, bench.sizes.steps), **bench.steps(texts)}


def _top_p(bench: Bench) -> dict[str, Side]:
    from outlines_cont import samplers

    write, texts = (
        bench.rig.writer(sampler=samplers.multinomial(top_p=0.9, temperature=0.8)),
        _texts(bench, bench.sizes.rows, 32),
    )
    own = bench.ours(
        lambda number: lambda: write(texts(number), max_tokens=bench.sizes.steps, rng=number), bench.sizes.steps
    )
    return {"ours": own, **bench.generate(texts, do_sample=True, top_p=0.9, temperature=0.8, top_k=0)}


def _slice(bench: Bench) -> dict[str, Side]:
    write, texts = bench.rig.writer(), _texts(bench, 1, bench.sizes.prompt)
    state = write(bench.rig.text(bench.sizes.prompt + 32), max_tokens=1)
    own = bench.ours(lambda number: lambda: write(state[: bench.sizes.prompt - number], max_tokens=1))
    return {"ours": own, **bench.prefill(texts)}


def _fork(bench: Bench) -> dict[str, Side]:
    write, rows = bench.rig.writer(), bench.sizes.rows
    texts = _texts(bench, 1, bench.sizes.prompt)

    def prepare(number: int) -> Callable[[], Any]:
        state = write(texts(number), max_tokens=1)
        return lambda: write(state.fork(rows), max_tokens=1)

    def copied(number: int) -> float:
        cache = bench._prefilled(texts(number))

        def stepped() -> None:
            cache.batch_repeat_interleave(rows)
            bench.forward([[7]] * rows, cache)

        return bench.rig.timed(stepped)[0]

    return {"ours": bench.ours(prepare), **bench._both({"DynamicCache": copied})}


def _branches(bench: Bench) -> dict[str, Side]:
    write, rows = bench.rig.writer(), bench.sizes.rows

    def prepare(number: int) -> Callable[[], Any]:
        forks = write(bench.rig.text(bench.sizes.prompt + number), max_tokens=1).fork(rows)
        return lambda: write(forks, max_tokens=bench.sizes.steps)

    texts = _texts(bench, rows, bench.sizes.prompt, is_same=True)
    return {
        "ours": bench.ours(prepare, bench.sizes.steps),
        **bench._both({"DynamicCache": partial(bench._dynamic, texts)}),
    }


def _long(bench: Bench) -> dict[str, Side]:
    write, texts = bench.rig.writer(), _texts(bench, 1, bench.sizes.long)

    def prepare(number: int) -> Callable[[], Any]:
        state = write(texts(number), max_tokens=1)
        return lambda: write(state, max_tokens=bench.sizes.steps)

    others = bench._both({"DynamicCache": partial(bench._dynamic, texts), "StaticCache": partial(bench._static, texts)})
    return {"ours": bench.ours(prepare, bench.sizes.steps), **others}


def _ragged(bench: Bench) -> dict[str, Side]:
    from outlines_cont import SequenceState

    write, sizes = bench.rig.writer(), bench.sizes
    states = write(_texts(bench, sizes.rows, sizes.ragged)(0), max_tokens=1)

    def cut(number: int) -> Any:
        stop = sizes.ragged - 8 - number
        return SequenceState.stack([states[row, : stop - sizes.cut * row] for row in range(sizes.rows)])

    def prepare(number: int, *, keeps: bool = True) -> Callable[[], Any]:
        state = cut(number) if keeps else cut(number).detach_cache()
        return lambda: write(state, max_tokens=1)

    return {"ours": bench.ours(prepare), "recomputed": bench.ours(partial(prepare, keeps=False))}


def _chain(bench: Bench) -> dict[str, Side]:
    import torch

    write, pieces, rig = bench.rig.writer(), bench.sizes.pieces, bench.rig
    texts = _texts(bench, 1, bench.sizes.prompt // 2)

    def ours(number: int) -> Callable[[], Any]:
        def chained() -> Any:
            state: Any = texts(number)[0]
            for piece in range(pieces):
                state = write(state + f" {piece}:", max_tokens=8)
            return state

        return chained

    def grown(number: int) -> float:
        def chained() -> Any:
            ids = rig.ids(texts(number)[0])
            for piece in range(pieces):
                ids = torch.cat([ids, rig.ids(f" {piece}:")], dim=1)
                ids = rig.network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
            return ids

        return rig.timed(chained)[0]

    return {"ours": bench.ours(ours), **bench._both({"generate": grown})}


_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 3, "maxLength": 9} for name in ("name", "city")},
    "required": ["name", "city"],
    "additionalProperties": False,
}


def _json(bench: Bench, rows: int) -> dict[str, Side]:
    from outlines_cont import continuous, generate

    write, texts = continuous(generate.json(bench.rig.ending_model, _SCHEMA)), _texts(bench, rows, 32)
    own = bench.ours(lambda number: lambda: write(texts(number), max_tokens=64), counts_tokens=True)
    return {"ours": own, **bench.generate(texts)}


def _lookup(bench: Bench) -> dict[str, Side]:
    steps, text, length = bench.sizes.steps, "the cat sat on the mat. " * 100, bench.sizes.prompt // 4

    def texts(number: int) -> list[str]:
        return [text[: length + number]]

    def side(**options: Any) -> Side:
        write = bench.rig.writer(**options)
        return bench.ours(lambda number: lambda: write(texts(number), max_tokens=steps), steps)

    return {
        "ours": side(draft="lookup"),
        "ours, without drafts": side(),
        **bench.generate(texts, prompt_lookup_num_tokens=10),
    }


def _second(bench: Bench) -> dict[str, Side]:
    write, texts = bench.rig.writer(), _texts(bench, bench.sizes.rows, 64)

    def side() -> Side:
        return bench.ours(lambda number: lambda: write(texts(number), max_tokens=bench.sizes.steps))

    return {"ours": side(), "ours, again": side()}


CASES: Mapping[str, tuple[str, Callable[[Bench], dict[str, Side]]]] = {
    "text": ("a step, one row", lambda bench: _text(bench, 1)),
    "rows": ("a step, 16 rows", lambda bench: _text(bench, bench.sizes.rows)),
    "slice": ("next token after `state[:k]`, k about 2,048", _slice),
    "fork": ("`state.fork(16)` and its next token", _fork),
    "branches": ("a step of 16 branches on 2,048 tokens", _branches),
    "long": ("a step at 16,384 tokens", _long),
    "ragged": ("next token of 16 rows cut at 16 places", _ragged),
    "chain": ("ten pieces of 8 tokens on a prompt of 1,024", _chain),
    "json": ("a token of JSON, one row", lambda bench: _json(bench, 1)),
    "json_rows": ("a token of JSON, 64 rows", lambda bench: _json(bench, bench.sizes.json_rows)),
    "top_p": ("a token, 16 rows, top-p", _top_p),
    "lookup": ("a token with drafts from the prompt", _lookup),
    "second": ("a call, and the same call again", _second),
}


def measure(bench: Bench, names: list[str], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each side of each case, one for each round after the first that was complete in time."""
    deadline = perf_counter() + seconds
    sides = {name: CASES[name][1](bench) for name in names}
    found: dict[str, dict[str, list[float]]] = {name: {side: [] for side in sides[name]} for name in names}
    for number in range(rounds + 1):
        for name, of_case in sides.items():
            for label, side in of_case.items():
                if number > 1 and perf_counter() > deadline:
                    return found
                taken = side(number)
                if number:
                    found[name][label].append(taken)
    return found


def busy(bench: Bench) -> float | None:
    """Return the part of our time of a step in which the device computes; None on a CPU."""
    import torch

    if bench.rig.device == "cpu":
        return None
    write = bench.rig.writer()
    state = write(bench.rig.text(48), max_tokens=1)
    write(state, max_tokens=bench.sizes.steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        seconds = bench.rig.timed(lambda: write(state, max_tokens=bench.sizes.steps))[0]
    return float(sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / seconds)


def table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return the medians, and how many times our time the others take."""
    lines = []
    for name, sides in found.items():
        own = statistics.median(sides["ours"])
        for label, times in sides.items():
            middle = statistics.median(times) if times else None
            what = CASES[name][0] if label == "ours" else ""
            lines.append((what, label, middle and middle * 1e3, middle and min(times) * 1e3, middle and middle / own))
    return markdown(("what", "side", "ms", "least ms", "to ours"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=SHAPES, action="append", help="one model; `small`, then `8b`, without it")
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=480.0, help="for all models together")
    parser.add_argument("--small", action="store_true", help="a tiny model and short texts, one round")
    parser.add_argument("--json", type=Path, help="write all times to a file")
    options = parser.parse_args()
    names = options.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(CASES)}")
    shapes = ["tiny"] if options.small else options.model or ["small", "8b"]
    report: dict[str, Any] = {"machine": describe(["torch", "transformers"]), "device": _device_name(options.device)}
    print(f"{sentence(report['machine'])} {report['device']}.")
    for shape in shapes:
        bench = Bench(Rig(options.device, shape), SMALL if options.small else Sizes())
        found = measure(bench, names, 1 if options.small else options.rounds, options.seconds / len(shapes))
        part = busy(bench)
        report[shape] = {"seconds": found, "busy": part, "fused": bool(bench.rig.model.capabilities.fused)}
        print(
            f"\n{SHAPES[shape]}; our own forward: {bool(bench.rig.model.capabilities.fused)}; busy: {part}\n\n{table(found)}"
        )
        del bench
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device != "cpu" else "CPU"


if __name__ == "__main__":
    main()
