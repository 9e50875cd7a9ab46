"""Stop texts, against `bytes.find` over the whole."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.errors import OptionError
from outlines_cont.streams import StopMatch, StopText

CUTS = st.lists(st.integers(0, 40), max_size=8)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return `data` cut at the offsets in `cuts`; some pieces may be empty."""
    borders = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    return [data[start:end] for start, end in pairwise(borders)] or [b""]


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


LETTERS = st.sampled_from(["ab", "abé"])


@given(LETTERS.flatmap(lambda letters: st.text(letters, max_size=8)), st.data(), CUTS)
def test_the_stop_text_that_ends_first_behind_the_prompt_is_found_and_nothing_is_held_without_need(
    prompt: str, data: st.DataObject, cuts: list[int]
) -> None:
    letters = data.draw(LETTERS)
    text = data.draw(st.text(letters, max_size=20))
    stop_texts = data.draw(st.lists(st.text(letters, min_size=1, max_size=5), max_size=4))
    encoded, border = [stop.encode() for stop in stop_texts], len(prompt.encode())
    stop, certain, end = StopText.of(stop_texts).after(prompt.encode()), b"", 0
    for piece in pieces_of(text.encode(), cuts):
        stop, more = stop.push(piece)
        certain, end = certain + more, end + len(piece)
        assert text.encode()[: stop.safe] == certain
        assert stop.held == (b"" if stop.match else text.encode()[stop.safe : stop.position])
        if not stop.match:  # a stop text may still begin where all bytes from there on are the beginning of one
            read = (prompt + text).encode()[: border + end]
            begins = (start for start in range(len(read) + 1) if any(t.startswith(read[start:]) for t in encoded))
            assert stop.safe == max(min(begins, default=len(read)) - border, 0)
    whole = (prompt + text).encode()
    ends = [(end, -len(stop), stop) for stop in encoded for end in range(border + 1, len(whole) + 1) if whole[:end].endswith(stop)]
    if not ends:
        assert stop.match is None
        return
    end, size, found = min(ends)
    assert StopMatch(end + size - border, end - border, found.decode()) == stop.match
    assert (stop, b"") == stop.push(b"ab")


def test_the_match_is_the_same_for_every_order_of_the_stop_texts_and_however_often_they_are_given() -> None:
    for order in permutations(["ab", "abcd", "b", "ab", "b"]):
        for given_as in (order, set(order), iter(order)):
            assert StopMatch(1, 3, "ab") == StopText.of(given_as).push(b"xabcd")[0].match
