"""`Report`: statistics of an output (accuracy, failures, lengths, agreement; of at most 200 fields), counted in one pass over its lines;
the 50 least certain values (by confidence, else agreement, else log-probability), and the 50 wrong values that seemed most certain, are
kept in bounded heaps. Accuracy needs a field with the right record, `calibration` also samples.

`write_page`: the page, rendered by Jinja from `report.html.jinja`: a self-contained file, with all values escaped.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlines_cont.errors import shortened
from outlines_cont.events.json_paths import field_of, leaves
from outlines_cont.pipelines.answer_curve import CurvePoint, answer_curve
from outlines_cont.pipelines.calibration import Answer, Calibration, is_same, same_values

MOST_VALUES = 50
_MOST_EXAMPLES = 3
_MOST_FIELDS = 200
_OTHERS = "(other fields)"
_LONGEST = 400
_DETAILS = ("logprobs", "agreement", "confidence", "certainty")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a record, which is shown if it is uncertain or wrong.

    Attributes:
        line: the line number of its row in the input.
        path: its path in the record.
        value: the value itself.
        logprob: the log-probability of its tokens; None if it is unknown.
        agreement: the share of the samples with an equal value; None without samples.
        confidence: how sure it is, by calibration the probability that it is right; None if that is not known.
        certainty: the same before calibration, of an extractor without samples; else None.
        is_withheld: whether it is None in the record, as it is too uncertain; `value` is what the model wrote.
        expected: the right value; meaningless if `is_right` is None.
        is_right: whether it is as expected; None if there is no right record.
        text: the message; empty if the output does not have it.
    """

    line: int
    path: str
    value: Any
    logprob: float | None = None
    agreement: float | None = None
    confidence: float | None = None
    certainty: float | None = None
    is_withheld: bool = False
    expected: Any = None
    is_right: bool | None = None
    text: str = ""


@dataclass(slots=True)
class FieldCounts:
    """Statistics of the values of one field: their number, and the number of those with a log-probability (`scored`), of expected
    and right ones, of those compared with samples (`voted`), and of those that are `withheld`, which are not among the expected ones;
    `logprob` and `agreement` are sums.
    """

    values: int = 0
    scored: int = 0
    logprob: float = 0.0
    compared: int = 0
    right: int = 0
    voted: int = 0
    agreement: float = 0.0
    withheld: int = 0


@dataclass(slots=True)
class Report:
    """Counts of the rows of an output.

    Attributes:
        text_field: the field with the message of a row, if the output has it.
        gold: the field with the right record of a row, as an object or as JSON; None if there is none.
        rows: the number of rows.
        failed: the number of rows with an error.
        errors: the number of errors by type.
        examples: for each type of error a few line numbers with their messages.
        tokens: the number of records by their number of tokens.
        prompt_tokens: the number of prompts by their number of tokens.
        fields: counts by the path of the field, with `[]` for all items of a list.
        compared: the number of records with a right record to compare with.
        right: the number of those without a wrong value; one that is withheld is not wrong.
        unreadable: the number of rows whose right record cannot be parsed.
        answers: the number of values by field, agreement (without samples certainty), and whether they are right.
        chances: the number of values by confidence, in hundredths, and whether they are right; empty if it is not known. Both count
            values that are withheld.
        thumbnails: small pictures of the images of rows, as `data:` URLs, by line numbers.
    """

    text_field: str = "text"
    gold: str | None = None
    rows: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    tokens: Counter[int] = field(default_factory=Counter)
    prompt_tokens: Counter[int] = field(default_factory=Counter)
    fields: dict[str, FieldCounts] = field(default_factory=dict)
    compared: int = 0
    right: int = 0
    unreadable: int = 0
    answers: Counter[tuple[str, float, bool]] = field(default_factory=Counter)
    chances: Counter[tuple[int, bool]] = field(default_factory=Counter)
    thumbnails: Mapping[int, Sequence[str]] = field(default_factory=dict)
    _least: list[tuple[float, int, Value]] = field(default_factory=list)
    _wrong: list[tuple[float, int, Value]] = field(default_factory=list)
    _number: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a line of output."""
        self.rows += 1
        details = line.get("_details", {})
        for name, counts in (("tokens", self.tokens), ("prompt_tokens", self.prompt_tokens)):
            if details.get(name):
                counts[details[name]] += 1
        if "error" in line:
            self._add_error(line)
        else:
            self._add_record(line, details)

    def add_file(self, path: Path) -> None:
        """Count all lines of a file."""
        with path.open("rb") as file:
            for line in file:
                self.add(json.loads(line))

    @property
    def least_certain(self) -> list[Value]:
        """The values with the least agreement or log-probability, the least certain first."""
        return _ranked(self._least)

    @property
    def wrong(self) -> list[Value]:
        """The values that are not as expected, those first that seem most certain."""
        return _ranked(self._wrong)

    @property
    def shown_lines(self) -> set[int]:
        """The line numbers of the rows whose values the page shows."""
        return {value.line for value in (*self.least_certain, *self.wrong)}

    def calibration(self) -> Calibration:
        """Return the calibration learned from the rows with a right record; `SetupError` if no sample was compared with one."""
        return Calibration.learned(
            Answer(name, share, is_right, count) for (name, share, is_right), count in self.answers.items()
        )

    @property
    def withheld(self) -> int:
        """The number of values that are None in the records, as they are too uncertain."""
        return sum(counts.withheld for counts in self.fields.values())

    @property
    def curve(self) -> list[CurvePoint]:
        """How many of the values would be right, by how many are answered; empty without confidence and right records."""
        if self.chances:
            return answer_curve((level / 100, is_right, count) for (level, is_right), count in self.chances.items())
        return answer_curve((share, is_right, count) for (_, share, is_right), count in self.answers.items())

    def _add_error(self, line: Mapping[str, Any]) -> None:
        self.failed += 1
        kind, message = line["error"]["type"], line["error"]["message"]
        self.errors[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _MOST_EXAMPLES:
            examples.append((line["_line"], message[:_LONGEST]))

    def _add_record(self, line: Mapping[str, Any], details: Mapping[str, Any]) -> None:
        withheld = details.get("withheld", {})
        expected, verdicts = self._verdicts(line, withheld)
        wanted = leaves(expected) if verdicts else {}
        values = _with_withheld(leaves(line["record"]), withheld)
        for path in dict.fromkeys([*values, *wanted]):
            known = {name.removesuffix("s"): details[name].get(path) for name in _DETAILS if name in details}
            value = Value(
                line["_line"],
                path,
                values.get(path),
                expected=wanted.get(path),
                is_right=verdicts.get(path),
                text=str(line.get(self.text_field, "")),
                is_withheld=path in withheld,
                **known,
            )
            self._add_value(value, path in values)

    def _verdicts(self, line: Mapping[str, Any], withheld: Mapping[str, Any]) -> tuple[Any, Mapping[str, bool]]:
        """Return the right record of a row, and for each of its values whether the model wrote it; empty without a right record."""
        if self.gold is None or line.get(self.gold) is None:
            return None, {}
        expected = line[self.gold]
        try:
            expected = json.loads(expected) if isinstance(expected, str) else expected
        except (ValueError, RecursionError):
            self.unreadable += 1
            return None, {}
        verdicts = {**same_values(expected, line["record"])}
        for path, known in leaves(expected).items():
            if path in withheld:
                verdicts[path] = is_same(withheld[path]["value"], known)
        self.compared += 1
        self.right += all(is_right for path, is_right in verdicts.items() if path not in withheld)
        return expected, verdicts

    def _add_value(self, value: Value, is_there: bool) -> None:
        name = field_of(value.path)
        if name not in self.fields and len(self.fields) >= _MOST_FIELDS:
            name = _OTHERS
        counts = self.fields.setdefault(name, FieldCounts())
        counts.values += is_there
        counts.withheld += value.is_withheld
        if value.is_right is not None and not value.is_withheld:
            counts.compared += 1
            counts.right += value.is_right
        if value.logprob is not None:
            counts.scored += 1
            counts.logprob += value.logprob
        if value.agreement is not None:
            counts.voted += 1
            counts.agreement += value.agreement
        share = value.agreement if value.agreement is not None else value.certainty
        if share is not None and value.is_right is not None:
            self.answers[name, share, value.is_right] += 1
        if value.confidence is not None and value.is_right is not None:
            self.chances[round(100 * value.confidence), value.is_right] += 1
        self._number += 1
        certainty = _certainty(value)
        if certainty is not None and is_there:
            _push(self._least, (-certainty, -self._number, value))
        if value.is_right is False and not value.is_withheld:
            _push(self._wrong, (0.0 if certainty is None else certainty, -self._number, value))


def _with_withheld(values: Mapping[str, Any], withheld: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record with those that the model wrote in place of None."""
    return {path: withheld[path]["value"] if path in withheld else value for path, value in values.items()}


