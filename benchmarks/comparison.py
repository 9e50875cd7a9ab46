"""`Comparison`: our way against another, case by case, both sides in turn in one process; and the table of them."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table
from benchmarks.rig import SHAPES, Rig

_PACKAGES = ("outlines-cont", "transformers", "torch", "xgrammar")
Figures = dict[str, float]


@dataclass(frozen=True)
class Comparison:
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


def ratio(ours: list[float], theirs: list[float], **more: float) -> Figures:
    """Medians, and how many times as long theirs takes."""
    own, other = statistics.median(ours), statistics.median(theirs)
    return {"ratio": other / own, "ours s": own, "theirs s": other, **more}


def main(
    name: str,
    title: str,
    about: str,
    cases: Sequence[Comparison],
    *,
    note: str = "",
    packages: Sequence[str] = _PACKAGES,
    rounds: int = 5,
) -> None:
    """Measure what the command line asks for, print the table and write it below `benchmarks/results`.

    Args:
        name: of the module below `benchmarks`, and of the table.
        title: of the page.
        about: a sentence of `--help`.
        cases: all that can be measured.
        note: what else the page says of how it is measured.
        packages: whose versions the page names.
        rounds: measurements of each side, where the command line does not say.
    """
    options = _options(name, about, cases, rounds)
    machine.use_one_thread()
    machine.pin(options.core)
    described = machine.describe(packages)
    import torch

    torch.set_num_threads(1)
    rig = Rig(options.device, options.model)
    chosen = [case for case in cases if not options.cases or case.name in options.cases.split(",")]
    found: dict[str, Figures] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen))
        for case in chosen:
            progress.update(bar, description=case.name)
            found[case.name] = case.measure(rig, options.rounds)
            progress.advance(bar)
    report = {
        "machine": described,
        "rounds": options.rounds,
        "device": options.device,
        "model": options.model,
        "cases": found,
    }
    text = _page(title, report, chosen, note)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options(name: str, about: str, cases: Sequence[Comparison], rounds: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each side (default: {rounds})")
    parser.add_argument("--cases", default="", help=f"of {', '.join(case.name for case in cases)} (default: all)")
    parser.add_argument("--device", default="cpu", help="where the model runs (default: cpu)")
    parser.add_argument("--model", default="small", choices=SHAPES, help="size of the model (default: small)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default=name, help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _page(title: str, report: dict[str, Any], chosen: list[Comparison], note: str) -> str:
    head = ["what", "aim", "measured", "figures"]
    rows = []
    for case in chosen:
        figures = report["cases"][case.name]
        others = ", ".join(f"{name} {table.number(float(value))}" for name, value in figures.items() if name != "ratio")
        rows.append([case.title, case.aim, table.number(float(figures["ratio"])), others])
    return (
        f"# {title}\n\n{machine.sentence(report['machine'])} A Llama of random weights ({SHAPES[report['model']]}) "
        f"on {report['device']}, one core and one thread, medians of {report['rounds']} measurements "
        f"of each side in turn. 'Theirs' is transformers without this package, or the same without the cache.{note and ' '}{note}\n\n"
        + table.markdown(head, rows)
    )
