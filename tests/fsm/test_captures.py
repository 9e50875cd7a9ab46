"""Named parts of expressions, and what of a text belongs to them."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsm
from fsm import Expression, ExpressionError, choice, json_schema, regex, until
from outlines_cont import continuous, generate, models


def test_parts_are_found_in_sums_alternatives_and_repetitions() -> None:
    pair = regex("[a-z]+").named("key") + "=" + regex("[0-9]+").named("value")
    line = ("# " + regex(".*").named("comment")) | (pair + (";" + pair).repeat())
    assert line.names == ("comment", "key", "value")
    assert line.captures("ab=1") == {"comment": None, "key": "ab", "value": "1"}
    assert line.captures("ab=1;c=23") == {"comment": None, "key": "c", "value": "23"}
    assert line.captures("# ab=1") == {"comment": "ab=1", "key": None, "value": None}
    assert line.captures("ab=") is None


def test_a_part_takes_as_much_as_it_can_from_left_to_right() -> None:
    two = regex("a*").named("x") + regex("a*").named("y")
    assert two.captures("aaa") == {"x": "aaa", "y": ""}
    both = regex("a+").named("first") | regex("[ab]+").named("second")
    assert both.captures("aa") == {"first": "aa", "second": None}
    assert both.captures("ab") == {"first": None, "second": "ab"}
    assert (regex("[ab]*").named("x") & regex(".b")).captures("ab") == {"x": "ab"}


def test_names_inside_names_and_inside_a_complement() -> None:
    inner = ("<" + regex("[a-z]*").named("word") + ">").named("tag")
    assert inner.captures("<ab>") == {"tag": "<ab>", "word": "ab"}
    assert (~inner).names == ()
    assert regex("a").captures("a") == {}


def test_checks_decide_where_a_part_ends() -> None:
    unique = json_schema({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, whitespace="none")
    twice = unique.named("a") + unique.named("b")
    assert twice.captures("[1][2,1]") == {"a": "[1]", "b": "[2,1]"}
    assert twice.captures("[1][1,1]") is None


def test_counts_without_bound_and_empty_rounds_end() -> None:
    word = regex("a?").named("x")
    assert word.repeat(10**9).captures("aa") == {"x": "a"}  # empty rounds that nothing needs do not count
    assert word.repeat(2, 2).captures("aa") == {"x": "a"}
    assert word.repeat(1, 2).captures("aaa") is None
    with pytest.raises(ExpressionError, match="100 deep"):
        for _ in range(200):
            word = word.named("x")


CASES = [
    ("(?P<x>a*)(?P<y>[ab]*)(?P<z>b*)", ("a*", "[ab]*", "b*")),
    ("(?P<x>a+)(?P<y>(?:ab)?)(?P<z>[ab]*)", ("a+", "(ab)?", "[ab]*")),
    ("(?P<x>[ab]?)(?P<y>b*)(?P<z>a?)", ("[ab]?", "b*", "a?")),
]


@pytest.mark.parametrize(("whole", "parts"), CASES)
def test_sums_are_divided_as_greedy_groups_are(whole: str, parts: tuple[str, ...]) -> None:
    expression = regex(parts[0]).named("x") + regex(parts[1]).named("y") + regex(parts[2]).named("z")
    for length in range(6):
        for letters in product("ab", repeat=length):
            match = re.fullmatch(whole, "".join(letters))
            assert (match and match.groupdict()) == expression.captures("".join(letters))


@given(st.lists(st.sampled_from(["a", "bb", "é"]), max_size=6), st.integers(0, 3))
def test_every_capture_belongs_to_its_part(words: list[str], lo: int) -> None:
    part = choice(["a", "bb", "é"])
    expression: Expression = "[" + (part.named("word") + ",").repeat(lo) + "]"
    found = expression.captures("[" + "".join(word + "," for word in words) + "]")
    assert (found is None) == (len(words) < lo)
    if found is not None:
        assert {"word": words[-1] if words else None} == found


def test_until_ends_at_the_first_mark() -> None:
    for mark, texts in (("ab", ["ab", "aab", "xyzab"]), ("aa", ["aa", "baa"]), ("é!", ["é!", "éé!"])):
        for text in texts:
            assert until(mark).accepts(text)
            assert not until(mark).accepts(text + mark)
            assert not until(mark).accepts(text[:-1])
    assert not until("aa").accepts("aaa")
    assert not until("a").accepts(b"\xffa")
    with pytest.raises(ExpressionError, match="at least one character"):
        until("")


def test_a_generator_gives_the_captures_as_its_value() -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = json_schema(schema, whitespace="none")
    thoughts = until("</think>") & regex("[a-z ]{0,10}</think>")
    found = generate.fsm(models.tiny(), thoughts.named("thoughts") + answer.named("answer"))("Is it?", max_tokens=60)
    assert list(found) == ["thoughts", "answer"]
    assert thoughts.accepts(found["thoughts"])
    assert found["answer"] in ('{"ok":true}', '{"ok":false}')
    state = continuous(generate.fsm(models.tiny(), "On " + fsm.types.date.named("day") + "."))("When?", max_tokens=30)
    assert state.values[0][0]["day"] == str(state)[-11:-1]
