"""Scores of a record: `value_logprobs`, the log-probability of each value under schema and sampler, by prefix sums over its tokens;
`agreement`, the share of samples with an equal value at the same path; `same_values`, whether the record has each value of the right one. A
token counts for each value of which it has a byte; forced tokens have log-probability 0.

`Calibration`: curves from the share of samples that agree with a value to the probability that it is right, by isotonic regression (pool
adjacent violators), one per field and one for all fields; between its points a curve is linear. The curve of all fields is the prior of
each, and is used for fields that were not seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy
from pydantic import Field, TypeAdapter, ValidationError

from outlines_cont.checks import said_of, write_text_file
from outlines_cont.events.json_paths import byte_ranges, field_of, leaves
from outlines_cont.interfaces import Tokenizer
from outlines_cont.pipelines.outcome import SetupError

if TYPE_CHECKING:
    from outlines_cont.state.row import StateRow

_MISSING = object()


def value_logprobs(row: StateRow, tokenizer: Tokenizer) -> dict[str, float]:
    """Return for each value of a record, by its path, the log-probability of its tokens under the schema and the sampler.

    The last generated span of the row must be the record.
    """
    if row.piece is None:
        return {}
    token_ids, logprobs = row.token_ids[row.piece.start :], row.sampling_logprobs[row.piece.start :]
    parts = [tokenizer.text_bytes([token_id]) for token_id in token_ids]
    sums = list(accumulate(logprobs, initial=0.0))
    return {path: sums[span.stop] - sums[span.start] for path, span in value_tokens(parts).items()}


def value_tokens(parts: Sequence[bytes]) -> dict[str, slice]:
    """Return for each value of a record, by its path, the tokens that have a byte of it; `parts` are the bytes of all tokens."""
    ends = list(accumulate(map(len, parts)))
    return {
        path: slice(bisect_right(ends, start), min(bisect_left(ends, end) + 1, len(parts)))
        for path, (start, end) in byte_ranges(b"".join(parts)).items()
    }


def agreement(record: Any, samples: Sequence[Any]) -> dict[str, float]:
    """Return for each value of a record, by its path, the share of the samples with an equal one there; 0 without samples."""
    votes = [leaves(sample) for sample in samples]
    return {
        path: sum(is_same(vote.get(path, _MISSING), value) for vote in votes) / max(len(votes), 1)
        for path, value in leaves(record).items()
    }


def same_values(expected: Any, record: Any) -> Mapping[str, bool]:
    """Return for each expected value, by its path, whether the record has an equal one there."""
    found = leaves(record)
    return {path: is_same(found.get(path, _MISSING), value) for path, value in leaves(expected).items()}


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal; `true` is not equal to 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


# Weight of the prior of a field, the curve of all fields, in values of the field.
_PRIOR = 10.0
_ALL = ""

_UnitFloat = Annotated[float, Field(ge=0, le=1)]
Curve = Annotated[tuple[tuple[_UnitFloat, _UnitFloat], ...], Field(min_length=1)]
"""Shares of samples, ascending, each with the probability that a value is right."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A value of a record that was compared with the right one.

    Attributes:
        path: its path in the record.
        share: the share of the samples with an equal value.
        is_right: whether it is as expected.
        count: the number of such values.
    """

    path: str
    share: float
    is_right: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """Non-decreasing curves from the share of samples that agree with a value to the probability that it is right.

    Attributes:
        curves: by the path of the field, with `[]` for all items of a list; the empty path is for all fields.
    """

    curves: Mapping[str, Curve]

    @classmethod
    def learned(cls, answers: Iterable[Answer]) -> Self:
        """Learn from answers; raise `SetupError` if there are none."""
        counts: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        for answer in answers:
            for name in (_ALL, field_of(answer.path)):
                found = counts[name][round(answer.share, 6)]
                found[0] += answer.is_right * answer.count
                found[1] += answer.count
        if not counts:
            raise SetupError("expected rows with a record and with known answers to calibrate by, got none")
        # Without data a value that no sample agrees with counts as wrong. Half a value is added to both counts (additive smoothing),
        # so that no probability is 0 or 1.
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
        """Return the probability that a value is right if this share of the samples agrees with it."""
        return _at(self.curves.get(field_of(path), self.curves[_ALL]), share)

    def save(self, path: str | Path) -> None:
        """Write the curves as JSON; raise `SetupError` if the file cannot be written."""
        write_text_file(Path(path), TypeAdapter(Calibration).dump_json(self, indent=1).decode() + "\n", SetupError)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that `save` has written; raise `SetupError` if it is not one."""
        try:
            found = TypeAdapter(Calibration).validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = error if first is None else said_of(first, first["loc"])
            raise SetupError(
                f"expected a calibration that `--save-calibration` has written, but {str(path)!r} is not one: {reason}"
            ) from error
        if _ALL not in found.curves:
            raise SetupError(f"expected a calibration with a curve for all fields, but {str(path)!r} has none")
        return found


def _isotonic(levels: Mapping[float, list[float]]) -> Curve:
    """Return the isotonic regression of the shares of right answers (least squares, weighted by counts), by pooling adjacent violators."""
    pools: list[tuple[list[float], float, float]] = []  # shares, right ones, all
    for share in sorted(levels):
        right, count = levels[share]
        pools.append(([share], right, count))
        while len(pools) > 1 and pools[-2][1] * pools[-1][2] >= pools[-1][1] * pools[-2][2]:
            shares, right, count = pools.pop()
            before, right_before, count_before = pools[-1]
            pools[-1] = ([*before, *shares], right_before + right, count_before + count)
    return tuple((share, right / count) for shares, right, count in pools for share in shares)


def _at(curve: Curve, share: float) -> float:
    """Return the value of a curve by linear interpolation; it is constant before its first point and after its last."""
    shares, chances = zip(*curve, strict=True)
    return float(numpy.interp(share, shares, chances))
