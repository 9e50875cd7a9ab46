"""Expressions denote texts, valid UTF-8: the laws of `~` and `&` among them, and every way to make an expression."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
import fsm.types
from fsm import Expression, ExpressionError
from fsm.automaton.lazy_dfa import Automaton
from fsm.terms import node as nodes
from fsm.terms.rule import TEXTS
from tests.fsm.test_expression import LANGUAGES, Language
from tests.strategies import python_patterns, texts_near
from tests.walks import RANDOMS, random_text

EVERYTHING = fsm.regex("(?s).*")
"""Every text."""


def is_same(left: Expression, right: Expression) -> bool:
    return (left & ~right).is_empty() and (right & ~left).is_empty()


def test_a_byte_that_is_no_text_is_no_way_out_of_a_complement() -> None:
    without = ~fsm.regex("(?s).*Porto.*")
    assert not without.accepts(b"Porto\xff")
    assert not without.accepts(b"\xffPorto")
    assert not without.accepts(b"\xc3")
    assert without.accepts("Lisboa é")


def test_nothing_is_left_of_everything() -> None:
    assert (~EVERYTHING).is_empty()
    assert (~(fsm.regex("(?s)a.*") | fsm.regex("(?s)([^a].*)?"))).is_empty()
    assert EVERYTHING == ~~EVERYTHING
    assert ~fsm.regex("(?!)") == EVERYTHING


@given(st.binary(max_size=6), LANGUAGES)
@settings(max_examples=60)
def test_a_text_is_in_a_language_or_in_its_complement_and_other_bytes_in_neither(
    data: bytes, language: Language
) -> None:
    expression = language[0]
    is_text = data.decode(errors="ignore").encode() == data
    assert is_text == (expression.accepts(data) != (~expression).accepts(data))
    assert is_text or not expression.accepts(data)


@given(LANGUAGES, LANGUAGES)
@settings(max_examples=50)
def test_complements_obey_the_laws_of_sets(first: Language, second: Language) -> None:
    left, right = first[0], second[0]
    assert left == ~~left
    assert (left & ~left).is_empty()
    assert (~(left | ~left)).is_empty()
    assert is_same(~(left | right), ~left & ~right)
    assert is_same(~(left & right), ~left | ~right)
    assert is_same(left & ~right, left & ~(left & right))


@given(python_patterns(), st.data())
@settings(max_examples=60)
def test_a_pattern_or_its_complement_matches(sample: object, data: st.DataObject) -> None:
    try:
        pattern = fsm.regex(sample.python)  # type: ignore[attr-defined]
    except fsm.FSMError:
        return
    text = data.draw(texts_near(sample.text))  # type: ignore[attr-defined]
    assert pattern.accepts(text) != (~pattern).accepts(text)
    assert pattern == ~~pattern


SOURCES = {
    "regex": lambda: fsm.regex(r"[^a]\W\S\D.(?s:.)(?i:[^k])?"),
    "regex with a bound": lambda: fsm.regex(r"(?s)(?!é).*(?<!ü)\b."),
    "regex of surrogates": lambda: fsm.regex("[\ud7ff-\ue000]"),
    "choice": lambda: fsm.choice(["é", "", "\U00010400"]),
    "substring": lambda: fsm.substring("naïve 😀"),
    "substring with a mark": lambda: fsm.substring("ein größeres Maß", end="ß"),
    "until": lambda: fsm.until("é</x>"),
    "text": lambda: fsm.regex("a") + "é" + fsm.until("\n"),
    "complement": lambda: ~fsm.regex("é.*") + fsm.regex("x"),
    "complement twice": lambda: ~(~fsm.regex("é.*") + fsm.choice(["x", "\xff"])),
    "difference": lambda: fsm.regex("(?s).{2,5}") & ~fsm.regex("(?s).*é.*"),
    "repeat": lambda: (~fsm.regex("é+")).repeat(1, 3).named("all"),
    "string": lambda: fsm.json_schema({"type": "string", "not": {"pattern": "^[a-zé]"}, "maxLength": 9}),
    "pattern": lambda: fsm.json_schema({"type": "string", "pattern": r"^[^é]\W\S\D.[^]\P{L}$"}),
    "format": lambda: fsm.json_schema({"type": "string", "format": "iri"}),
    "keys": lambda: fsm.json_schema({"patternProperties": {"^é": {"type": "null"}}, "type": "object", "maxProperties": 2}),
    "any JSON": lambda: fsm.json_schema(True),
    "grammar": lambda: fsm.grammar('start: (WORD | /[^\\n ]/ "é" | /./s)+ "."\n%import common.WORD'),
    "grammar that ignores": lambda: fsm.grammar('start: /[^"]+/ ("=" /(?s:.)(?!ü)/)*\n%ignore /[^a-z]/', lexer="dynamic"),
    **{name: (lambda name=name: getattr(fsm.types, name)) for name in ("json_value", "markdown_list", "email")},
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
@given(random=RANDOMS)
@settings(max_examples=5)
def test_whatever_is_made_holds_texts_only(source: str, random: Random) -> None:
    expression = SOURCES[source]()
    data = random_text(expression.node, random, 12)
    text = data.decode()
    assert expression.accepts(text)
    if expression.node.is_regular and not expression.has_checks:
        assert not (~expression).accepts(text)


@pytest.mark.parametrize(
    "source", ["regex", "regex with a bound", "substring", "until", "complement twice", "pattern", "string"]
)
def test_no_byte_string_beside_the_texts_belongs_to_an_expression(source: str) -> None:
    node = SOURCES[source]().node
    assert Automaton(nodes.intersection((node, nodes.complement(TEXTS)))).is_empty()


def test_a_lone_surrogate_is_no_text() -> None:
    assert not EVERYTHING.accepts("a\ud800")
    assert not (~EVERYTHING).accepts("a\ud800")
    assert EVERYTHING.named("all").captures("\ud800") is None
    for make in (
        lambda: fsm.choice(["a", "b\ud800"]),
        lambda: fsm.until("\ud800"),
        lambda: fsm.substring("\ud800"),
        lambda: fsm.substring("a", end="\ud800"),
        lambda: EVERYTHING + "\ud800",
        lambda: "\ud800" | EVERYTHING,
    ):
        with pytest.raises(ExpressionError, match="lone surrogate at position"):
            make()
