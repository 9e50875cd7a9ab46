"""`write_reports`: reads the lines of an output as a `Report`, and writes its HTML page, or the calibration learned from it, or both.
`write_page`: the page, rendered by Jinja from `report.html.jinja`: a self-contained file, with all values escaped.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlines_cont.errors import shortened
from outlines_cont.pipelines.reports.report import Report

_LONGEST = 160
_MOST_COLUMNS = 28


def write_reports(
    lines: Path, title: str, text_field: str, gold: str | None, page: Path | None, curves: Path | None
) -> None:
    """Read the lines of an output, and write the page and the calibration that are learned from them; None for no such file."""
    if page is None and curves is None:
        return
    report = Report(text_field, gold)
    report.add_file(lines)
    if page is not None:
        write_page(report, page, title)
    if curves is not None:
        report.calibration().save(curves)


def write_page(report: Report, path: Path, title: str) -> None:
    """Write the page to a temporary file and rename it (atomic)."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(page(report, title), encoding="utf-8", errors="replace")
    os.replace(new, path)


def page(report: Report, title: str) -> str:
    """Return the page as HTML, with `title` as its heading."""
    environment = ImmutableSandboxedEnvironment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "exp": math.exp,
        "json": partial(json.dumps, ensure_ascii=False),
        "shortened": partial(shortened, most=_LONGEST),
    }
    source = (files("outlines_cont.pipelines.reports") / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        title=title,
        cards=_cards(report),
        agreement=_shares((share, is_right, count) for (_, share, is_right), count in report.answers.items()),
        chances=_mean_chances(report),
        percent=_percent,
        histogram=_histogram,
    )


def _cards(report: Report) -> list[tuple[str, str]]:
    cards = [("rows", f"{report.rows:,}"), ("failed", f"{report.failed:,}")]
    if report.compared:
        values = sum(counts.compared for counts in report.fields.values())
        right = sum(counts.right for counts in report.fields.values())
        cards += [("values right", _percent(right, values)), ("records right", _percent(report.right, report.compared))]
    if report.tokens:
        mean = sum(number * count for number, count in report.tokens.items()) / report.tokens.total()
        cards.append(("tokens per record", f"{mean:.0f}"))
    return cards


def _histogram(counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return the bins of a histogram, at most 28: first number, last number, count."""
    low, high = min(counts), max(counts)
    step = -(-(high - low + 1) // _MOST_COLUMNS)
    columns = [0] * ((high - low) // step + 1)
    for number, count in counts.items():
        columns[(number - low) // step] += count
    return [(low + at * step, low + (at + 1) * step - 1, count) for at, count in enumerate(columns)]


def _mean_chances(report: Report) -> list[tuple[float, int, int]]:
    """Return for each tenth of confidence the mean confidence, the number of values, and the number of right values."""
    sums: Counter[int] = Counter()
    tenths: Counter[tuple[int, bool]] = Counter()
    for (chance, is_right), count in report.chances.items():
        tenth = min(chance // 10, 9)
        sums[tenth] += chance * count
        tenths[tenth, is_right] += count
    found = _shares((tenth, is_right, count) for (tenth, is_right), count in tenths.items())
    return [(sums[int(tenth)] / (100 * count), count, right) for tenth, count, right in found]


def _shares(answers: Iterable[tuple[float, bool, int]]) -> list[tuple[float, int, int]]:
    """Return for each level, ascending, the number of values and the number of right values."""
    counts: Counter[float] = Counter()
    right: Counter[float] = Counter()
    for level, is_right, count in answers:
        counts[level] += count
        right[level] += count * is_right
    return [(level, counts[level], right[level]) for level in sorted(counts)]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"
