"""Where a value that has failed its check is written otherwise: the most probable place, against products of probabilities."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.policies.constraint import _most_probable

# Probabilities with which a token was drawn; 1 is that of one without a choice.
DRAWN = st.fractions(Fraction(1, 50), Fraction(1), max_denominator=50)


@given(st.lists(st.tuples(DRAWN, st.integers(1, 3)), min_size=1, max_size=7))
def test_the_place_is_that_of_the_largest_product(drawn: list[tuple[Fraction, int]]) -> None:
    places, index = list[int](), 4
    for _, gap in drawn:
        places.append(index := index + gap)
    known = {place: math.log(probability) for place, (probability, _) in zip(places, drawn, strict=True)}
    row: Any = SimpleNamespace(sampling_logprob=lambda index: known[index])
    products, before = list[Fraction](), Fraction(1)
    for probability, _ in drawn:
        products.append(before * (1 - probability))
        before *= probability
    found = products[places.index(_most_probable(places, row))]
    assert found >= max(products) * (1 - Fraction(1, 10**9))
    if max(products) == 0:
        assert _most_probable(places, row) == places[0]


def test_a_log_probability_that_is_a_little_too_large_is_one() -> None:
    row: Any = SimpleNamespace(sampling_logprob=lambda index: 1e-9)
    assert _most_probable([3, 5], row) == 3
