"""Rare schemas, types, patterns and grammars, each with texts that belong to it and texts that do not."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, UrlConstraints

import fsm
from fsm import json_schema, regex
from fsm.errors import GrammarError, SchemaError
from fsm.terms.rendering import render
from fsm.tokens.character_loop import is_character_class


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\p{ASCII}$", ["a", "~", "0"], ["é", "\u0080", "ab", ""]),
        (r"^\p{Any}$", ["a", "é", "😀"], ["", "ab"]),
        (r"^\p{Assigned}$", ["a", "é"], ["\u0378", "ab"]),
        (r"^\P{ASCII}$", ["é", "😀"], ["a", ""]),
    ],
)
def test_properties_of_characters(pattern: str, good: list[str], bad: list[str]) -> None:
    expression = json_schema({"type": "string", "pattern": pattern})
    for text in (*good, *bad):
        assert (text in good) is expression.accepts(json.dumps(text, ensure_ascii=False)), text


def test_a_number_that_python_does_not_print_is_named_all_the_same() -> None:
    with pytest.raises(SchemaError, match="received a very long int"):
        json_schema({"minLength": -(10**5000)})


class Tree(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: Annotated[str, Field(min_length=1)]
    below: list[Tree] = []


def test_a_recursive_type_that_changes_texts_first_is_asked_as_a_whole() -> None:
    expression = json_schema(Tree)
    assert expression.has_checks
    assert any("accepts the value" in check or "Tree" in check for check in expression.checks)
    for value, expected in (
        ({"name": "a", "below": []}, True),
        ({"name": " ", "below": []}, False),
        ({"name": "a", "below": [{"name": "b", "below": []}]}, True),
        ({"name": "a", "below": [{"name": "  ", "below": []}]}, False),
    ):
        assert expected is expression.accepts(json.dumps(value, separators=(",", ":"))), value


def test_a_url_may_have_a_length_of_its_own() -> None:
    expression = json_schema(Annotated[AnyUrl, UrlConstraints(max_length=20)])
    assert expression.accepts('"http://a.bc/de"')
    assert not expression.accepts('"http://a.bc/defghijklmnop"')


def test_loops_over_characters_are_told_by_their_first_bytes_and_their_ends() -> None:
    for pattern, expected in (
        ("[a-z]", True),
        ("[a-c]", False),
        ("[a-z]|[a-z]b", False),
        ("[a-z]?", False),
        ("[a-z]b", True),
    ):
        assert expected is is_character_class(regex(pattern).node), pattern
    assert is_character_class(regex("[a-c]").node, min_bytes=3)
    assert not is_character_class(regex("[a-c]").node, min_bytes=4)
    assert not is_character_class(regex("[a-z]bcdef").node, max_states=3)


ARITHMETIC = """
start: sum
sum: product | sum "+" product
product: N | product "*" N | "(" sum ")"
N: /[0-9]+/
"""


@pytest.mark.parametrize("places", [1, 10, 50_000])
def test_a_grammar_means_the_same_however_much_is_known_of_its_parser(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm.lark.conflict.MAX_PLACES", places)
    expression = fsm.grammar(ARITHMETIC)
    for text, expected in (("1+2*3", True), ("(1+2)*3", True), ("1+", False), ("()", False), ("12", True)):
        assert expected is expression.accepts(text), text


@pytest.mark.parametrize("terminal", ["/x(?<!x)/", "/(?!)x/"])
def test_a_terminal_reads_something(terminal: str) -> None:
    with pytest.raises(GrammarError):
        fsm.grammar(f'start: "a" T\nT: {terminal}')


def test_a_pattern_that_looks_around_is_shown_as_one_that_does() -> None:
    assert "<what looks around>" in render(regex("(?:a(?=[bc])|[bc])*").node)
