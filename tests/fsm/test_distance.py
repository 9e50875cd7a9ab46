"""Distances: guesses that are right where a term has one shape, and that no depth exhausts."""

from __future__ import annotations

import pytest

from fsm import regex
from fsm.terms import node as nodes
from fsm.terms.distance import Distances
from fsm.terms.rule import Rule

LETTER = nodes.byte_range(ord("a"), ord("z"))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (nodes.EPSILON, 0),
        (LETTER, 1),
        (nodes.literal(b"name"), 4),
        (nodes.repeat(LETTER), 0),
        (nodes.repeat(LETTER, 3, 9), 3),
        (regex("abc(de|f)[0-9]{2}").node, 6),
        (nodes.intersection((regex(".*ab").node, regex(".*cde").node)), 5),
        (nodes.complement(nodes.repeat(LETTER)), 1),
        (Rule("never built").term, 1),
        (nodes.munch(nodes.repeat(LETTER, 2), nodes.literal(b" x")), 4),
    ],
    ids=["empty", "byte", "literal", "loop", "counted", "sequence", "intersection", "complement", "rule", "munch"],
)
def test_a_distance_is_read_off_the_parts(term: nodes.Node, expected: int) -> None:
    assert expected == Distances().of(term)


def test_a_long_chain_needs_no_recursion() -> None:
    chain = nodes.sequence([nodes.byte_range(97 + n % 2, 99) for n in range(20_000)])
    assert Distances().of(chain) == 20_000


def test_what_is_forgotten_is_found_again() -> None:
    distances = Distances(max_memo=5)
    assert [distances.of(regex(f"[ab]{{{n}}}x").node) for n in range(2, 30)] == [n + 1 for n in range(2, 30)]
