"""What a step takes on a GPU, beside transformers, in one command of eight minutes for two models.

    python -m benchmarks.gpu                          # a small model in float32, then seven billion parameters in bfloat16
    python -m benchmarks.gpu --device cpu --small     # every case once, in seconds, to see that it runs

Each round of a case takes ours and the other sides in turn, with prompts of a length that no round before has had: kernels that are
planned by shape are planned anew, as in use. The first round is thrown away. *DynamicCache* and *StaticCache* are bare loops of forwards,
*generate* is that of transformers; each is measured without and with attention by cuDNN, which PyTorch prefers on an H100. *Forward* is
our forward alone at a fixed length, *graph* the same captured in a CUDA graph, which one launch replays: what a step could take. *Floor*
is the time in which the device reads the weights and the keys and values of a step, at the rate at which it copies memory.

Figures are medians of milliseconds, and *busy* is the part of our time in which the device computes, by PyTorch's profiler. A case is
printed, and saved with `--json`, when it ends, so that nothing is lost with what fails later: a case that raises an error, needs more
memory than is free, or for which no time is left, has a line that says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import describe, sentence
from benchmarks.rig import SHAPES, Rig
from benchmarks.table import markdown

Side = Callable[[int], float]
"""The seconds of one unit of the work of a case (a step, a call), in a round."""
_COPIED_BYTES = {"cpu": 2**26, "cuda": 2**30}
_MEMORY_FACTOR = 3
"""How many times the keys and values of a case its sides may take: a cache that grows by copies is there twice, beside ours."""


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
    """A model, and the sides of transformers.

    Attributes:
        weight_bytes: of the weights that a step reads: all but the embeddings of tokens, unless they are those of the output, too.
        token_bytes: of the keys and values of a token.
        copy_rate: bytes per second that the device reads and writes when it copies.
    """

    def __init__(self, rig: Rig, sizes: Sizes) -> None:
        self.rig, self.sizes = rig, sizes
        embedding, output = rig.network.get_input_embeddings().weight, rig.network.get_output_embeddings().weight
        self.weight_bytes = sum(weight.nbytes for weight in rig.network.parameters())
        self.weight_bytes -= 0 if embedding is output else embedding.nbytes
        config = rig.network.config
        self.token_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * output.itemsize
        self.copy_rate = _copy_rate(rig)

    def floor(self, tokens: int) -> float:
        """The seconds in which the device reads the weights, and the keys and values of so many tokens."""
        return (self.weight_bytes + tokens * self.token_bytes) / self.copy_rate

    def alone(self, rows: int, length: int, *, is_shared: bool = False) -> dict[str, Side]:
        """Our forward alone, on rows of a length, which `is_shared` reads in one place, and the same as a graph."""
        sides: dict[str, Side] = {"forward": lambda number: self._forward(rows, length + number, is_shared)}
        if self.rig.device != "cpu":
            sides["graph"] = lambda number: self._forward(rows, length + number, is_shared, as_graph=True)
        return sides

    def _forward(self, rows: int, length: int, is_shared: bool, *, as_graph: bool = False) -> float:
        """Return the seconds of a step of which each writes the same column."""
        import torch

        from outlines_cont.kv.batch import KVBatch

        model, steps = self.rig.model, self.sizes.steps
        assert model.capabilities.fused, model.capabilities.fused
        count = 1 if is_shared else rows
        with torch.inference_mode():
            batch = KVBatch(model, [None] * count)
            for start in range(0, length, 512):
                batch.feed([[7] * min(512, length - start)] * count, [[0]] * count)
            if is_shared:
                batch.keep([0] * rows)
            batch.feed_next([7] * rows)
            ids, tails = torch.full((rows, 1), 7, device=self.rig.device), batch._cache.tails
            positions = torch.full((rows, 1), length + 1, device=self.rig.device)

            def step() -> Any:
                logits = model._fused_forward(ids, None, positions, batch._cache, [0])
                assert tails.were_read()
                return logits

            run = _captured(step) if as_graph else step
            run()
            return self.rig.timed(lambda: [run() for _ in range(steps)])[0] / steps

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


def _captured(step: Callable[[], Any]) -> Callable[[], None]:
    """Return the replay of a step as a CUDA graph, which is checked against the step."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            wanted = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2 * float(wanted.std()))
    return graph.replay


