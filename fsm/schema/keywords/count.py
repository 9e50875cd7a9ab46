"""Bounds of a count: of characters, items or members. Of several the tightest holds; one fails where the opposite bound holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm.schema.keywords.keyword import Keyword, Way
from fsm.schema.places.place import Place
from fsm.schema.places.shape import COUNT


def at_least(name: str, opposite: str, types: frozenset[str]) -> Keyword:
    """A lower bound, whose opposite is the upper bound."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Way]:
        if value > 0:
            yield ({"type": [*types], opposite: int(value) - 1},)

    return Keyword(name, COUNT, types, since="draft-04", merge=max, failures=failures, is_built=True)


def at_most(name: str, opposite: str, types: frozenset[str]) -> Keyword:
    """An upper bound, whose opposite is the lower bound."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Way]:
        yield ({"type": [*types], opposite: int(value) + 1},)

    return Keyword(name, COUNT, types, since="draft-04", merge=min, failures=failures, is_built=True)
