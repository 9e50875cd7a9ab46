"""The results of `benchmarks.quality`: means with bootstrap intervals, paired by question, as Markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine, table
from benchmarks.quality_certainty import WAYS, auroc, judged, right_among

BASE = "constrained"
_DRAWS = 2_000
_SEED = 20_261_130

_STYLE = """
:root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 24px auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { border-bottom: 1px solid #8884; padding: 5px 8px; text-align: left; }
td.n { text-align: right; white-space: nowrap; } .scroll { overflow-x: auto; }
.bar { display: inline-block; height: 9px; background: #2f6fde; border-radius: 2px; }
details { margin: 8px 0; } pre { white-space: pre-wrap; }
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval by the bootstrap (percentiles of 2,000 draws of the questions)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return that of some numbers, one or more, such as scores, or the differences of two sides on the same questions."""
        numbers: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
        picks = np.random.default_rng(_SEED).integers(0, len(numbers), (_DRAWS, len(numbers)))
        low, high = np.percentile(numbers[picks].mean(axis=1), [2.5, 97.5])
        return cls(float(numbers.mean()), float(low), float(high))

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} [{100 * self.low:.0f}, {100 * self.high:.0f}]"

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside of the interval."""
        return self.low > 0 or self.high < 0


def page(report: dict[str, Any]) -> str:
    """Return the section of one model as Markdown."""
    sides, kinds = report["sides"], _kinds(report)
    head = ["side", *kinds, "all", f"minus {BASE}, the same questions", "answered"]
    rows = [[name, *(_of_kind(report, name, kind) for kind in kinds), *_summary(report, name)] for name in sides]
    levels = [[name, *(_of_level(report, name, level) for level in (1, 2, 3))] for name in sides]
    return (
        f"## {report['model']}\n\n{machine.sentence(report['machine'])} {len(report['questions'])} questions, greedy but for the samples, "
        f"float32.{_later_runs(report)} Right answers in percent, with 95 % intervals by the bootstrap; a record counts by field.\n\n"
        f"{table.markdown(head, rows)}\nThe difference to {BASE}, by kind, and what the answers took (the machine had other work, so "
        "seconds tell an order only; forwards and tokens of this package alone):\n\n"
        f"{table.markdown(['side', *kinds, 'questions', 'seconds', 'forwards', 'tokens fed'], _costs(report))}"
        f"\nBy difficulty:\n\n{table.markdown(['side', '1', '2', '3'], levels)}{_certain(report)}"
    )


def _later_runs(report: dict[str, Any]) -> str:
    """Return a sentence with the questions that later runs (`--resume`) have asked, and when; empty if there was none."""
    told = [
        f"{name} ({run['questions']} questions, {run['date']}, load {run['load_at_start']})"
        for name, known in report["sides"].items()
        for run in known.get("runs", ())
    ]
    return f" Asked in later runs, with the load before each: {', '.join(told)}." if told else ""


def _costs(report: dict[str, Any]) -> list[list[object]]:
    """Return the rows of the table of differences and costs."""
    rows: list[list[object]] = []
    for name, known in report["sides"].items():
        changes = [_shown_change(_changes(report, name, kind=kind)) for kind in _kinds(report)]
        asked = sum(score is not None for score in known["scores"])
        rows.append(
            [name, *changes, asked, round(known["seconds"]), known["forwards"] or "-", known["fed_tokens"] or "-"]
        )
    return rows


def _shown_change(changes: list[float]) -> str:
    if not changes:
        return "-"
    change = Interval.of(changes)
    return f"{change}{' *' if change.is_clear else ''}"


def _changes(report: dict[str, Any], side: str, **where: Any) -> list[float]:
    """Return the differences of a side to the base, of the questions with such attributes that both have answered."""
    base, known = report["sides"].get(BASE), report["sides"][side]
    if base is None or side == BASE:
        return []
    return [
        known["scores"][i] - base["scores"][i]
        for i, question in enumerate(report["questions"])
        if known["scores"][i] is not None
        and base["scores"][i] is not None
        and not known["withheld"][i]
        and all(question[name] == value for name, value in where.items())
    ]


def certain_rows(report: dict[str, Any]) -> list[list[object]]:
    """Return for each way to tell how certain values are: its areas under the ROC curve, and the right ones among the most certain.

    The values are those of the records that both `constrained` and `abstaining` have written, which are the same; without agreement, those
    of `constrained`, if `abstaining` was not asked.
    """
    base, voted = report["sides"].get(BASE), report["sides"].get("abstaining")
    if base is None:
        return []
    ways = WAYS if voted is not None and any(voted["certainty"]) else WAYS[1:]
    chosen = [i for i, one in enumerate(base["certainty"]) if one]
    if voted is not None and ways is WAYS:
        chosen = [i for i in chosen if voted["certainty"][i] and voted["texts"][i] == base["texts"][i]]
    rows: list[list[object]] = []
    for kind in [*dict.fromkeys(report["questions"][i]["kind"] for i in chosen), None]:
        asked = [i for i in chosen if kind in (None, report["questions"][i]["kind"])]
        votes: list[float | None] = []
        for way in ways:
            certainty = voted["certainty"] if voted is not None and way == WAYS[0] else base["certainty"]
            by_question = [judged(base["texts"][i], report["questions"][i]["answer"], certainty[i][way]) for i in asked]
            areas = _areas(by_question)
            votes = areas if way == WAYS[0] else votes
            row = _certain_row(by_question, areas, None if way == WAYS[0] else votes)
            rows += [[kind or "all", way, *row]] if row else []
    return rows


def _certain_row(
    by_question: Sequence[list[tuple[float, bool]]], areas: Sequence[float | None], votes: Sequence[float | None] | None
) -> list[object]:
    """Return the cells of a way; none if all values are right, or all are wrong."""
    values = [value for found in by_question for value in found]
    area = auroc(values)
    if area is None:
        return []
    changes = [a - b for a, b in zip(areas, votes or (), strict=False) if a is not None and b is not None]
    change = _percentiles(changes) if changes else "-"
    shares = [f"{100 * right_among(values, share):.0f}" for share in (1.0, 0.8, 0.6, 0.4)]
    return [len(values), f"{area:.2f} {_percentiles([one for one in areas if one is not None])}", change, *shares]


def _areas(by_question: Sequence[list[tuple[float, bool]]]) -> list[float | None]:
    """Return the areas of bootstrap draws of whole questions, as the values of one depend on each other; the draws are always the same."""
    picks = np.random.default_rng(_SEED).integers(0, len(by_question), (_DRAWS // 4, len(by_question)))
    return [auroc([value for i in line for value in by_question[i]]) for line in picks]


def _percentiles(areas: Sequence[float]) -> str:
    low, high = np.percentile(areas, [2.5, 97.5])
    return f"[{low:.2f}, {high:.2f}]"


_CERTAIN_HEAD = (
    "kind",
    "how certain a value is, by",
    "values",
    "AUROC",
    "minus agreement",
    "right of all",
    "of the surest 80 %",
    "of 60 %",
    "of 40 %",
)


def _certain(report: dict[str, Any]) -> str:
    rows = certain_rows(report)
    if not rows:
        return ""
    return (
        "\nHow certain the values of records are (the answers of `constrained`), and how well that tells right from wrong ones: the area "
        "under the ROC curve with its interval, and the right values in percent among the most certain ones. The agreement is that of "
        "five samples at temperature 1 (`abstaining`); the others come from the record alone (`constrained`), the entropy with one "
        "forward more.\n\n" + table.markdown(_CERTAIN_HEAD, rows)
    )


def _kinds(report: dict[str, Any]) -> list[str]:
    """Return the kinds of the questions that some side was asked, in order."""
    asked = {i for side in report["sides"].values() for i, score in enumerate(side["scores"]) if score is not None}
    return [*dict.fromkeys(question["kind"] for i, question in enumerate(report["questions"]) if i in asked)]


def _scores(report: dict[str, Any], side: str, **where: Any) -> list[float]:
    """Return the scores of the answers that a side gave to the questions with such attributes."""
    known = report["sides"][side]
    pairs = zip(report["questions"], known["scores"], known["withheld"], strict=True)
    return [
        score
        for question, score, is_withheld in pairs
        if score is not None and not is_withheld and all(question[name] == value for name, value in where.items())
    ]


def _of_kind(report: dict[str, Any], side: str, kind: str) -> str:
    found = _scores(report, side, kind=kind)
    return str(Interval.of(found)) if found else "-"


def _of_level(report: dict[str, Any], side: str, level: int) -> str:
    found = _scores(report, side, level=level)
    return str(Interval.of(found)) if found else "-"


def _summary(report: dict[str, Any], side: str) -> list[str]:
    """Return the mean over all answers, the paired difference to the base, and the share of questions that were answered."""
    scores, withheld = report["sides"][side]["scores"], report["sides"][side]["withheld"]
    asked = [i for i, score in enumerate(scores) if score is not None]
    given = [i for i in asked if not withheld[i]]
    if not given:
        return ["-", "-", f"0 of {len(asked)}"]
    shown = _shown_change(_changes(report, side))
    return [str(Interval.of([scores[i] for i in given])), shown, f"{len(given)} of {len(asked)}"]


def html(reports: Sequence[dict[str, Any]]) -> str:
    """Return one self-contained page with the tables of all models, and every question with its answers."""
    parts = [
        f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Right answers</title><style>{_STYLE}</style><h1>Right answers</h1>"
    ]
    for report in reports:
        parts += [
            f"<h2>{escape(report['model'])}</h2><p>{escape(machine.sentence(report['machine']) + _later_runs(report))}</p>",
            _overview(report),
            _html_table(_CERTAIN_HEAD, certain_rows(report)),
        ]
        parts += [_details(report, number) for number in range(len(report["questions"]))]
    return "\n".join(parts) + "\n"


def _overview(report: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in ("side", *_kinds(report), "all", f"minus {BASE}", "answered", ""))
    rows = []
    for side in report["sides"]:
        cells = [*(_of_kind(report, side, kind) for kind in _kinds(report)), *_summary(report, side)]
        found = _scores(report, side)
        width = 160 * sum(found) / len(found) if found else 0
        shown = "".join(f"<td class=n>{escape(cell)}" for cell in cells)
        rows.append(f'<tr><td>{escape(side)}{shown}<td><i class=bar style="width:{width:.0f}px"></i>')
    return f"<div class=scroll><table><tr>{head}{''.join(rows)}</table></div>"


def _html_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    names = "".join(f"<th>{escape(name)}" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) for row in rows)
    return f"<div class=scroll><table><tr>{names}{lines}</table></div>"


def _details(report: dict[str, Any], number: int) -> str:
    question = report["questions"][number]
    rows = "".join(
        f"<tr><td>{escape(side)}<td class=n>{100 * known['scores'][number]:.0f}{' (withheld)' if known['withheld'][number] else ''}"
        f"<td><code>{escape(known['texts'][number])}</code>{escape(known['errors'][number])}"
        for side, known in report["sides"].items()
        if known["scores"][number] is not None
    )
    if not rows:
        return ""
    return (
        f"<details><summary>{number + 1}. {question['kind']}, level {question['level']}</summary><pre>{escape(question['text'])}</pre>"
        f"<p>Expected: <code>{escape(question['answer'])}</code></p><table>{rows}</table></details>"
    )
