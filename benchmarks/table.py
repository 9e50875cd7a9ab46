"""Markdown tables of results, and where they are written."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.case import Case
from benchmarks.machine import sentence

RESULTS = Path(__file__).parent / "results"
Row = Sequence[object]


def markdown(head: Row, rows: Iterable[Row]) -> str:
    """A table; numbers are written with three significant digits, None as a dash."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(number, line)) + " |" for line in lines) + "\n"


def number(value: object) -> str:
    """Text as it is; None as a dash; a float with three significant digits."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(name: str, report: dict[str, Any], text: str) -> None:
    """Write `results/NAME.json` and `results/NAME.md`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


def write_section(name: str, section: str, report: dict[str, Any], text: str) -> None:
    """Write `results/NAME_SECTION.json`, and the last section of `results/NAME.md`, which begins with the first line of `text`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}_{section}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    page = RESULTS / f"{name}.md"
    before = page.read_text("utf-8").split(text.split("\n")[0])[0].rstrip("\n") if page.exists() else ""
    page.write_text(f"{before}\n\n{text}", encoding="utf-8")


def parser(about: str | None, name: str, rounds: int) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that its docstring describes, with `--rounds` and `--output`."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument("--output", default=name, help="name of the results; empty for none")
    return found


def show(name: str, report: dict[str, Any], text: str) -> None:
    """Print a page of results, and write it if it has a name."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if name:
        write(name, report, text)


def masks(report: dict[str, Any], chosen: list[Case]) -> str:
    """The page of the mask benchmark."""
    engines = report["engines"]
    patterns = [case for case in chosen if case.kind in ("regex", "choice")]
    schemas = [case for case in chosen if case.kind == "schema"]
    grammars = [case for case in chosen if case.kind == "grammar"]
    parts = [
        f"# Masks\n\n{sentence(report['machine'])} {_how(report['settings'])}\n",
        "## The vocabulary, 131,072 tokens\n",
    ]
    parts.append(_vocabularies(engines))
    groups = ("Extraction schemas", schemas), ("Patterns and choices", patterns), ("Grammars", grammars)
    for title, group in groups:
        if group:
            parts += [f"## {title}\n", _pooled(engines, group), _per_case(engines, group)]
    return "\n".join(parts)


def languages(report: dict[str, Any], chosen: list[Case]) -> str:
    """The section of the grammars of programming languages, which are measured apart."""
    engines, settings = report["engines"], report["settings"]
    about = f"{sentence(report['machine'])} {settings['rounds']} rounds; otherwise as above."
    if settings.get("clock") == "processor":
        about += " The machine was loaded: these are times of the processor; take ratios alone."
    sizes = ", ".join(
        f"{case.name}: {case.source.count(chr(10) + '!') + _num_rules(case)} definitions" for case in chosen
    )
    return "\n".join(
        ["## Grammars of programming languages", "", f"{about} Rules and terminals as written: {sizes}.", "", _pooled(engines, chosen),
         _per_case(engines, chosen)]
    )  # fmt: skip


def _num_rules(case: Case) -> int:
    return sum(line[:1].isalpha() or line[:1] == "?" for line in case.source.splitlines())


def _how(settings: dict[str, Any]) -> str:
    return (
        f"One core, one thread, {settings['rounds']} rounds; each figure is the median over the rounds of the same call. "
        f"What takes more than {settings['patience']:.0f} s is run once, for at most {settings['limit']:.0f} s. "
        "First mask: from the pattern, schema or grammar, vocabulary ready. First walk: the masks after that one along a text. "
        "Dropped: the masks are forgotten, what is known of the states is kept (only here is that a cache of its own). "
        "Again: the same walk once more. Memory: growth of resident memory."
    )


def _vocabularies(engines: dict[str, Any]) -> str:
    head = ["engine", "import s", "import MB", "vocabulary s", "vocabulary MB", "of them reported MB"]
    keys = ("import_seconds", "import_mb", "vocabulary_seconds", "vocabulary_mb", "reported_mb")
    return markdown(head, ([name, *(found["vocabulary"].get(key) for key in keys)] for name, found in engines.items()))


def _pooled(engines: dict[str, Any], group: list[Case]) -> str:
    head = ["engine", "cases", "first mask ms, median", "max", "masks", "first walk us, mean", "median", "p99", "max",
            "dropped mean", "median", "again mean", "median", "max", "advance mean"]  # fmt: skip
    return markdown(head, (_pooled_row(name, found["cases"], group) for name, found in engines.items()))


def _pooled_row(name: str, found: dict[str, Any], group: list[Case]) -> Row:
    done = [found[case.name] for case in group if "first_us" in found.get(case.name, {})]
    if not done:
        return [name, f"0/{len(group)}", *[None] * 13]
    first, dropped, again, advance = (
        sorted(us for case in done for us in case[key]) for key in ("first_us", "dropped_us", "warm_us", "advance_us")
    )
    starts = [case["first_mask_ms"] for case in done]
    return [
        name, f"{len(done)}/{len(group)}", statistics.median(starts), max(starts), len(first),
        statistics.mean(first), statistics.median(first), first[int(0.99 * len(first))], first[-1],
        statistics.mean(dropped) if dropped else None, statistics.median(dropped) if dropped else None,
        statistics.mean(again), statistics.median(again), again[-1], statistics.mean(advance),
    ]  # fmt: skip


def _per_case(engines: dict[str, Any], group: list[Case]) -> str:
    key = "Per case: first mask ms / first walk mean us / its longest mask us / again mean us / memory MB"
    rows = ([case.shown, *(_cell(found["cases"].get(case.name)) for found in engines.values())] for case in group)
    failures = [
        f"- {name}, {case.name}: {found['cases'][case.name]['failed']}"
        for name, found in engines.items()
        for case in group
        if "failed" in found["cases"].get(case.name, {})
    ]
    return "\n".join([key + "\n", markdown(["case", *engines], rows), *failures]) + ("\n" if failures else "")


def _cell(case: dict[str, Any] | None) -> str:
    if case is None:
        return "not run"
    if "failed" in case:
        return "failed"
    first = case["first_us"]
    figures = (
        case["first_mask_ms"], statistics.mean(first), max(first), statistics.mean(case["warm_us"]), float(case["memory_mb"]),
    )  # fmt: skip
    return " / ".join(map(number, figures))
