"""Options of samplers at the bounds of their ranges: the bound itself is taken or refused as the docs say, what is just beyond never taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from outlines_cont import OptionError, samplers

_ALL = (samplers.greedy, samplers.multinomial, lambda **options: samplers.best_of(2, **options))
_DRAWN = _ALL[1:]
_BEAMS = (lambda **options: samplers.beam_search(2, **options),)
_MANY = (lambda n: samplers.multinomial(n), lambda n: samplers.best_of(n), lambda n: samplers.beam_search(n))


@pytest.mark.parametrize(
    ("make", "option", "lowest", "highest"),
    [
        *((make, "repetition_penalty", 1 / 1000, 1000) for make in _ALL),
        *((make, option, -10_000, 10_000) for make in _ALL for option in ("frequency_penalty", "presence_penalty")),
        *((make, "top_p", math.nextafter(0, 1), 1) for make in _DRAWN),
        *((make, "min_p", 0, 1) for make in _DRAWN),
        *((make, "temperature", math.nextafter(1e-30, 1), math.nextafter(1e30, 0)) for make in _DRAWN),
        *((make, "length_penalty", -10, 10) for make in _BEAMS),
    ],
)
def test_a_bound_is_within_and_the_next_number_beyond_is_not(
    make: Callable[..., Any], option: str, lowest: float, highest: float
) -> None:
    for value in (lowest, highest):
        make(**{option: value})
    for value in (math.nextafter(lowest, -math.inf), math.nextafter(highest, math.inf), math.nan):
        with pytest.raises(OptionError, match=f"`{option}`") as caught:
            make(**{option: value})
        assert caught.value.option == option


@pytest.mark.parametrize("make", _ALL)
def test_a_bias_is_bounded_for_every_token(make: Callable[..., Any]) -> None:
    within, beyond = {0: 10_000, 7: -10_000}, math.nextafter(10_000, math.inf)
    assert ((0, 10_000), (7, -10_000)) == make(logit_bias=within).penalties.logit_bias
    for bias in ({0: beyond}, {7: -beyond}, {1: 0, 5: beyond}, {-1: 0}, {True: 0}):
        with pytest.raises(OptionError, match="`logit_bias`"):
            make(logit_bias=bias)


@pytest.mark.parametrize("make", _MANY)
def test_one_sample_and_one_beam_are_enough(make: Callable[..., Any]) -> None:
    make(1)
    for value in (0, -1, True, 1.0):
        with pytest.raises(OptionError):
            make(value)
    samplers.multinomial(top_k=1)
