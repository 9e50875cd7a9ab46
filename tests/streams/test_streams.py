"""The text decoder and the stop texts, against `bytes.decode` and `bytes.find` over the whole."""

from __future__ import annotations

import codecs
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.errors import OptionError
from outlines_cont.streams import StopMatch, StopText, TextDecoder

FAMILY = "👩‍👩‍👧"

# Bytes in which characters are cut, doubled and broken, besides plain noise.
BROKEN_UTF_8 = st.lists(
    st.sampled_from(
        [b"a", b"\xe2", b"\x82", b"\xac", "€".encode(), b"\xf0\x9f", b"\x99\x82", b"\xff", b"\xc0", b"\xed\xa0"]
    )
    | st.binary(max_size=3),
    max_size=12,
).map(b"".join)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return `data` cut at the offsets in `cuts`; some pieces may be empty."""
    borders = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    return [data[start:end] for start, end in pairwise(borders)] or [b""]


def first_stop(data: bytes, stop_texts: list[bytes]) -> StopMatch | None:
    """Return the stop text that ends first in `data`, of those that end together the longest."""
    found = [(data.find(text) + len(text), -len(text), text) for text in stop_texts if text in data]
    if not found:
        return None
    end, size, text = min(found)
    return StopMatch(end + size, end, text.decode())


@given(BROKEN_UTF_8, CUTS)
def test_pieces_decode_to_what_the_whole_decodes_to(data: bytes, cuts: list[int]) -> None:
    decoder, text = TextDecoder(), ""
    for piece in pieces_of(data, cuts):
        decoder, more = decoder.push(piece)
        text += more
    assert data.decode("utf-8", errors="replace") == text + decoder.flush()


@given(BROKEN_UTF_8)
def test_text_comes_out_as_early_as_it_is_certain(data: bytes) -> None:
    decoder, text = TextDecoder(), ""
    for end in range(1, len(data) + 1):
        decoder, more = decoder.push(data[end - 1 : end])
        text += more
        assert codecs.getincrementaldecoder("utf-8")("replace").decode(data[:end]) == text
        assert len(decoder.held) <= 3


def test_a_character_waits_for_its_last_byte() -> None:
    data = "é".encode()
    decoder, text = TextDecoder().push(data[:1])
    assert (decoder.held, text) == (b"\xc3", "")
    assert (TextDecoder(), "é") == decoder.push(data[1:])
    assert decoder.flush() == "\ufffd"


def test_an_old_decoder_stays_valid() -> None:
    before, _ = TextDecoder().push(FAMILY.encode()[:2])
    for rest in (FAMILY.encode()[2:], b"x"):
        assert (FAMILY.encode()[:2] + rest).decode("utf-8", "replace") == before.push(rest)[1]
    with pytest.raises(AttributeError):
        before.held = b""  # type: ignore[misc]


@given(
    st.text("abé", max_size=40).map(str.encode),
    st.lists(st.text("abé", min_size=1, max_size=5), max_size=4),
    CUTS,
)
def test_the_stop_text_that_ends_first_is_found_wherever_the_pieces_are_cut(
    data: bytes, stop_texts: list[str], cuts: list[int]
) -> None:
    stop, certain = StopText.of(stop_texts), b""
    for piece in pieces_of(data, cuts):
        stop, more = stop.push(piece)
        certain += more
        assert data[: stop.safe] == certain
        assert stop.held == (b"" if stop.match else data[stop.safe : stop.position])
    assert first_stop(data, [text.encode() for text in stop_texts]) == stop.match


@given(
    st.text("ab", max_size=20).map(str.encode),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_what_is_safe_is_just_what_no_stop_text_can_cut_off(data: bytes, stop_texts: list[str]) -> None:
    encoded = [text.encode() for text in stop_texts]
    stop = StopText.of(stop_texts)
    for end in range(len(data) + 1):
        if first_stop(data[:end], encoded):
            break
        # A stop text may still begin at the first place from which all bytes are the beginning of one.
        begins = (start for start in range(end + 1) if any(t.startswith(data[start:end]) for t in encoded))
        assert min(begins) == stop.safe
        stop, _ = stop.push(data[end : end + 1])


@pytest.mark.parametrize(
    ("stop_texts", "text", "match"),
    [
        (["\n\n"], "one\n\ntwo", StopMatch(3, 5, "\n\n")),
        (["bcd", "c"], "abcd", StopMatch(2, 3, "c")),  # the one that ends first, though it starts later
        (["cd", "abcd", "d"], "xabcd", StopMatch(1, 5, "abcd")),  # those that end together: the longest
        (["aab"], "aaab", StopMatch(1, 4, "aab")),
        (["ababc"], "abababc", StopMatch(2, 7, "ababc")),
        (["€"], "5 €", StopMatch(2, 5, "€")),
        ([], "anything", None),
    ],
)
def test_stop_texts_by_example(stop_texts: list[str], text: str, match: StopMatch | None) -> None:
    assert match == StopText.of(stop_texts).push(text.encode())[0].match


def test_a_partial_match_is_held_back_until_it_fails() -> None:
    stop, certain = StopText.of(["</answer>"]).push(b"42</an")
    assert (certain, stop.held, stop.safe, stop.match) == (b"42", b"</an", 2, None)
    assert stop.push(b"d ")[1] == b"</and "
    assert StopMatch(2, 11, "</answer>") == stop.push(b"swer> and more")[0].match


def test_nothing_changes_after_a_match() -> None:
    stop, _ = StopText.of(["."]).push(b"one. two")
    assert (stop, b"") == stop.push(b" three.")
    assert (stop.safe, stop.position) == (3, 4)


def test_a_long_run_that_almost_matches_takes_linear_time() -> None:
    stop = StopText.of(["a" * 5_000 + "b"])
    for _ in range(100):
        stop, _ = stop.push(b"a" * 2_000)
    assert stop.safe == 200_000 - 5_000
    match = stop.push(b"b")[0].match
    assert match is not None
    assert (match.start, match.end) == (195_000, 200_001)


def test_one_stop_text_may_be_given_alone() -> None:
    assert StopMatch(0, 2, "ab") == StopText.of("ab").push(b"ab")[0].match


@pytest.mark.parametrize("stop_texts", [[""], ["a", ""], [b"a"], [None], [["a"]]])
def test_an_empty_or_foreign_stop_text_is_refused(stop_texts: list[str]) -> None:
    with pytest.raises(OptionError, match="expected stop texts that are strings of one character or more") as caught:
        StopText.of(stop_texts)
    assert caught.value.option == "stop_at"


@pytest.mark.parametrize(
    ("stop_at", "message"),
    [
        (["ab\ud800"], "a lone surrogate at position 2"),
        (7, "expected a text or a list of texts as `stop_at`, got int"),
        (b"ab", "expected a text or a list of texts as `stop_at`, got bytes"),
    ],
)
def test_what_can_be_in_no_text_is_refused(stop_at: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StopText.of(stop_at)


@given(
    st.text("abé", max_size=8),
    st.text("abé", max_size=20),
    st.lists(st.text("abé", min_size=1, max_size=5), max_size=4),
    CUTS,
)
def test_a_stop_text_that_begins_in_the_prompt_counts_if_it_does_not_end_there(
    prompt: str, text: str, stop_texts: list[str], cuts: list[int]
) -> None:
    border, whole = len(prompt.encode()), (prompt + text).encode()
    ends = [
        (end, -len(stop.encode()), stop)
        for stop in stop_texts
        for end in range(border + 1, len(whole) + 1)
        if whole[:end].endswith(stop.encode())
    ]
    stop, certain = StopText.of(stop_texts).after(prompt.encode()), b""
    for piece in pieces_of(text.encode(), cuts):
        stop, more = stop.push(piece)
        certain += more
        assert text.encode()[: stop.safe] == certain
        assert stop.held == (b"" if stop.match else text.encode()[stop.safe : stop.position])
    if not ends:
        assert stop.match is None
        return
    end, size, found = min(ends)
    assert StopMatch(end + size - border, end - border, found) == stop.match


def test_the_match_is_the_same_for_every_order_of_the_stop_texts_and_however_often_they_are_given() -> None:
    for order in permutations(["ab", "abcd", "b", "ab", "b"]):
        for given_as in (order, set(order), iter(order)):
            assert StopMatch(1, 3, "ab") == StopText.of(given_as).push(b"xabcd")[0].match
