"""`Calibration`: curves from the share of samples that agree with a value to the probability that it is right, by isotonic regression (pool
adjacent violators), one per field and one for all fields; between its points a curve is linear. The curve of all fields is the prior of
each, and serves fields that were not seen.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from outlines_cont.pipelines.rows.errors import SetupError
from outlines_cont.pipelines.rows.json_paths import field_of

# Weight of the prior of a field, the curve of all fields, in values of the field.
_PRIOR = 10.0
_ALL = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A value of a record that was compared with the right one.

    Attributes:
        path: its path in the record.
        share: the share of the samples that have the same.
        is_right: whether it is as expected.
        count: how many values of that kind there are.
    """

    path: str
    share: float
    is_right: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """Curves from the share of samples that agree to the chance that the value is right: one for each field, and one for all.

    A curve never falls (isotonic regression: pool adjacent violators); between its points it is straight.

    Attributes:
        curves: by field, items of lists as one; the points of each, ascending.
    """

    curves: Mapping[str, tuple[tuple[float, float], ...]]

    @classmethod
    def learned(cls, answers: Iterable[Answer]) -> Self:
        """Learn from answers.

        Raises:
            SetupError: the list is empty.
        """
        counts: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        for answer in answers:
            for name in (_ALL, field_of(answer.path)):
                found = counts[name][round(answer.share, 6)]
                found[0] += answer.is_right * answer.count
                found[1] += answer.count
        if not counts:
            raise SetupError("expected rows with a record and with known answers to calibrate by, got none")
        # What no sample agrees with is taken for wrong where nothing is known of it. And half a value more on either side: what was
        # always right in some rows is not certain in others.
        levels = {0.0: [0.0, 1.0], **counts.pop(_ALL)}
        common = _isotonic({share: [right + 0.5, count + 1] for share, (right, count) in levels.items()})
        curves = {_ALL: common}
        for name, known in counts.items():
            own = {share: known.get(share, [0.0, 0.0]) for share in levels}
            curves[name] = _isotonic(
                {share: [right + _PRIOR * _at(common, share), count + _PRIOR] for share, (right, count) in own.items()}
            )
        return cls(curves)

    def confidence(self, path: str, share: float) -> float:
        """Return the probability that a value is right with which this share of the samples agrees."""
        return _at(self.curves.get(field_of(path), self.curves[_ALL]), share)

    def save(self, path: str | Path) -> None:
        """Write the curves as JSON."""
        text = json.dumps(
            {"curves": {name: [list(point) for point in curve] for name, curve in self.curves.items()}}, indent=1
        )
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` has written.

        Raises:
            SetupError: the file is not a saved calibration.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))["curves"]
            curves = {str(name): tuple(_point(point) for point in curve) for name, curve in found.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SetupError(
                f"expected a calibration that `--save-calibration` has written, but {str(path)!r} is not one: {error}"
            ) from error
        if _ALL not in curves or not all(curves.values()):
            raise SetupError(f"expected a calibration with a curve for all fields, but {str(path)!r} has none")
        return cls(curves)


def _point(point: Any) -> tuple[float, float]:
    share, chance = map(float, point)
    if not (0 <= share <= 1 and 0 <= chance <= 1):
        raise ValueError(f"{point} is no point of a curve")
    return share, chance


def _isotonic(levels: Mapping[float, list[float]]) -> tuple[tuple[float, float], ...]:
    """Return the curve that never falls and is nearest to the shares of right answers, by squares, weighted by their counts."""
    pools: list[tuple[list[float], float, float]] = []  # shares, right ones, all
    for share in sorted(levels):
        right, count = levels[share]
        pools.append(([share], right, count))
        while len(pools) > 1 and pools[-2][1] * pools[-1][2] >= pools[-1][1] * pools[-2][2]:
            shares, right, count = pools.pop()
            before, *_ = pools[-1]
            pools[-1] = ([*before, *shares], pools[-1][1] + right, pools[-1][2] + count)
    return tuple((share, right / count) for shares, right, count in pools for share in shares)


def _at(curve: tuple[tuple[float, float], ...], share: float) -> float:
    """Return the curve at a share; before its first point and after its last as there."""
    at = bisect_left(curve, (share, 0.0))
    if at == 0:
        return curve[0][1]
    if at == len(curve):
        return curve[-1][1]
    (left, low), (right, high) = curve[at - 1], curve[at]
    return low + (high - low) * (share - left) / (right - left)
