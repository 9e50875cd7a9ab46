"""Scores of a record: `value_logprobs`, the log-probability of each value under schema and sampler, by prefix sums over its tokens;
`agreement`, the share of samples with an equal value at the same path; `same_values`, whether the record has each value of the right one. A
token counts for each value of which it has a byte; forced tokens have log-probability 0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from outlines_cont.interfaces import Tokenizer
from outlines_cont.pipelines.rows.json_paths import byte_ranges, leaves

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
    ends = list(accumulate(map(len, parts)))
    sums = list(accumulate(logprobs, initial=0.0))
    found = {}
    for path, (start, end) in byte_ranges(b"".join(parts)).items():
        first, last = bisect_right(ends, start), bisect_left(ends, end)
        found[path] = sums[min(last + 1, len(parts))] - sums[first]
    return found


def agreement(record: Any, samples: Sequence[Any]) -> dict[str, float]:
    """Return for each value of a record, by its path, the share of the samples with an equal one there; 0 without samples."""
    votes = [leaves(sample) for sample in samples]
    return {
        path: sum(_is_same(vote.get(path, _MISSING), value) for vote in votes) / max(len(votes), 1)
        for path, value in leaves(record).items()
    }


def same_values(expected: Any, record: Any) -> Mapping[str, bool]:
    """Return for each expected value, by its path, whether the record has an equal one there."""
    found = leaves(record)
    return {path: _is_same(found.get(path, _MISSING), value) for path, value in leaves(expected).items()}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal; `true` is not equal to 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
