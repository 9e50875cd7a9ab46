"""`TokenStream` against a plain account: all bytes joined, the first stop text looked for in the whole, one decoding."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import TokenStream
from outlines_cont.streams import Stop
from tests.fakes import BOS, END_OF_TURN, EOS, FakeTokenizer

TOKENIZER = FakeTokenizer()
TOKENS = TOKENIZER.token_bytes
ID_OF = {data: token_id for token_id, data in enumerate(TOKENS) if data}

# Parts of characters, U+FFFD itself, combining marks, letters that stop texts are made of, longer tokens, special tokens.
_BYTES = [*b"ab\n", 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xFF, 0xEF, 0xBF, 0xBD, 0xCC, 0x81, 0xC3, 0xA9]
_SOUP = st.sampled_from([*(ID_OF[bytes([byte])] for byte in _BYTES), ID_OF[b"ab"], ID_OF[b"abc"], ID_OF["é".encode()]])
SOUP = st.lists(_SOUP | st.sampled_from([BOS, END_OF_TURN]) | st.integers(3, len(TOKENS) - 1), max_size=14)
STOPS = st.lists(st.text("ab\né€\ufffd", min_size=1, max_size=4), max_size=4)
TEXTS = st.text(st.sampled_from("abc é€\u0301🙂日\ufffdyesno"), max_size=12)


def spelled(data: bytes, sizes: Sequence[int]) -> list[int]:
    """Return ids that spell `data`: of the tokens that fit at each place, the one that `sizes` say."""
    ids, at = [], 0
    for _ in data:
        fitting = [n for n in range(1, 6) if data[at : at + n] in ID_OF and at + n <= len(data)]
        if not fitting:
            break
        size = fitting[sizes[len(ids) % len(sizes)] % len(fitting)]
        ids.append(ID_OF[data[at : at + size]])
        at += size
    return ids


def found(data: bytes, stops: Sequence[str], border: int = 0) -> tuple[int, int, str] | None:
    """Return start, end and text of the stop text that ends first behind `border`, of several the longest."""
    ends = [
        (end, -len(stop.encode()), stop) for stop in stops for end in range(border + 1, len(data) + 1) if data[:end].endswith(stop.encode())
    ]
    if not ends:
        return None
    end, size, stop = min(ends)
    return end + size, end, stop


def beginning(data: bytes, stops: Sequence[str], border: int = 0) -> int:
    """Return from where on `data` may be the beginning of a stop text; its length where nothing may."""
    texts = [stop.encode() for stop in stops]
    return min(start for start in range(len(data) + 1) if start == len(data) or _begins(data[start:], texts))


def _begins(data: bytes, texts: Sequence[bytes]) -> bool:
    return any(len(data) < len(text) and text.startswith(data) for text in texts)


@given(SOUP, STOPS, st.booleans(), st.booleans())
def test_chunks_join_to_the_text_before_the_stop_and_nothing_is_held_without_need(
    ids: list[int], stops: list[str], skip: bool, keep: bool
) -> None:
    stream = TokenStream(TOKENIZER, stop_at=stops, skip_special_tokens=skip, keep_stop=keep)
    data, joined = b"", ""
    for token_id in ids:
        stream = stream.push(token_id)
        joined += stream.new_text
        assert joined == stream.text
        name = "" if skip else TOKENIZER.special_tokens.get(token_id, "")
        data += TOKENS[token_id] or name.encode()
        match = found(data, stops)
        if match is not None:
            start, end, text = match
            before = data[:start].decode("utf-8", "replace")
            assert stream.stop == Stop(text, None, len(before))
            assert (stream.finished, stream.finish_reason, stream.held) == (True, "stop", b"")
            assert joined == (data[:end].decode("utf-8", "replace") if keep else before)
            for after in (stream.push(ids[0]), stream.flush(), stream.push(ids[0]).push(ids[0])):
                assert (stream, joined, "") == (after, after.text, after.new_text)
                assert (stream.stop, stream.rewind(1)) == (after.stop, after.rewind(1))
            return
        certain = beginning(data, stops)
        wanted = codecs.utf_8_decode(data[:certain], "replace", certain < len(data))[0]
        assert wanted == joined
        assert (stream.stop, stream.finished) == (None, False)
        assert data.endswith(stream.held)
    ended = stream.flush()
    assert data.decode("utf-8", "replace") == joined + ended.new_text == ended.text
    assert (ended.held, ended.finish_reason, ended.stop) == (b"", "length", None)
    assert (ended, ended.text, "") == (ended.flush("again"), ended.push(ids[0] if ids else 3).text, ended.flush().new_text)
    assert (stream.text, stream.finished) == (joined, False)


@given(TEXTS, STOPS, st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_every_spelling_of_a_text_stops_at_the_same_place_by_the_same_stop_text(text: str, stops: list[str], sizes: list[int]) -> None:
    results = []
    for chosen, order in ((sizes, stops), ([0], [*stops[::-1], *stops])):
        stream = TokenStream(TOKENIZER, stop_at=order)
        for token_id in spelled(text.encode(), chosen):
            stream = stream.push(token_id)
        stream = stream.flush()
        results.append((stream.text, stream.stop, stream.finish_reason))
    assert results[0] == results[1]


@given(TEXTS, TEXTS, STOPS, st.lists(st.integers(0, 4), min_size=1, max_size=5), st.booleans())
def test_a_stop_text_may_begin_in_the_prompt_and_lies_never_wholly_in_it(
    prompt: str, text: str, stops: list[str], sizes: list[int], keep: bool
) -> None:
    stream = TokenStream(TOKENIZER, stop_at=stops, stop_in_prompt=True, keep_stop=keep, prompt=spelled(prompt.encode(), sizes))
    whole, border = (prompt + text).encode(), len(prompt.encode())
    read = prompt.encode()
    for token_id in spelled(text.encode(), sizes):
        stream = stream.push(token_id)
        read += TOKENS[token_id] or b""
        if stream.stop is None:
            certain = read[border : max(beginning(read, stops), border)]
            assert stream.text == codecs.utf_8_decode(certain, "replace", len(certain) < len(read) - border)[0]
    match = found(whole, stops, border)
    if match is None:
        assert text == stream.flush().text
        return
    start, end, stop = match
    assert stream.stop == Stop(stop, None, len(whole[:start].decode()) - len(prompt))
    assert stream.text == whole[border : max(end if keep else start, border)].decode()


@given(st.lists(_SOUP | st.sampled_from([EOS, END_OF_TURN]) | st.integers(-4, -1) | st.just(-10), max_size=20), STOPS)
def test_after_any_pushes_rewinds_and_flushes_a_stream_is_the_one_that_its_tokens_make(steps: list[int], stops: list[str]) -> None:
    empty = TokenStream(TOKENIZER, stop_at=stops)
    stream, ids, was_flushed = empty, list[int](), False
    seen = [(stream, stream.text, stream.held, stream.token_ids)]
    for step in steps:
        if step == -10:
            was_flushed = was_flushed or not stream.finished
            stream = stream.flush().flush()
        elif step < 0:
            back = min(-step, len(ids))
            stream, ids = stream.rewind(back), ids[: len(ids) - back]
            was_flushed = was_flushed and not back
        elif not stream.finished:
            stream, ids = stream.fork().push(step), [*ids, step]
        seen.append((stream, stream.text, stream.held, stream.token_ids))
        again = empty
        for token_id in ids:
            again = again.push(token_id)
        again = again.flush() if was_flushed else again
        assert again == stream
        assert hash(again) == hash(stream)
        assert tuple(ids) == stream.token_ids
        for name in ("text", "held", "stop", "finish_reason", "num_tokens"):
            assert getattr(again, name) == getattr(stream, name)
    for old, text, held, token_ids in seen:
        assert (text, held, token_ids) == (old.text, old.held, old.token_ids)
