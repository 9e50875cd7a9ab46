"""Masks: how long they take and what they hold, with this repository's `fsm` and with its peers, side by side.

    python -m benchmarks.masks                  # everything; about a quarter of an hour, most of it outlines-core
    python -m benchmarks.masks --rounds 1 --engines ours --cases "date,nested person"
    python -m benchmarks.masks --languages      # grammars of programming languages, in a section of the page of their own
    python -m benchmarks.masks --languages --clock processor    # the same on a machine that does other things, too
    python -m benchmarks.masks --schemas FOLDER # schemas that a process meets for the first time; see `cold.py`

The vocabulary is Mistral's tekken (131,072 tokens; it lies in the mistral-common wheel). One core, one thread. Each engine
has a fresh process per round, which prepares the vocabulary and runs four other constraints (a program's very first one
pays for loading code), and each case has a fork of it, so that no case finds what another one left. Every figure is the
median over the rounds of the same call; means, medians and maxima are then taken over the masks of a walk.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import cold, machine, table
from benchmarks.case import Case, cases, languages, warm_up
from benchmarks.engines import ENGINES, Engine, engine
from benchmarks.rounds import Message, Send, in_process
from benchmarks.tekken import Tokenizer, tekken
from benchmarks.walk import CLOCKS, measure

Task = tuple[Case, tuple[int, ...]]
"""A case, and the tokens of its text with the EOS id at the end."""
Rounds = dict[str, dict[str, list[Message]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every engine's process is told.

    Attributes:
        tokenizer: the vocabulary.
        warm_ups: what runs before the first clock.
        repeats: walks of each kind after the first.
        limit: seconds for one case.
        core: where to run; None is the last one.
        clock: one of `walk.CLOCKS`.
    """

    tokenizer: Tokenizer
    warm_ups: list[Task]
    repeats: int
    limit: float
    core: int | None
    clock: str = "wall"


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    described = machine.describe(("outlines-cont", "llguidance", "xgrammar", "outlines-core", "numpy", "torch"))
    if options.schemas is not None:
        _measure_schemas(options, described)
        return
    if options.languages:
        options.engines = [
            name for name in options.engines if name in ("ours", "llguidance")
        ]  # which read grammars of Lark
    known = languages() if options.languages else cases()
    chosen = [case for case in known if not options.cases or case.name in options.cases]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        run = _Run(chosen, options, progress)
        run.rounds()
        text = _report(run.found, described, chosen, options)
        for name in options.engines:  # the slow part; what is there already is safe
            run.put_off(name)
            text = _report(run.found, described, chosen, options)
    Console(width=200, highlight=False).print(text, markup=False)


def _measure_schemas(options: argparse.Namespace, described: dict[str, Any]) -> None:
    """The same for schemas that a process meets for the first time."""
    if options.schemas and not options.schemas.is_dir():
        raise SystemExit(f"expected a folder of schemas, got {options.schemas}; `--schemas` without one takes our own")
    engines = [
        name for name in options.engines if name != "outlines-core"
    ]  # it compiles no schema of hundreds of properties
    figures, text = cold.page(options.schemas or None, engines, options.rounds, options.core, described)
    if options.output:
        table.write("cold" if options.output == "masks" else options.output, {"machine": described, **figures}, text)
    Console(width=220, highlight=False).print(text, markup=False)


def _report(found: Rounds, described: dict[str, Any], chosen: list[Case], options: argparse.Namespace) -> str:
    """Write what is found so far; return it as text."""
    settings = {name: getattr(options, name) for name in ("rounds", "repeats", "patience", "limit", "clock")}
    engines = {name: _summary(messages) for name, messages in found.items()}
    report = {"machine": described, "settings": settings, "engines": engines}
    if options.languages:
        text = table.languages(report, chosen)
        if options.output:
            table.write_section(options.output, "languages", report, text)
        return text
    text = table.masks(report, chosen)
    if options.output:
        table.write(options.output, report, text)
    return text


