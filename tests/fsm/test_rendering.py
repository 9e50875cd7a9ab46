"""`repr` of an expression: how it was written, or its term in a few words; never long, never a serial number."""

from __future__ import annotations

import pytest

import fsm
from fsm import Expression, choice, json_schema, regex, types
from fsm.errors import clip
from fsm.terms import node as nodes
from fsm.terms.rendering import MAX_LENGTH, render

NESTED = nodes.literal(b"x")
for _ in range(5000):
    NESTED = nodes.alternation((nodes.concat(nodes.byte_range(0x61, 0x63), NESTED), nodes.literal(b"yy")))


@pytest.mark.parametrize(
    "expression",
    [
        regex("a|b"),
        regex(r"\d+", ascii=True),
        regex("a") + "x\n" | choice(["yes", "no"]),
        (~regex("a|b") & "c").repeat(1, 3).named("few"),
        ("[" + regex("a").repeat(2)) & regex("..."),
    ],
)
def test_a_repr_can_be_pasted_back(expression: Expression) -> None:
    again = eval(repr(expression), {name: getattr(fsm, name) for name in fsm.__all__})  # noqa: S307 - ours
    assert again == expression
    assert again.name == expression.name


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("abc", "abc"),
        ("a[bc]{2,3}", "a[b-c]{2,3}"),
        ("(?:ab)*c?[^a]{0}", "(ab)*c?"),
        (r"\.\n[\]^-]+é", r"\.\n[\-\]-\^]+é"),
        (".*", ".*"),
        ("(?s:.)+", "<character>+"),
        ("one|two|three", "(one|three|two)"),
        (r"(?:a+|)b", "(a+)?b"),
        ("|".join(f"{n}word" for n in range(10, 60)), "(10word|11word|12word|13word|... 50 words)"),
        ("(?!)", "<nothing>"),
        ("", ""),
    ],
)
def test_a_term_is_shown_like_a_pattern(pattern: str, shown: str) -> None:
    assert shown == render(regex(pattern).node)


@pytest.mark.parametrize(
    "expression",
    [
        regex("a" * 5000),
        regex("[ab]?" * 5000),
        choice(["x" * 5000] * 2 + [str(n) for n in range(5000)]),
        json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}),
        Expression(NESTED),
        Expression(nodes.complement(NESTED)).named("n" * 5000),
        Expression(nodes.sequence([nodes.byte_range(n % 90, n % 90 + 7) for n in range(5000)])),
        *(getattr(types, name) for name in types.__all__),
    ],
    ids=lambda e: repr(e)[:30],
)
def test_a_repr_is_short_and_shows_no_number_of_a_node(expression: Expression) -> None:
    for shown in (expression, expression + "x", ~expression if expression.node.is_regular else expression.repeat(2, 3)):
        assert len(repr(shown)) <= 3 * MAX_LENGTH
        assert str(expression.node.serial) not in repr(shown) or expression.node.serial < 100


def test_a_recursive_term_and_a_rule_are_shown_by_name() -> None:
    assert repr(types.json_value) == "types.json_value"
    assert render(types.json_value.node) == "<json_value>"
    assert render(nodes.concat(nodes.byte_range(0x80, 0xFF), nodes.literal(b"\xff"))) == r"[\x80-\xff]\xff"


def test_shortening_keeps_both_ends() -> None:
    assert clip("abc", 3) == "abc"
    assert clip("a" * 50 + "z" * 50, 30) == "a" * 20 + "..." + "z" * 7
    assert len(clip("a" * 1000)) == MAX_LENGTH