def _copy_rate(rig: Rig) -> float:
    """Return the bytes per second that a device reads and writes when it copies: the best of five."""
    import torch

    source = torch.zeros(_COPIED_BYTES[torch.device(rig.device).type], dtype=torch.uint8, device=rig.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(rig.timed(lambda: target.copy_(source))[0] for _ in range(6))


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

    return {"ours": bench.ours(prepare, bench.sizes.steps), **bench.alone(rows, 32), **bench.steps(texts)}


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
        **bench.alone(rows, bench.sizes.prompt, is_shared=True),
        **bench._both({"DynamicCache": partial(bench._dynamic, texts)}),
    }


def _long(bench: Bench) -> dict[str, Side]:
    write, texts = bench.rig.writer(), _texts(bench, 1, bench.sizes.long)

    def prepare(number: int) -> Callable[[], Any]:
        state = write(texts(number), max_tokens=1)
        return lambda: write(state, max_tokens=bench.sizes.steps)

    others = bench._both({"DynamicCache": partial(bench._dynamic, texts), "StaticCache": partial(bench._static, texts)})
    return {"ours": bench.ours(prepare, bench.sizes.steps), **bench.alone(1, bench.sizes.long), **others}


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


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        what: a description of the unit that is measured.
        prepare: returns the sides of a model, ours first.
        tokens: of sizes, the tokens whose keys and values the largest side has.
        read: of sizes, those that a step reads, each once; None where a unit is not one step.
    """

    what: str
    prepare: Callable[[Bench], dict[str, Side]]
    tokens: Callable[[Sizes], int]
    read: Callable[[Sizes], int] | None = None


def _rows_of(sizes: Sizes, length: int) -> int:
    return sizes.rows * (length + sizes.steps)


CASES: Mapping[str, Case] = {
    "text": Case("a step, one row", lambda bench: _text(bench, 1), lambda sizes: 32 + sizes.steps, lambda sizes: 32),
    "rows": Case(
        "a step, 16 rows",
        lambda bench: _text(bench, bench.sizes.rows),
        lambda sizes: _rows_of(sizes, 32),
        lambda sizes: 32 * sizes.rows,
    ),
    "slice": Case(
        "next token after `state[:k]`, k about 2,048", _slice, lambda sizes: sizes.prompt, lambda sizes: sizes.prompt
    ),
    "fork": Case("`state.fork(16)` and its next token", _fork, lambda sizes: _rows_of(sizes, sizes.prompt)),
    "branches": Case(
        "a step of 16 branches on 2,048 tokens",
        _branches,
        lambda sizes: _rows_of(sizes, sizes.prompt),
        lambda sizes: sizes.prompt,
    ),
    "long": Case("a step at 16,384 tokens", _long, lambda sizes: sizes.long + sizes.steps, lambda sizes: sizes.long),
    "ragged": Case(
        "next token of 16 rows cut at 16 places",
        _ragged,
        lambda sizes: 2 * _rows_of(sizes, sizes.ragged),
        lambda sizes: sum(sizes.ragged - sizes.cut * row for row in range(sizes.rows)),
    ),
    "chain": Case("ten pieces of 8 tokens on a prompt of 1,024", _chain, lambda sizes: sizes.prompt),
    "json": Case("a token of JSON, one row", lambda bench: _json(bench, 1), lambda sizes: 128),
    "json_rows": Case(
        "a token of JSON, 64 rows",
        lambda bench: _json(bench, bench.sizes.json_rows),
        lambda sizes: 128 * sizes.json_rows,
    ),
    "top_p": Case("a token, 16 rows, top-p", _top_p, lambda sizes: _rows_of(sizes, 32), lambda sizes: 32 * sizes.rows),
    "lookup": Case("a token with drafts from the prompt", _lookup, lambda sizes: sizes.prompt),
    "second": Case("a call, and the same call again", _second, lambda sizes: _rows_of(sizes, 64)),
}


@dataclass
class Measured:
    """What was found of a case.

    Attributes:
        seconds: of each side, one for each round after the first; empty where there was no time for any.
        floor: the seconds of reading memory, None if a unit is not one step.
        peak_bytes: the most memory that was allocated; None on a CPU.
        failure: why there is nothing, or not all; None for no reason.
    """

    seconds: dict[str, list[float]]
    floor: float | None = None
    peak_bytes: int | None = None
    failure: str | None = None


def measure(bench: Bench, name: str, rounds: int, deadline: float) -> Measured:
    """Measure one case in rounds, until a time of `perf_counter` at which no side is begun any more."""
    import torch

    case, is_on_gpu = CASES[name], bench.rig.device != "cpu"
    found = Measured({}, None if case.read is None else bench.floor(case.read(bench.sizes)))
    if is_on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        needed, free = _MEMORY_FACTOR * case.tokens(bench.sizes) * bench.token_bytes, torch.cuda.mem_get_info()[0]
        if needed > free:
            found.failure = f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
            return found
    try:
        _measure(found, case.prepare(bench) if perf_counter() < deadline else {}, rounds, deadline)
    except Exception as error:  # the other cases are measured all the same
        found.failure = f"{type(error).__name__}: {error}".splitlines()[0]
    found.peak_bytes = int(torch.cuda.max_memory_allocated()) if is_on_gpu else None
    return found


def _measure(found: Measured, sides: Mapping[str, Side], rounds: int, deadline: float) -> None:
    found.seconds.update({label: [] for label in sides})
    for number in range(rounds + 1):
        for label, side in sides.items():
            if perf_counter() > deadline:
                found.failure = f"no time after {number} of {rounds + 1} rounds"
                return
            taken = side(number)
            if number:
                found.seconds[label].append(taken)
    if not sides:
        found.failure = "no time"


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


_COLUMNS = ("what", "side", "ms", "least ms", "to ours", "to the floor")


def lines(name: str, found: Measured) -> list[tuple[Any, ...]]:
    """Return the lines of a case: medians, and how many times our time, and the floor, the sides take."""
    own = found.seconds.get("ours")
    middle_of_own = statistics.median(own) if own else None
    out: list[tuple[Any, ...]] = []
    for label, times in found.seconds.items():
        if not times:
            continue
        middle, floor = statistics.median(times), found.floor
        ratios = middle_of_own and middle / middle_of_own, floor and middle / floor
        out.append((CASES[name].what if not out else "", label, middle * 1e3, min(times) * 1e3, *ratios))
    if found.floor is not None:
        out.append(("", "floor", found.floor * 1e3, None, None, None))
    if found.failure is not None:
        out.append((CASES[name].what if not out else "", found.failure, None, None, None, None))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=SHAPES, action="append", help="one model; `small`, then `8b`, without it")
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=480.0, help="for all models together")
    parser.add_argument("--small", action="store_true", help="a tiny model and short texts, one round")
    parser.add_argument("--json", type=Path, help="write all times to a file, again after each case")
    options = parser.parse_args()
    names = options.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(CASES)}")
    shapes = ["tiny"] if options.small else options.model or ["small", "8b"]
    report: dict[str, Any] = {"machine": describe(["torch", "transformers"]), "device": _device_name(options.device)}
    _say(f"{sentence(report['machine'])} {report['device']}.")
    stop = perf_counter() + options.seconds
    for index, shape in enumerate(shapes):
        bench = Bench(Rig(options.device, shape), SMALL if options.small else Sizes())
        fused = bench.rig.model.capabilities.fused
        report[shape] = {"fused": bool(fused), "why": fused.why, "copy_rate": bench.copy_rate, "cases": {}}
        _say(f"\n{SHAPES[shape]}; our own forward: {bool(fused)}; copies {bench.copy_rate / 1e9:,.0f} GB/s\n")
        for at, name in enumerate(names):
            # Each case may take its part of the time that is left.
            left = len(names) * (len(shapes) - index) - at
            now = perf_counter()
            found = measure(bench, name, 1 if options.small else options.rounds, now + (stop - now) / left)
            report[shape]["cases"][name] = asdict(found)
            _save(report, options.json)
            head = 2 if at else 0  # the table has one head
            _say("\n".join(markdown(_COLUMNS, lines(name, found)).splitlines()[head:]))
        report[shape]["busy"] = busy(bench)
        _save(report, options.json)
        _say(f"\nbusy: {report[shape]['busy']}")
        del bench


def _say(text: str) -> None:
    """Print a text at once, also where the output is a file."""
    print(text.rstrip("\n"), flush=True)


def _save(report: Mapping[str, Any], file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device != "cpu" else "CPU"


if __name__ == "__main__":
    main()
