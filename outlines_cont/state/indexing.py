"""`parse_key`: converts the key of `state[batch, sample, ids]` to indices of the batch and sample axes and one int or slice for all rows;
`cut` converts that to start, stop, step in one row. Batch and sample axes of size 1 may be left out, `...` replaces all that are not named;
ints keep their axis and must be in range, slices are clipped as in Python. Other keys, such as lists and masks, are an `IndexError`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

_FORMS = {
    (True, True): "`state[ids]`, `state[sample, ids]` or `state[batch, sample, ids]`",
    (True, False): "`state[sample, ids]` or `state[batch, sample, ids]`",
    (False, True): "`state[batch, ids]` or `state[batch, sample, ids]`",
    (False, False): "`state[batch, sample, ids]`",
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key as indices of the batch and sample axes, and a slice of every row, or an int that must be in range for every row."""

    batch: range
    samples: range
    ids: int | slice


def parse_key(key: Any, batch_size: int, num_samples: int) -> Key:
    """Return a key of a state of B x S rows; `IndexError` for another number or type of parts, or an int out of range."""
    parts = _filled(list(key) if isinstance(key, tuple) else [key])
    if len(parts) == 2:
        parts = [slice(None), *parts] if batch_size == 1 else [parts[0], slice(None), parts[1]]
        _check_arity(batch_size == 1 or num_samples == 1, key, batch_size, num_samples)
    elif len(parts) == 1:
        parts = [slice(None), slice(None), *parts]
        _check_arity(batch_size == num_samples == 1, key, batch_size, num_samples)
    _check_arity(len(parts) == 3, key, batch_size, num_samples)
    batch, samples, ids = (_part(part, key, batch_size, num_samples) for part in parts)
    return Key(_indices(batch, batch_size, "batch"), _indices(samples, num_samples, "sample"), ids)


def _filled(parts: list[Any]) -> list[Any]:
    """Return three parts, with whole axes in place of one `...`; other keys unchanged."""
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(dots) != 1 or len(parts) > 4:
        return parts
    (at,) = dots
    return parts[:at] + [slice(None)] * (4 - len(parts)) + parts[at + 1 :]


def cut(ids: int | slice, length: int, row: tuple[int, int]) -> slice:
    """Return `ids` for a row of `length` items, as a slice with 0 <= start, and stop and step as for `range`.

    An int out of range is an `IndexError`, which names `row`, its (batch, sample) index.
    """
    if isinstance(ids, slice):
        return slice(*ids.indices(length))
    if not length:
        raise IndexError(f"expected a slice for the row at {list(row)}, which is empty, got {ids}")
    if not -length <= ids < length:
        raise IndexError(
            f"expected an index from {-length} to {length - 1} for the row at {list(row)}, which has {length} items, got "
            f"{ids}. A slice may reach beyond the end, an int may not."
        )
    start = ids % length
    return slice(start, start + 1, 1)


def _check_arity(holds: bool, key: Any, batch_size: int, num_samples: int) -> None:
    if not holds:
        forms = _FORMS[batch_size == 1, num_samples == 1]
        raise IndexError(
            f"expected {forms}, or `state[..., ids]`, for a state of {batch_size} x {num_samples} rows; got {_shown(key)}"
        )


def _part(part: Any, key: Any, batch_size: int, num_samples: int) -> int | slice:
    if isinstance(part, slice):
        return part
    _check_arity(not isinstance(part, bool) and hasattr(part, "__index__"), key, batch_size, num_samples)
    return operator.index(part)


def _indices(part: int | slice, size: int, axis: str) -> range:
    if isinstance(part, slice):
        return range(size)[part]
    if not size:
        raise IndexError(f"expected a slice on the {axis} axis, which is empty, got {part}")
    if not -size <= part < size:
        raise IndexError(f"expected a {axis} index from {-size} to {size - 1}, got {part}")
    return range(part % size, part % size + 1)


def _shown(key: Any) -> str:
    return f"`state[{', '.join(map(_shown_part, key if isinstance(key, tuple) else [key]))}]`"


def _shown_part(part: Any) -> str:
    if not isinstance(part, slice):
        return "..." if part is Ellipsis else repr(part)[:40]
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends if part.step is None else [*ends, str(part.step)])
