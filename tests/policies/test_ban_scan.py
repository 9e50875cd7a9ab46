"""Phrases and patterns are found in a text whatever tokens spell it, where Python finds them, and with the token that they begin in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlines_cont import policies
from outlines_cont.policies import Ban
from tests.bare_loop import ToyModel
from tests.examples import examples

# Letters whose other cases are longer, look alike or have bytes in common, and what is no letter.
LETTERS = "aAbß\u1e9esSıİi\u0307ſkK\u212a éE\u0301_-ﬁfi"
TEXTS = st.text(LETTERS, max_size=12)
PHRASES = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4)


class Written:
    """A text that is cut into tokens, each of them new."""

    piece_start = first_open = 0
    healed = b""

    def __init__(self, ban: Ban, chunks: list[bytes]) -> None:
        self.token_ids = list(range(1, len(chunks) + 1))
        self.ban = replace(ban, alternatives=1).for_model(ToyModel(chunks, lambda text: {}))  # type: ignore[arg-type]
        self.states = [self.ban.initial(self)]  # type: ignore[arg-type]
        for token_id in self.token_ids:
            self.states.append(self.ban.advance(self.states[-1], token_id))

    def was_drawn(self, index: int) -> bool:
        return True

    def excluded(self, index: int) -> frozenset[int]:
        return frozenset()

    def at_end(self) -> Any:
        return self.ban.at_end(self.states[-1], self)  # type: ignore[arg-type]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces that end at some places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def token_of(text: str, start: int, chunks: list[bytes]) -> int:
    """The chunk with the first byte of the character whose folded form holds symbol `start`."""
    symbols = offset = 0
    for character in text:
        if symbols + len(character.casefold()) > start:
            break
        symbols, offset = symbols + len(character.casefold()), offset + len(character.encode())
    return next(i for i in range(len(chunks)) if len(b"".join(chunks[: i + 1])) > offset)


def characters(data: bytes) -> list[tuple[str, int]]:
    """The whole characters of some bytes, U+FFFD where they are not UTF-8, each with the offset of its first byte."""
    found, start = [], 0
    while start < len(data):
        size = next((n for n in range(1, 5) if is_text(data[start : start + n])), 0)
        if not size:
            try:
                data[start:].decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and not error.start:
                    return found  # more may follow
                size = error.end - error.start
        found.append((data[start : start + size].decode(errors="replace"), start))
        start += size
    return found


def is_text(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def folded(data: bytes) -> tuple[str, list[int]]:
    """The folded text of some bytes, and for each of its characters the offset of the first byte that it comes from."""
    symbols = [(symbol, start) for character, start in characters(data) for symbol in character.casefold()]
    return "".join(symbol for symbol, _ in symbols), [start for _, start in symbols]


_BROKEN = [b"\xe2", b"\x82", b"\xe2\x82", b"\xf0\x9f", b"\xc3", b"\x9f", b"\xff", b"a", b"B", b"\xef\xbf\xbd", b" "]


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.lists(st.sampled_from(_BROKEN) | st.sampled_from(LETTERS).map(str.encode), min_size=1, max_size=3).map(b"".join), max_size=8
    ),
    st.lists(st.text("ab\ufffds ", min_size=1, max_size=3), min_size=1, max_size=3) | PHRASES,
    st.lists(st.integers(0, 40), max_size=8),
)
@example([b"STRASSE"], ["straße"], [3])
@example(["İi".encode()], ["i̇i"], [1])
@example(["maß".encode()], ["mas"], [])
@example(["Maẞ".encode()], ["mas"], [])
@example([b"\xe2", b"a"], ["a"], [1])
@example([b"\xe2\x82", b"\xe2\x82", b"\xaca"], ["a", "\ufffd"], [2, 4])
def test_a_phrase_begins_in_its_token_whatever_bytes_are_around_it(parts: list[bytes], phrases: list[str], places: list[int]) -> None:
    """Tokens that cut characters, or have bytes that are no text, against a plain search in all that was written so far."""
    chunks = cut(b"".join(parts), places)
    written = Written(policies.ban(phrases), chunks)
    before = 0
    for count in range(1, len(chunks) + 1):
        text, starts = folded(b"".join(chunks[:count]))
        wanted = sorted(
            next(i for i in range(count) if len(b"".join(chunks[: i + 1])) > starts[start])
            for phrase in {phrase.casefold() for phrase in phrases}
            for start in range(len(text))
            if text.startswith(phrase, start) and start + len(phrase) > before
        )
        assert wanted == [match.token for match in written.states[count].matches]
        held = written.ban.held_bytes(written.states[count])
        assert not wanted or held >= len(b"".join(chunks[wanted[0] : count]))
        before = len(text)


@given(
    st.text("ab_ -", max_size=10), st.lists(st.text("ab_ -", min_size=1, max_size=3), min_size=1, max_size=3), st.lists(st.integers(0, 9))
)
def test_a_whole_word_has_no_word_character_beside_it(text: str, phrases: list[str], places: list[int]) -> None:
    chunks = cut(text.encode(), places)
    written = Written(policies.ban(phrases, whole_word=True), chunks)

    patterns = [rf"{before(phrase)}{re.escape(phrase)}{behind(phrase)}" for phrase in phrases]
    found = any(state.matches for state in written.states) or written.at_end() is not None
    assert found == any(re.search(pattern, text) for pattern in patterns)


def before(phrase: str) -> str:
    return r"(?<!\w)" if re.match(r"\w", phrase) else ""


def behind(phrase: str) -> str:
    return r"(?!\w)" if re.search(r"\w\Z", phrase) else ""


PATTERNS = [
    r"a.{0,3}b", r"\bab\b", r"(?i)é{1,2}", r"a(?!b)", r"(?<!a)b", r"^ab", r"b$", r"(?m)^b", r"(?x) a [b ] # no", r"a|b{2,3}",
]  # fmt: skip


@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from([*_BROKEN, b"ab", b"b", b"A", b"\n", "é".encode(), "É".encode()]), max_size=6).map(b"".join)
    | st.text("aAbéÉ \n", max_size=8).map(str.encode),
    st.sampled_from([*PATTERNS, r"a.b", "[^a]b", "\ufffd"]),
    st.lists(st.integers(0, 16), max_size=6),
)
@example(b"\xe2ab", r"\bab\b", [1])
def test_a_pattern_is_found_behind_bytes_that_are_no_text(data: bytes, pattern: str, places: list[int]) -> None:
    chunks = cut(data, places)
    written = Written(policies.ban([re.compile(pattern)]), chunks)
    text = "".join(character for character, _ in characters(data))
    first = re.search(pattern, text)

    found = [match for state in written.states for match in state.matches]
    assert (first is not None) == (bool(found) or written.at_end() is not None)
    if first is not None and found:
        start = characters(data)[first.start()][1]
        assert next(i for i in range(len(chunks)) if len(b"".join(chunks[: i + 1])) > start) in {m.token for m in found}


@given(TEXTS, PHRASES, st.lists(st.integers(0, 60), max_size=8), st.text(LETTERS, max_size=6))
def test_what_is_not_held_can_never_begin_a_match(text: str, phrases: list[str], places: list[int], more: str) -> None:
    chunks = cut(text.encode(), places)
    written = Written(policies.ban(phrases), [*chunks, *cut(more.encode(), [])])
    if any(state.matches for state in written.states[: len(chunks) + 1]):
        return
    state = written.states[len(chunks)]
    held = written.ban.held_bytes(state)

    matches = written.states[-1].matches
    if matches:
        assert len(b"".join(chunks[: matches[0].token])) >= len(text.encode()) - held
    if not held:
        return
    # What is held can become a match: some phrase begins with the end of the text, from the token that is held on.
    folded = text.casefold()
    starts = [start for start in range(len(folded)) for p in map(str.casefold, phrases) if p.startswith(folded[start:])]
    shown = b"".join(chunks)[: len(text.encode()) - held]
    assert token_of(text, min(starts), chunks) == next(i for i in range(len(chunks) + 1) if b"".join(chunks[:i]) == shown)
