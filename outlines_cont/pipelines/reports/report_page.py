"""The HTML page of a `Report`: one self-contained file, in which everything from rows and records is escaped."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from outlines_cont.errors import shortened
from outlines_cont.pipelines.reports.report import FieldCounts, Report, Value, shares
from outlines_cont.pipelines.reports.report_charts import histogram, reliability

_LONGEST = 160
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --line: #d9dee7; --paper: #ffffff; --card: #f5f7fa;
  --main: #2f6fde; --good: #1a8a4a; --bad: #c8372d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #313a48; --paper: #12161d;
  --card: #1a2029; --main: #6ea0ff; --good: #4cc38a; --bad: #ff7a70; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 1080px;
  padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 8px; } p { margin: 4px 0 12px; color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; min-width: 120px; }
.card b { display: block; font-size: 22px; font-weight: 600; } .card span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); padding: 6px 10px 6px 0; }
td { border-bottom: 1px solid var(--line); padding: 6px 10px 6px 0; vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
.half { flex: 1 1 360px; }
code.f { overflow-wrap: normal; }
code { font: 13px/1.45 ui-monospace, monospace; } .message { color: var(--soft); font-size: 13px; display: block; margin-top: 2px; }
.meter { display: inline-block; width: 90px; height: 8px; border-radius: 4px; background: var(--line); margin-left: 8px; }
.meter i { display: block; height: 8px; border-radius: 4px; background: var(--main); }
.right { color: var(--good); } .wrong { color: var(--bad); }
.charts { display: flex; flex-wrap: wrap; gap: 20px 40px; align-items: flex-start; }
figure { margin: 0; max-width: 100%; } figcaption { color: var(--soft); font-size: 13px; margin-bottom: 4px; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.bar { fill: var(--main); } .axis, .frame { stroke: var(--line); fill: none; } .diagonal { stroke: var(--soft); stroke-dasharray: 4 4; }
.curve { fill: none; stroke: var(--main); stroke-width: 1.5; } .point { fill: var(--main); fill-opacity: 0.75; }
"""


