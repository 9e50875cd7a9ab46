"""Stop texts: their cost, their order, what is refused. The law of what is found and held is in `test_token_stream_laws`."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from outlines_cont.errors import OptionError
from outlines_cont.streams import StopMatch, StopText


def test_a_long_run_that_almost_matches_takes_linear_time() -> None:
    stop = StopText.of(["a" * 5_000 + "b"])
    for _ in range(100):
        stop, _ = stop.push(b"a" * 2_000)
    assert stop.safe == 200_000 - 5_000
    match = stop.push(b"b")[0].match
    assert match is not None
    assert (match.start, match.end) == (195_000, 200_001)


SPELLED = "expected stop texts that are strings of one character or more"


@pytest.mark.parametrize(
    ("stop_at", "message"),
    [
        *((wrong, SPELLED) for wrong in ([""], ["a", ""], [b"a"], [None], [["a"]])),
        (["ab\ud800"], "a lone surrogate at position 2"),
        *((wrong, "expected a text or a list of texts as `stop_at`, got") for wrong in (7, b"ab")),
    ],
)
def test_what_can_be_in_no_text_is_refused(stop_at: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        StopText.of(stop_at)
    assert caught.value.option == "stop_at"


def test_the_match_is_the_same_for_every_order_of_the_stop_texts_and_however_often_they_are_given() -> None:
    for order in permutations(["ab", "abcd", "b", "ab", "b"]):
        for given_as in (order, set(order), iter(order)):
            assert StopMatch(1, 3, "ab") == StopText.of(given_as).push(b"xabcd")[0].match
