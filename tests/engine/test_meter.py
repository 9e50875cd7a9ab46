"""Meters: nothing is counted before anything is done; sums, differences and nesting, count by count."""

from __future__ import annotations

from dataclasses import astuple, fields

import pytest

from outlines_cont.meter import Meter, MeterBoard
from tests.fakes import random_model

_NAMES = [field.name for field in fields(Meter)]


def test_a_new_meter_has_counted_nothing() -> None:
    with random_model().meter() as meter:
        pass
    assert {0} == set(astuple(meter)) == set(astuple(Meter()))


@pytest.mark.parametrize("name", _NAMES)
def test_counts_are_added_and_subtracted_each_for_itself(name: str) -> None:
    board, one = MeterBoard(), Meter(**{name: 3})
    with board.open() as outer:
        board.add(one)
        with board.open() as inner:
            board.add(one)
        board.add(one)
    board.add(one)
    for meter, number in ((outer, 9), (inner, 3), (outer - inner, 6), (one, 3)):
        assert [number if other == name else 0 for other in _NAMES] == list(astuple(meter))
    outer.clear()
    assert Meter() == outer
    with pytest.raises(TypeError):
        outer - 1  # type: ignore[operator]
