"""Bounds of a count: of characters, items or members. Of several the tightest holds; one fails where the opposite bound holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fsm.schema.keywords.keyword import Keyword, Way
from fsm.schema.places.place import Place
from fsm.schema.places.shape import COUNT


def count_bounds(least: str, most: str, types: frozenset[str]) -> tuple[Keyword, Keyword]:
    """The two bounds of a count."""

    def below(keyword: Keyword, place: Place, value: Any) -> Iterator[Way]:
        if value > 0:
            yield ({"type": [*types], most: int(value) - 1},)

    def above(keyword: Keyword, place: Place, value: Any) -> Iterator[Way]:
        yield ({"type": [*types], least: int(value) + 1},)

    bound = partial(Keyword, shape=COUNT, types=types, since="draft-04", is_built=True)
    return bound(least, merge=max, failures=below), bound(most, merge=min, failures=above)
