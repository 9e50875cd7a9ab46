"""Samplers: the time of one step for all rows, ours beside transformers' processors and beside a plain form that sorts.

    python -m benchmarks.samplers                 # every case; a few minutes
    python -m benchmarks.samplers --rounds 3 --kinds likely --output ''

16 rows over 131,072 tokens, float32, one thread of one core. All sides of a case run in turn, round after round, in one process
and on the same logits; the figures are medians of processor time, so what else the machine does counts little. The logits are
made up: probabilities that fall as a power of the rank, in a random order of the tokens, and a normal distribution as the
flattest case.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table

_PACKAGES = ("outlines-cont", "transformers", "torch")
_KINDS = ("likely", "open", "flat")
# The samplers, and the options of transformers that mean the same.
_SETTINGS: dict[str, dict[str, Any]] = {
    "multinomial": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 0.7, "top_k": 50},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
    "min_p": {"temperature": 0.7, "min_p": 0.05},
    "top_k, top_p, min_p": {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "repetition, top_k, top_p": {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
}
Side = Callable[[], Any]
Times = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Step:
    """One step: the logits of all rows, what the rows hold, and a random number for each.

    Attributes:
        logits: (R, V) float32.
        input_ids: (R, T) int64, the second half of which was generated.
        uniforms: (R,) float64.
    """

    logits: Any
    input_ids: Any
    uniforms: Any

    def counts(self) -> list[Any]:
        """What the rows hold, as the loop keeps it up."""
        from outlines_cont.sampling import TokenCounts

        half = self.input_ids.shape[1] // 2
        return [TokenCounts(ids, [i >= half for i in range(2 * half)]) for ids in self.input_ids.tolist()]


def make_step(kind: str, rows: int, vocab_size: int, seed: int) -> Step:
    """`likely`: a few tokens are; `open`: about a hundred; `flat`: much of the vocabulary."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    if kind == "flat":
        logits = torch.randn(rows, vocab_size, generator=generator)
    else:
        falling = (1.5 if kind == "likely" else 1.0) * -torch.arange(1, vocab_size + 1).log()
        falling = falling + torch.randn(rows, vocab_size, generator=generator) * 0.1
        logits = torch.stack([row[torch.randperm(vocab_size, generator=generator)] for row in falling])
    input_ids = torch.randint(vocab_size, (rows, 1024), generator=generator)
    return Step(logits, input_ids, torch.rand(rows, generator=generator, dtype=torch.float64))