def _certainty(value: Value) -> float | None:
    """Return the sort key of a value: its confidence, else its agreement, with its log-probability as tie-breaker."""
    share = value.confidence if value.confidence is not None else value.agreement
    if share is None:
        return value.logprob
    return 1000 * (share - 1) + (value.logprob or 0.0)


def _push(heap: list[tuple[float, int, Value]], item: tuple[float, int, Value]) -> None:
    heapq.heappush(heap, item)
    if len(heap) > MOST_VALUES:
        heapq.heappop(heap)


def _ranked(heap: list[tuple[float, int, Value]]) -> list[Value]:
    return [value for *_, value in sorted(heap, key=lambda item: (-item[0], item[1]))]


_REPORT_PAGE_LONGEST = 160
_MOST_COLUMNS = 28


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
        "shortened": partial(shortened, most=_REPORT_PAGE_LONGEST),
    }
    source = (files(__package__) / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        title=title,
        cards=_cards(report),
        agreement=_points((share, share, is_right, n) for (_, share, is_right), n in report.answers.items()),
        # In tenths of confidence.
        chances=_points((min(c // 10, 9), c / 100, is_right, n) for (c, is_right), n in report.chances.items()),
        curve=report.curve,
        percent=_percent,
        histogram=_histogram,
    )


def _cards(report: Report) -> list[tuple[str, str]]:
    cards = [("rows", f"{report.rows:,}"), ("failed", f"{report.failed:,}")]
    if report.compared:
        values = sum(counts.compared for counts in report.fields.values())
        right = sum(counts.right for counts in report.fields.values())
        cards += [("values right", _percent(right, values)), ("records right", _percent(report.right, report.compared))]
    if report.withheld:
        cards.append(("values withheld", f"{report.withheld:,}"))
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


def _points(values: Iterable[tuple[float, float, bool, int]]) -> list[tuple[float, int, int]]:
    """Return for each group of values, ascending, its mean level, the number of values, and the number of right values.

    `values` are groups, levels, and the counts of right or wrong values at them.
    """
    sums: dict[float, tuple[float, int, int]] = {}
    for group, level, is_right, count in values:
        levels, number, right = sums.get(group, (0.0, 0, 0))
        sums[group] = (levels + level * count, number + count, right + is_right * count)
    return [(levels / number, number, right) for _, (levels, number, right) in sorted(sums.items())]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"
