"""Masks: how long they take and what they hold, with this repository's `fsm` and with its peers, side by side.

    python -m benchmarks.masks                  # everything; about ten minutes
    python -m benchmarks.masks --rounds 1 --engines ours --cases "date,nested person"

The vocabulary is Mistral's tekken (131,072 tokens; it lies in the mistral-common wheel). One core, one thread. Each engine
has a fresh process per round, which prepares the vocabulary and runs three other constraints (a program's very first one
pays for loading code), and each case has a fork of it, so that no case finds what another one left. Every figure is the
median over the rounds of the same call; means, medians and maxima are then taken over the masks of a walk.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine, table
from benchmarks.case import Case, cases, warm_up
from benchmarks.engines import ENGINES, Engine, engine
from benchmarks.rounds import Message, Send, in_process
from benchmarks.tekken import Tokenizer, tekken
from benchmarks.walk import measure

Task = tuple[Case, tuple[int, ...]]
"""A case, and the tokens of its text with the EOS id at the end."""
Rounds = dict[str, dict[str, list[Message]]]


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    described = machine.describe(("outlines-cont", "llguidance", "xgrammar", "outlines-core", "numpy", "torch"))
    chosen = [case for case in cases() if not options.cases or case.name in options.cases]
    found = _all_rounds(chosen, options)
    report = {
        "machine": described,
        "settings": {"rounds": options.rounds, "repeats": options.repeats, "limit_seconds": options.limit},
        "engines": {name: _summary(messages) for name, messages in found.items()},
    }
    text = table.masks(report, chosen)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options() -> argparse.Namespace:
    names = [case.name for case in cases()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes per engine (default: 5)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="walks of each kind in a round after the first (default: 3)"
    )
    parser.add_argument("--engines", type=_list_of(ENGINES), default=list(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--cases", type=_list_of(names), default=[], help=f"of {'; '.join(names)} (default: all)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per engine and case (default: 60)")
    parser.add_argument("--output", default="masks", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _list_of(names: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        chosen, rest = [], text
        while rest:  # names hold commas, so they are taken off one by one
            name = max((n for n in names if rest == n or rest.startswith(n + ",")), key=len, default=None)
            if name is None:
                raise argparse.ArgumentTypeError(
                    f"expected names of {list(names)}, separated by commas, received {rest!r}"
                )
            chosen.append(name)
            rest = rest[len(name) + 1 :]
        return chosen

    return read


def _all_rounds(chosen: list[Case], options: argparse.Namespace) -> Rounds:
    """Run engine after engine, round after round. A case that an engine failed is not tried by it again."""
    found: Rounds = {name: {} for name in options.engines}
    tokenizer = tekken()
    warm_ups, tasks = _spelled(warm_up(), tokenizer), _spelled(chosen, tokenizer)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=options.rounds * len(options.engines) * len(chosen))
        for number in range(options.rounds):
            for name in options.engines:
                skip = [case for case, messages in found[name].items() if "failed" in messages[-1]]
                todo = [task for task in tasks if task[0].name not in skip]
                for message in in_process(
                    _measure_engine, name, tokenizer, warm_ups, todo, options.repeats, options.limit
                ):
                    case = message.get("case", "")
                    progress.update(bar, description=f"round {number + 1} {name}: {case or 'vocabulary'}")
                    found[name].setdefault(case, []).append(message)
                progress.update(
                    bar, completed=(number * len(options.engines) + options.engines.index(name) + 1) * len(chosen)
                )
    return found


def _spelled(chosen: list[Case], tokenizer: Tokenizer) -> list[Task]:
    token_ids = tokenizer.encode([case.text for case in chosen])
    return [(case, (*ids, tokenizer.eos_token_id)) for case, ids in zip(chosen, token_ids, strict=True)]


def _measure_engine(
    send: Send, name: str, tokenizer: Tokenizer, warm_ups: list[Task], tasks: list[Task], repeats: int, limit: float
) -> None:
    """Prepare one engine, then run each case in a fork."""
    machine.pin()
    before, start = machine.resident_mb(), perf_counter()
    subject = engine(name)
    imported, imported_mb = perf_counter(), machine.resident_mb()
    subject.prepare(tokenizer)
    prepared, prepared_mb = perf_counter(), machine.resident_mb()
    send(
        {
            "import_seconds": imported - start, "import_mb": imported_mb - before,
            "vocabulary_seconds": prepared - imported, "vocabulary_mb": prepared_mb - imported_mb,
            "reported_mb": subject.reported_mb(None),
        }
    )  # fmt: skip
    for case, ids in warm_ups:
        measure(subject, case, ids, repeats=1)
    subject.drop_masks()
    for case, ids in tasks:
        for message in in_process(_measure_case, subject, case, ids, repeats, method="fork", limit=limit):
            send({"case": case.name, **message})


def _measure_case(send: Send, subject: Engine, case: Case, token_ids: tuple[int, ...], repeats: int) -> None:
    machine.own_all_pages()
    send(measure(subject, case, token_ids, repeats=repeats).as_message())


def _summary(messages: dict[str, list[Message]]) -> dict[str, Any]:
    """Medians over the rounds, for one engine."""
    vocabulary = messages.get("", [])
    return {
        "vocabulary": _medians(vocabulary),
        "cases": {name: _case_summary(found) for name, found in messages.items() if name},
    }


def _case_summary(rounds: list[Message]) -> dict[str, Any]:
    if "failed" in rounds[-1]:
        return {"failed": rounds[-1]["failed"]}
    dropped = [walk for message in rounds for walk in message["dropped"]]
    warm = [walk for message in rounds for walk in message["warm"]]
    return {
        "compile_ms": statistics.median(m["compile_ns"] for m in rounds) / 1e6,
        "first_mask_ms": statistics.median(m["first_mask_ns"] for m in rounds) / 1e6,
        "first_mask_ms_spread": [f(m["first_mask_ns"] for m in rounds) / 1e6 for f in (min, max)],
        "first_us": _each_position(m["first"] for m in rounds),
        "dropped_us": _each_position(dropped),
        "warm_us": _each_position(warm),
        "advance_us": _each_position(m["advance"] for m in rounds),
        **_medians([{key: m[key] for key in ("memory_mb", "reported_mb")} for m in rounds]),
        "num_allowed": rounds[0]["num_allowed"],
    }


def _each_position(walks: Iterable[list[int]]) -> list[float]:
    """The median over walks for every mask of them, in microseconds."""
    return [round(statistics.median(times) / 1e3, 2) for times in zip(*walks, strict=True)]


def _medians(messages: list[Message]) -> dict[str, float | None]:
    keys = messages[0] if messages else ()
    columns = {key: [m[key] for m in messages if m.get(key) is not None] for key in keys}
    return {key: statistics.median(column) if column else None for key, column in columns.items()}


if __name__ == "__main__":
    main()
