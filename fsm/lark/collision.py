r"""`find_collision`: whether two terminals of equal priority match a common text where both may come, by a product automaton.

A lexer then chooses by an order that the grammar does not state. Lark's strict mode refuses such grammars, and so does
`grammar(..., strict=True)`; here our own terms are intersected, which know `\w` beyond ASCII and lookarounds, within a bound. Strings do
not count: a keyword that a name also matches is meant to be the keyword.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple, Protocol

from fsm.automaton.shortest import shortest_text
from fsm.errors import BudgetExceeded
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Node

MAX_SEARCH = 3_000
"""States in which two terminals are looked at for a text that both match; 0.2 ms each at the worst."""


class Pattern(Protocol):
    """The facts about a terminal that the comparison needs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def priority(self) -> int:
        """Of two terminals that match, the lexer takes the one with the higher priority."""

    @property
    def language(self) -> Node:
        """All texts that it matches."""

    @property
    def first_bytes(self) -> int:
        """A mask of the bytes with which a text may begin."""


class Collision(NamedTuple):
    """Two terminals, by name, and a text that both match, one of the shortest."""

    first: str
    second: str
    text: str


def find_collision(places: Iterable[Iterable[Pattern]]) -> Collision | None:
    """Return the first collision among the terminals that may come at one place, or None.

    Args:
        places: for each place, the regular expressions that may come there.

    Raises:
        BudgetExceeded: the product of two terminals is too large to decide whether they match a common text.

    Cost: one search of two automata per pair that may begin alike.
    """
    seen: set[tuple[str, str]] = set()
    for place in places:
        for first, second in combinations(sorted(place, key=lambda pattern: pattern.name), 2):
            pair = first.name, second.name
            if pair not in seen and first.priority == second.priority:
                text = _common_text(first, second)
                if text is not None:
                    return Collision(*pair, text)
            seen.add(pair)
    return None


def _common_text(first: Pattern, second: Pattern) -> str | None:
    """One of the shortest texts that two terminals match, or None."""
    if not first.first_bytes & second.first_bytes:
        return None
    both = nodes.intersection((first.language, second.language))
    text = None
    try:
        if not Derivatives(max_search=MAX_SEARCH).is_inhabited(both):
            return None
        text = shortest_text(both, max_states=MAX_SEARCH)
    except BudgetExceeded:
        pass
    if text is None:
        raise BudgetExceeded(
            f"expected terminals of which it can be told whether they match one text, received {first.name!r} and {second.name!r}, "
            f"of which {MAX_SEARCH:,} states were looked at. Simplify one of them, give them priorities, or leave out `strict`.",
            "max_search",
            MAX_SEARCH,
        )
    return text.decode()
