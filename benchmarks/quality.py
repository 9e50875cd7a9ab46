"""Right answers of a model in free text, under constraints in several modes, by outlines and by xgrammar: 312 questions in six kinds.

    python -m scripts.real_model FOLDER            # the model; see docs/models.md
    python -m benchmarks.quality --model FOLDER    # all questions on every side; an hour or more on two cores
    python -m benchmarks.quality                   # the bundled model

The same prompts for all sides. Free text is read generously: the first JSON object, option, date, number or query in it counts. Questions
are those of `quality_questions`, answers are checked by program; intervals are by the bootstrap, and differences are paired by question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, quality_page, table
from benchmarks.quality_questions import KINDS, Question, questions
from benchmarks.quality_sides import SIDES, Answer, Subject, answers
from benchmarks.writers import load

_PACKAGES = ("outlines-cont", "transformers", "outlines", "xgrammar", "torch")


def main() -> None:
    """Ask the questions on every side, and write the section of the model, and one page of all models, below `benchmarks/results`."""
    options = _options()
    described = machine.describe(_PACKAGES)
    kinds = options.kinds.split(",")
    asked = [question for question in questions() if question.kind in kinds][: options.questions]
    chosen = {name: side for name, side in SIDES.items() if options.sides is None or name in options.sides.split(",")}
    subject = Subject(load(options.model))
    found: dict[str, list[Answer | None]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen))
        for name, side in chosen.items():
            progress.update(bar, description=name)
            found[name] = asyncio.run(answers(subject, side, asked))
            progress.advance(bar)
    name = "the bundled model" if options.model is None else options.name or options.model.name
    report = report_of(name, described, asked, found)
    text = quality_page.page(report)
    Console(width=220, highlight=False).print(text, markup=False)
    if options.output:
        _write(options.output, "bundled" if options.model is None else "model", report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--model", type=Path, help="folder of the model, of `python -m scripts.real_model` (default: the bundled one)"
    )
    parser.add_argument("--name", help="name of the model in the results (default: that of its folder)")
    parser.add_argument("--sides", help=f"of {', '.join(SIDES)} (default: all)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--questions", type=int, help="ask the first ones only, of all kinds and levels (default: all 312)"
    )
    parser.add_argument("--output", default="quality", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def report_of(
    name: str, described: dict[str, Any], asked: list[Question], found: dict[str, list[Answer | None]]
) -> dict[str, Any]:
    """Return the results as JSON: the questions, and of each side the texts, their scores (None if not asked), and what was withheld."""
    scores = {
        side: [None if one is None else question.check(one.text) for question, one in zip(asked, given, strict=True)]
        for side, given in found.items()
    }
    shown = [{"kind": one.kind, "level": one.level, "text": one.text, "answer": one.answer} for one in asked]
    return {
        "model": name,
        "machine": described,
        "kinds": [kind for kind in KINDS if any(one.kind == kind for one in asked)],
        "questions": shown,
        "texts": {side: ["" if one is None else one.text for one in given] for side, given in found.items()},
        "scores": scores,
        "withheld": {side: [one is not None and one.is_withheld for one in given] for side, given in found.items()},
    }


def _write(name: str, part: str, report: dict[str, Any]) -> None:
    """Write the results of a model, and the pages of all models that were asked."""
    (table.RESULTS / f"{name}_{part}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    known = [table.RESULTS / f"{name}_{one}.json" for one in ("model", "bundled")]
    reports = [json.loads(path.read_text("utf-8")) for path in known if path.exists()]
    how = " ".join((__doc__ or "").strip().splitlines()[-2:])
    sections = "\n".join(map(quality_page.page, reports))
    (table.RESULTS / f"{name}.md").write_text(f"# Right answers\n\n{how}\n\n{sections}", encoding="utf-8")
    (table.RESULTS / f"{name}.html").write_text(quality_page.html(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