def write_page(report: Report, path: Path, title: str) -> None:
    """Write the page; it appears as a whole, or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(page(report, title), encoding="utf-8", errors="replace")
    os.replace(new, path)


def page(report: Report, title: str) -> str:
    """Return the page as HTML.

    Args:
        report: what came out.
        title: what stands at the top, such as the name of the input.
    """
    sections = [
        _head(report, title),
        _fields(report),
        _certainty(report),
        _reliability(report),
        _wrong(report),
        _errors(report),
    ]
    sections.append(_lengths(report))
    body = "\n".join(section for section in sections if section)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, '
        f'initial-scale=1">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n'
    )


def _head(report: Report, title: str) -> str:
    cards = [("rows", f"{report.rows:,}"), ("failed", f"{report.failed:,}")]
    if report.compared:
        values = sum(counts.compared for counts in report.fields.values())
        right = sum(counts.right for counts in report.fields.values())
        cards += [("values right", _percent(right, values)), ("records right", _percent(report.right, report.compared))]
    if report.tokens:
        count = sum(report.tokens.values())
        cards.append(("tokens per record", f"{sum(number * n for number, n in report.tokens.items()) / count:.0f}"))
    shown = "".join(f'<div class="card"><b>{escape(value)}</b><span>{name}</span></div>' for name, value in cards)
    notes = ""
    if report.unreadable:
        notes = f"<p>{report.unreadable:,} right records cannot be read as JSON; these rows are not compared.</p>"
    return f'<h1>{escape(title)}</h1>\n<div class="cards">{shown}</div>{notes}'


def _fields(report: Report) -> str:
    if not report.fields:
        return ""
    has_gold = any(counts.compared for counts in report.fields.values())
    has_votes = any(counts.voted for counts in report.fields.values())
    has_scores = any(counts.scored for counts in report.fields.values())
    head = [("field", ""), ("values", "n")]
    head += (
        [("right", "n")] * has_gold
        + [("samples that agree", "n")] * has_votes
        + [("mean probability", "n")] * has_scores
    )
    rows = [_field_row(name, counts, has_gold, has_votes, has_scores) for name, counts in report.fields.items()]
    note = (
        "The mean probability is the geometric mean of the probabilities of the values, under the schema."
        if has_scores
        else ""
    )
    return f"<h2>Fields</h2>\n<p>{note}</p>\n" + _table(head, rows)


def _field_row(name: str, counts: FieldCounts, has_gold: bool, has_votes: bool, has_scores: bool) -> list[str]:
    row = [f"<code>{escape(name or '(record)')}</code>", f"{counts.values:,}"]
    row += [_metered(counts.right, counts.compared)] * has_gold
    row += [_metered(counts.agreement, counts.voted)] * has_votes
    row += [
        _metered(math.exp(counts.logprob / counts.scored) if counts.scored else 0, 1 if counts.scored else 0)
    ] * has_scores
    return row


def _certainty(report: Report) -> str:
    values = report.least_certain
    if not values:
        return ""
    text = "" if any(value.text for value in values) else " With <code>--keep-text</code> the messages stand here, too."
    return (
        f"<h2>Look at these first</h2>\n<p>The {len(values)} values that are least certain, by the samples that agree where there are "
        f"some, and by their probability.{text}</p>\n" + _values(values)
    )


def _wrong(report: Report) -> str:
    values = report.wrong
    if not values:
        return ""
    return (
        f"<h2>Wrong values</h2>\n<p>{len(values)} values that are not as expected, those first that seem most certain: these are "
        "the ones that no threshold finds.</p>\n" + _values(values)
    )


def _values(values: Sequence[Value]) -> str:
    has_votes = any(value.agreement is not None for value in values)
    has_chance = any(value.confidence is not None for value in values)
    has_gold = any(value.is_right is not None for value in values)
    head = [("line", "n"), ("field", ""), ("value", "")] + [("expected", "")] * has_gold
    head += [("confidence", "n")] * has_chance + [("agree", "n")] * has_votes + [("probability", "n")]
    return _table(head, [_value_row(value, has_gold, has_votes, has_chance) for value in values])


def _value_row(value: Value, has_gold: bool, has_votes: bool, has_chance: bool) -> list[str]:
    message = f'<span class="message">{_short(value.text)}</span>' if value.text else ""
    row = [
        f"{value.line:,}",
        f'<code class="f">{escape(value.path or "(record)")}</code>',
        f"{_json(value.value)}{message}",
    ]
    if has_gold:
        verdict = {
            None: "",
            True: '<span class="right">✓</span>',
            False: f'<span class="wrong">✗</span> {_json(value.expected)}',
        }
        row.append(verdict[value.is_right])
    row += [_or_dash(value.confidence, "{:.1%}")] * has_chance + [_or_dash(value.agreement, "{:.0%}")] * has_votes
    return [*row, _or_dash(None if value.logprob is None else math.exp(value.logprob), "{:.3g}")]


def _reliability(report: Report) -> str:
    if not report.answers:
        return ""
    said = shares((share, is_right, count) for (_, share, is_right), count in report.answers.items())
    parts = [_reliability_chart("samples that agree", said)]
    if report.chances:
        tenths: Counter[tuple[int, bool]] = Counter()
        for (chance, is_right), count in report.chances.items():
            tenths[min(chance // 10, 9), is_right] += count
        found = shares((tenth, is_right, count) for (tenth, is_right), count in tenths.items())
        parts.append(_reliability_chart("confidence", _mean_chances(report, found)))
    return (
        "<h2>How far agreement can be trusted</h2>\n<p>On the diagonal as many values are right as samples agree, or as the confidence "
        f'says; larger points are more values.</p>\n<div class="charts">{"".join(parts)}</div>'
    )


def _reliability_chart(unit: str, points: Sequence[tuple[float, int, int]]) -> str:
    """Return a reliability diagram and its table."""
    rows = [[f"{level:.0%}", f"{count:,}", _metered(right, count)] for level, count, right in points]
    table = _table([(unit, "n"), ("values", "n"), ("right", "n")], rows)
    return f'<div class="half"><figure>{reliability(points, unit)}</figure>\n{table}</div>'


def _mean_chances(report: Report, tenths: Iterable[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Return the tenths of confidence with the mean confidence in each."""
    found = []
    for tenth, count, right in tenths:
        inside = {key: n for key, n in report.chances.items() if min(key[0] // 10, 9) == tenth}
        mean = sum(chance * n for (chance, _), n in inside.items()) / (100 * count)
        found.append((mean, count, right))
    return found


def _errors(report: Report) -> str:
    if not report.errors:
        return ""
    rows = []
    for kind, count in report.errors.most_common():
        examples = "".join(f"<div>line {line:,}: {_short(message)}</div>" for line, message in report.examples[kind])
        rows.append([f"<code>{escape(kind)}</code>", f"{count:,}", examples])
    return "<h2>Errors</h2>\n" + _table([("type", ""), ("rows", "n"), ("such as", "")], rows)


def _lengths(report: Report) -> str:
    found = [("tokens of a record", report.tokens), ("tokens of a prompt", report.prompt_tokens)]
    figures = [f"<figure>{histogram(counts, unit)}</figure>" for unit, counts in found if counts]
    return f'<h2>Lengths</h2>\n<div class="charts">{"".join(figures)}</div>' if figures else ""


def _table(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    kinds = [f' class="{kind}"' if kind else "" for _, kind in head]
    first = "".join(f"<th{kind}>{escape(name)}</th>" for (name, _), kind in zip(head, kinds, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll"><table>\n<thead><tr>{first}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def _metered(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = min(max(part / whole, 0.0), 1.0)
    return f'{_percent(part, whole)}<span class="meter"><i style="width:{100 * share:.0f}%"></i></span>'


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _or_dash(number: float | None, form: str) -> str:
    return "–" if number is None else form.format(number)


def _json(value: Any) -> str:
    return f"<code>{_short(json.dumps(value, ensure_ascii=False))}</code>"


def _short(text: str) -> str:
    shown = shortened(text, _LONGEST)
    title = f' title="{escape(text[:2000], quote=True)}"' if shown != text else ""
    return f"<span{title}>{escape(shown)}</span>"