def processors(**options: Any) -> Any:
    """The processors of transformers for the options, in its order."""
    from transformers.generation import logits_process as theirs

    known = {
        "repetition_penalty": theirs.RepetitionPenaltyLogitsProcessor,
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    return theirs.LogitsProcessorList([known[name](options[name]) for name in known if name in options])


def plain_probs(
    logits: Any, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Any:
    """(R, V) probabilities that are left, by one sort of every row; in the float type of the logits."""
    import torch

    ranked, order = (logits / temperature).sort(dim=-1, descending=True)
    if top_k:
        ranked[:, top_k:] = -torch.inf
    probs = ranked.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    ranked = ranked.masked_fill(before >= top_p, -torch.inf)
    if min_p:
        ranked = ranked.masked_fill(probs < min_p * probs[:, :1], -torch.inf)
    return torch.zeros_like(logits).scatter(-1, order, ranked.softmax(dim=-1))


def sides_of(step: Step, options: dict[str, Any]) -> dict[str, Side]:
    """The sides of a case with the same sampler for all rows."""
    import torch

    from outlines_cont.samplers import multinomial

    sampler, theirs, counts = multinomial(**options), processors(**options), step.counts()
    sides: dict[str, Side] = {
        "ours": lambda: sampler.sample(step.logits, step.uniforms, counts),
        "transformers": lambda: theirs(step.input_ids, step.logits).softmax(dim=-1).multinomial(1),
        "softmax alone": lambda: step.logits.softmax(dim=-1),
    }
    if "repetition_penalty" not in options:
        sides["plain sort"] = lambda: torch.multinomial(plain_probs(step.logits, **options), 1)
    return sides


def greedy_sides(step: Step) -> dict[str, Side]:
    """The most probable token and its log-probability."""
    from outlines_cont.samplers import greedy

    return {
        "ours": lambda: greedy().sample(step.logits, None),
        "transformers": lambda: (step.logits.log_softmax(dim=-1), step.logits.argmax(dim=-1)),
        "softmax alone": lambda: step.logits.softmax(dim=-1),
    }


def mixed_sides(step: Step) -> dict[str, Side]:
    """A different sampler for every row."""
    from outlines_cont.samplers import greedy, multinomial
    from outlines_cont.sampling import SamplerBatch

    options = [
        {**chosen, **({"temperature": 0.5 + 0.05 * row} if chosen else {})}
        for row, chosen in zip(range(len(step.logits)), _cycled(_SETTINGS.values()), strict=False)
    ]
    samplers = [greedy() if not chosen else multinomial(**chosen) for chosen in options]
    batch, counts, lists = (
        SamplerBatch([s.params for s in samplers]),
        step.counts(),
        [processors(**chosen) for chosen in options],
    )

    def theirs() -> None:
        for row, (sampler, chain) in enumerate(zip(samplers, lists, strict=True)):
            scores = chain(step.input_ids[row : row + 1], step.logits[row : row + 1])
            scores.softmax(dim=-1).multinomial(1) if sampler.needs_random else scores.argmax(dim=-1)

    return {
        "ours": lambda: batch.sample(step.logits, step.uniforms, counts),
        "transformers": theirs,
        "softmax alone": lambda: step.logits.softmax(dim=-1),
    }


def _cycled(values: Any) -> Iterator[Any]:
    while True:
        yield from values


def measure(sides: dict[str, Side], rounds: int) -> Times:
    """Return median, least and most milliseconds of each side, all of them in turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 2):
        for name, side in sides.items():
            start = process_time()
            side()
            if number >= 2:  # the first ones warm up
                times[name].append((process_time() - start) * 1e3)
    return {name: {"median": statistics.median(t), "least": min(t), "most": max(t)} for name, t in times.items()}


def rounding(rows: int, vocab_size: int, kind: str, options: dict[str, Any]) -> dict[str, float]:
    """Return how far each side is from the same in float64: tokens kept otherwise per row, and probability that moves."""
    from outlines_cont.samplers import multinomial

    found: dict[str, float] = {}
    steps = [make_step(kind, rows, vocab_size, seed) for seed in range(4)]
    for name, side in {
        "ours": lambda x: multinomial(**options).filtered(x).softmax(dim=-1),
        "transformers": lambda x: processors(**options)(None, x).softmax(dim=-1),
        "plain sort": lambda x: plain_probs(x, **options),
    }.items():
        otherwise, moved = [], []
        for step in steps:
            true, got = plain_probs(step.logits.double(), **options), side(step.logits)
            otherwise.append(float(((true > 0) != (got > 0)).sum()) / rows)
            moved.append(float((true - got).abs().sum(dim=-1).mean()) / 2)
        found[f"{name}: tokens"], found[f"{name}: probability"] = statistics.mean(otherwise), statistics.mean(moved)
    return found


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(_PACKAGES)
    import torch

    torch.set_num_threads(1)
    cases: list[dict[str, Any]] = []
    kinds = options.kinds.split(",")
    with torch.inference_mode(), Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(kinds) * (len(_SETTINGS) + 2))
        for kind in kinds:
            step = make_step(kind, options.rows, options.vocab_size, seed=7)
            everything = {name: sides_of(step, chosen) for name, chosen in _SETTINGS.items()}
            for name, sides in {"greedy": greedy_sides(step), **everything, "mixed": mixed_sides(step)}.items():
                progress.update(bar, description=f"{kind}, {name}")
                cases.append({"kind": kind, "settings": name, "ms": measure(sides, options.rounds)})
                progress.advance(bar)
        exact = {
            f"{kind}, {name}": rounding(options.rows, options.vocab_size, kind, _SETTINGS[name])
            for kind in kinds
            for name in ("top_p", "top_k, top_p, min_p")
        }
        nuclei = {kind: _nucleus(make_step(kind, options.rows, options.vocab_size, seed=7)) for kind in kinds}
    report = {"machine": described, "settings": vars(options), "nuclei": nuclei, "cases": cases, "rounding": exact}
    text = _page(report)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _nucleus(step: Step) -> float:
    """The median number of tokens that top_p = 0.9 keeps at temperature 0.7."""
    return statistics.median((plain_probs(step.logits, **_SETTINGS["top_p"]) > 0).sum(dim=-1).tolist())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each side (default: 15)")
    parser.add_argument("--rows", type=int, default=16, help="rows (default: 16)")
    parser.add_argument("--vocab-size", type=int, default=131_072, help="tokens (default: 131072)")
    parser.add_argument("--kinds", default=",".join(_KINDS), help="of likely,open,flat (default: all)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="samplers", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _page(report: dict[str, Any]) -> str:
    settings, sides = report["settings"], ("ours", "transformers", "plain sort", "softmax alone")
    kept = ", ".join(f"{kind} {table.number(number)}" for kind, number in report["nuclei"].items())
    rows = (
        [case["kind"], case["settings"]]
        + [case["ms"][side]["median"] if side in case["ms"] else None for side in sides]
        + [case["ms"]["transformers"]["median"] / case["ms"]["ours"]["median"]]
        for case in report["cases"]
    )
    exact = (
        [name, *(found[f"{side}: {what}"] for side in sides[:3] for what in ("tokens", "probability"))]
        for name, found in report["rounding"].items()
    )
    return "\n".join(
        [
            f"# Samplers\n\n{machine.sentence(report['machine'])} One step of {settings['rows']} rows over {settings['vocab_size']:,} "
            "tokens, float32, one core and one thread; milliseconds of processor time, medians of "
            f"{settings['rounds']} measurements of each side in turn. Tokens that top_p 0.9 keeps at temperature 0.7: {kept}. "
            "'Transformers' is its LogitsProcessorList with the same settings, softmax and multinomial; 'plain sort' one sort "
            "for all steps.\n",
            table.markdown(["logits", "settings", *sides, "transformers / ours"], rows),
            "## Rounding\n\nAgainst the same in float64, per row: tokens that are kept and should not be or the other way round, and "
            "the probability that is moved.\n",
            table.markdown(["case", *(f"{side}: {what}" for side in sides[:3] for what in ("tokens", "moved"))], exact),
        ]
    )


if __name__ == "__main__":
    main()
