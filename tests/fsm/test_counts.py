"""Loops of loops against arithmetic: how many letters `(a{m,n}){lo,hi}` takes is a sum of `lo` to `hi` numbers from `m` to `n`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from fsm import regex

_LONGEST = 20


def _ranges(most: int) -> Iterator[tuple[int, int | None]]:
    """Every range up to `most`, and those without an end."""
    for low in range(most + 1):
        yield from ((low, high) for high in range(low, most + 1))
        yield low, None


def _sums(inner: tuple[int, int | None], outer: tuple[int, int | None]) -> set[int]:
    """The lengths, up to `_LONGEST`, of some numbers out of `inner`, as many as `outer` says, one after the other."""
    (least, most), (low, high) = inner, outer
    numbers = [n for n in range(_LONGEST + 1) if n >= least and (most is None or n <= most)]
    reached, found = {0}, set[int]()
    for turn in range(_LONGEST + 2 if high is None else high + 1):
        found |= reached if turn >= low else set()
        reached = {total + n for total in reached for n in numbers if total + n <= _LONGEST}
    return found


def _pattern(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{{{low},}}" if high is None else f"{{{low},{high}}}"


@pytest.mark.parametrize("body", ["a", "(?:ab|cd)"])
def test_a_loop_of_a_loop_takes_the_sums_of_its_counts(body: str) -> None:
    text = "a" if body == "a" else "ab"
    for inner, outer in product(_ranges(4), _ranges(3)):
        expression = regex(f"(?:{body}{_pattern(inner)}){_pattern(outer)}")
        taken = {n for n in range(_LONGEST + 1) if expression.accepts(text * n)}
        assert _sums(inner, outer) == taken, (inner, outer)