def _options() -> argparse.Namespace:
    names = [case.name for case in (*cases(), *languages())]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes per engine (default: 5)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="walks of each kind in a round after the first (default: 3)"
    )
    parser.add_argument("--engines", type=_list_of(ENGINES), default=list(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--cases", type=_list_of(names), default=[], help=f"of {'; '.join(names)} (default: all)")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds for a case in the rounds (default: 5)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for it at the end (default: 60)")
    parser.add_argument(
        "--schemas",
        type=Path,
        nargs="?",
        const=False,
        metavar="FOLDER",
        help="only schemas never seen before; without FOLDER, our own",
    )
    parser.add_argument("--languages", action="store_true", help="only grammars of programming languages")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="`processor` on a machine that does other things, too"
    )
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


class _Run:
    """Engine after engine, round after round; what takes too long is put off to the end, where it runs once."""

    def __init__(self, chosen: list[Case], options: argparse.Namespace, progress: Progress) -> None:
        tokenizer = tekken()
        self._tasks = _spelled(chosen, tokenizer)
        self._plan = Plan(
            tokenizer, _spelled(warm_up(), tokenizer), options.repeats, options.patience, options.core, options.clock
        )
        self._options, self._progress = options, progress
        self.found: Rounds = {name: {} for name in options.engines}
        self._bar = progress.add_task("", total=(options.rounds + 1) * len(options.engines))

    def rounds(self) -> None:
        """All rounds; a case that an engine failed is not tried by it again."""
        for number in range(self._options.rounds):
            for name, found in self.found.items():
                failed = {case for case, messages in found.items() if "failed" in messages[-1]}
                self._measure(
                    f"round {number + 1}", name, self._plan, [t for t in self._tasks if t[0].name not in failed]
                )

    def put_off(self, name: str) -> None:
        """What the engine had no time for in the rounds."""
        late = [t for t in self._tasks if "late" in self.found[name].get(t[0].name, [{}])[-1]]
        for case, _ in late:
            del self.found[name][case.name]
        self._measure("put off", name, replace(self._plan, limit=self._options.limit), late)

    def _measure(self, what: str, name: str, plan: Plan, tasks: list[Task]) -> None:
        found = self.found[name]
        for message in in_process(_measure_engine, name, plan, tasks) if tasks else ():
            case = message.get("case", "")
            self._progress.update(self._bar, description=f"{what}, {name}: {case or 'vocabulary'}")
            found.setdefault(case, []).append(message)
        self._progress.advance(self._bar)


def _spelled(chosen: list[Case], tokenizer: Tokenizer) -> list[Task]:
    token_ids = tokenizer.encode([case.text for case in chosen])
    return [(case, (*ids, tokenizer.eos_token_id)) for case, ids in zip(chosen, token_ids, strict=True)]


def _measure_engine(send: Send, name: str, plan: Plan, tasks: list[Task]) -> None:
    """Prepare one engine, then run each case in a fork."""
    machine.pin(plan.core)
    before, start = machine.resident_mb(), perf_counter()
    subject = engine(name)
    imported, imported_mb = perf_counter(), machine.resident_mb()
    subject.prepare(plan.tokenizer)
    prepared, prepared_mb = perf_counter(), machine.resident_mb()
    send(
        {
            "import_seconds": imported - start, "import_mb": imported_mb - before,
            "vocabulary_seconds": prepared - imported, "vocabulary_mb": prepared_mb - imported_mb,
            "reported_mb": subject.reported_mb(None),
        }
    )  # fmt: skip
    for case, ids in plan.warm_ups:
        with suppress(ValueError):  # a kind that the engine does not read
            measure(subject, case, ids, repeats=1)
    subject.drop_masks()
    for case, ids in tasks:
        for message in in_process(
            _measure_case, subject, case, ids, plan.repeats, plan.clock, method="fork", limit=plan.limit
        ):
            send({"case": case.name, **message})


def _measure_case(
    send: Send, subject: Engine, case: Case, token_ids: tuple[int, ...], repeats: int, clock: str
) -> None:
    machine.own_all_pages()
    send(measure(subject, case, token_ids, repeats=repeats, clock=clock).as_message())


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
