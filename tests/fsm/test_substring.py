"""Substrings of a text as a language, against trying them all."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from fsm.languages.substring import Substrings


def _substrings(text: str) -> set[str]:
    return {text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)}


@settings(max_examples=40)
@given(st.text('ab"é', max_size=9))
def test_exactly_the_substrings_are_accepted(text: str) -> None:
    plain, quoted = fsm.substring(text), fsm.substring(text, end='"')
    wanted = _substrings(text)
    for size in range(4):
        for letters in itertools.product('ab"é', repeat=size):
            word = "".join(letters)
            assert (word in wanted) == plain.accepts(word)
            assert (word in wanted and '"' not in word) == quoted.accepts(word + '"')
    assert all(plain.accepts(word) for word in wanted)
    # No substring begins or ends inside a character.
    assert not plain.accepts("é".encode()[:1])
    assert not plain.accepts("é".encode()[1:])


@settings(max_examples=15)
@given(st.text("ab*", max_size=8))
def test_the_first_mark_of_several_characters_ends_it(text: str) -> None:
    expression, wanted = fsm.substring(text, end="**"), _substrings(text)
    for size in range(4):
        for letters in itertools.product("ab*", repeat=size):
            word = "".join(letters)
            ends_so = word in wanted and (word + "**").find("**") == len(word)
            assert ends_so == expression.accepts(word + "**")


def test_the_automaton_is_linear_in_the_text() -> None:
    text = "abcd" * 2000 + "🙂é" * 500
    reader = Substrings([text])
    assert len(reader._next) <= 2 * len(text)
    assert sum(map(len, reader._next)) <= 3 * len(text)
    assert fsm.substring(text).accepts(text[1000:8500])
    assert not fsm.substring(text).accepts(text + "a")


def test_it_is_a_language_like_all_others() -> None:
    assert fsm.substring("abc") == fsm.substring("abc")
    assert (fsm.substring("red green") & fsm.regex("[a-z]+")).accepts("gree")
    assert not (fsm.substring("red green") & ~fsm.substring("green")).accepts("gree")
    assert ("<" + fsm.substring("abc", end=">")).accepts("<bc>")
    assert "substring('abc'" in repr(fsm.substring("abc"))
    assert fsm.substring("").accepts("")
