"""Right answers of a model in free text, under constraints in several modes, by three other libraries: 312 questions in six kinds.

    python -m scripts.real_model FOLDER            # the model; see docs/models.md
    python -m benchmarks.quality --model FOLDER    # all questions on every side; an hour or more on two cores
    python -m benchmarks.quality                   # the bundled model

Answers are written while it runs; after a run that was cut, or of fewer questions or sides, `--resume` asks what is missing.
The same prompts for all sides. Free text is read generously: the first JSON object, option, date, number or query in it counts. Questions
are those of `quality_questions`, answers are checked by program; intervals are by the bootstrap, and differences are paired by question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, quality_page, table
from benchmarks.quality_certainty import measured
from benchmarks.quality_questions import KINDS, Question, questions
from benchmarks.quality_sides import SIDES, Subject, answers
from benchmarks.writers import load

_CHUNK = 78  # questions after which the results are written
_PACKAGES = ("outlines-cont", "transformers", "guidance", "outlines", "xgrammar", "torch")


def main() -> None:
    """Ask the questions on every side, and write the section of the model, and one page of all models, below `benchmarks/results`."""
    options = _options()
    name = "the bundled model" if options.model is None else options.name or options.model.name
    part = "bundled" if options.model is None else "model"
    asked = questions()
    report = (
        _resumed(options, part, name, asked)
        if options.resume
        else empty_report(name, machine.describe(_PACKAGES), asked)
    )
    kinds = options.kinds.split(",")
    wanted = [i for i, question in enumerate(asked[: options.questions]) if question.kind in kinds]
    chosen = [*SIDES] if options.sides is None else options.sides.split(",")
    if unknown := [side for side in chosen if side not in SIDES]:
        raise SystemExit(f"expected sides of {', '.join(SIDES)}, got {', '.join(unknown)}")
    subject = Subject(load(options.model))
    for side in chosen:
        known = report["sides"].setdefault(side, empty_side(len(asked)))
        missing = [i for i in wanted if known["texts"][i] is None and asked[i].kind in SIDES[side].kinds]
        if options.resume and missing:
            now = machine.describe(())
            run = {"date": now["date"], "load_at_start": now["load_at_start"], "questions": len(missing)}
            known.setdefault("runs", []).append(run)
        for first in range(0, len(missing), _CHUNK):
            ask(subject, side, asked, missing[first : first + _CHUNK], known)
            if options.output:
                write(options.output, part, report)
        failed = sum(bool(error) for error in known["errors"])
        print(
            f"{side}: {known['seconds']:.0f} s, {known['forwards']} forwards, {failed} failed",
            file=sys.stderr,
            flush=True,
        )
    Console(width=220, highlight=False).print(quality_page.page(report), markup=False)


def ask(subject: Subject, side: str, asked: list[Question], chosen: list[int], known: dict[str, Any]) -> None:
    """Ask some of the questions on a side, and note the answers, and what they cost, in what is known of the side."""
    start = time.monotonic()
    with subject.model.meter() as meter:
        found = asyncio.run(answers(subject, SIDES[side], [asked[i] for i in chosen]))
    known["seconds"] += time.monotonic() - start
    known["forwards"] += meter.forwards
    known["fed_tokens"] += meter.fed_tokens
    for i, one in zip(chosen, found, strict=True):
        if one is None:
            continue
        certainty = one.certainty if one.row is None else measured(subject.model, one.row)
        known["texts"][i], known["withheld"][i], known["errors"][i] = one.text, one.is_withheld, one.error
        known["certainty"][i] = {
            way: {path: round(sure, 4) for path, sure in of.items()} for way, of in certainty.items()
        }
        known["scores"][i] = asked[i].check(one.text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--model", type=Path, help="folder of the model, of `python -m scripts.real_model` (default: the bundled one)"
    )
    parser.add_argument("--name", help="name of the model in the results (default: that of its folder)")
    parser.add_argument("--sides", help=f"in this order, of {', '.join(SIDES)} (default: all)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--questions", type=int, help="ask the first ones only, of all kinds and levels (default: all 312)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the answers of an earlier run, and ask what is missing"
    )
    parser.add_argument("--output", default="quality", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def empty_report(name: str, described: dict[str, Any], asked: list[Question]) -> dict[str, Any]:
    """Return the results of a model, as JSON, before anything is asked: its name, the machine, the questions, and no sides."""
    shown = [{"kind": one.kind, "level": one.level, "text": one.text, "answer": one.answer} for one in asked]
    return {"model": name, "machine": described, "questions": shown, "sides": {}}


def empty_side(count: int) -> dict[str, Any]:
    """Return what is known of a side that was not asked yet: lists of texts, scores and so on, with None for each question."""
    lists = {name: [None] * count for name in ("texts", "scores", "withheld", "errors", "certainty")}
    return {"seconds": 0.0, "forwards": 0, "fed_tokens": 0, **lists}


def _resumed(options: argparse.Namespace, part: str, name: str, asked: list[Question]) -> dict[str, Any]:
    """Return the results that an earlier run of the same questions has left, or empty ones if there are none."""
    path, fresh = (
        table.RESULTS / f"{options.output}_{part}.json",
        empty_report(name, machine.describe(_PACKAGES), asked),
    )
    if not path.exists():
        return fresh
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    same = [key for key in ("model", "questions") if found[key] == fresh[key]]
    if len(same) < 2:
        raise SystemExit(
            f"expected the results of {name!r} on these questions in {path} to resume, got others. Leave out --resume."
        )
    return found


def write(name: str, part: str, report: dict[str, Any]) -> None:
    """Write the results of a model, and the pages of all models that were asked."""
    report = {**report, "sides": {side: report["sides"][side] for side in SIDES if side in report["sides"]}}
    (table.RESULTS / f"{name}_{part}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    known = [table.RESULTS / f"{name}_{one}.json" for one in ("model", "bundled")]
    reports = [json.loads(path.read_text("utf-8")) for path in known if path.exists()]
    how = " ".join((__doc__ or "").strip().splitlines()[-2:])
    sections = "\n".join(map(quality_page.page, reports))
    (table.RESULTS / f"{name}.md").write_text(f"# Right answers\n\n{how}\n\n{sections}", encoding="utf-8")
    (table.RESULTS / f"{name}.html").write_text(quality_page.html(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
