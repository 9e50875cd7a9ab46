"""Keywords of numbers: bounds and `multipleOf`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm.schema.keywords.keyword import NUMERIC, Keyword, Way, negated
from fsm.schema.places.place import Place
from fsm.schema.places.shape import DIVISOR, NUMBER


def _bound(name: str, opposite: str, since: str = "draft-04") -> Keyword:
    """A bound, which fails where the opposite one holds."""

    def failures(keyword: Keyword, place: Place, value: Any) -> Iterator[Way]:
        yield ({"type": "number", opposite: value},)

    return Keyword(name, NUMBER, NUMERIC, since=since, failures=failures, is_built=True)


NUMBERS = (
    _bound("minimum", "exclusiveMaximum"),
    _bound("maximum", "exclusiveMinimum"),
    _bound("exclusiveMinimum", "maximum"),
    _bound("exclusiveMaximum", "minimum"),
    Keyword("multipleOf", DIVISOR, NUMERIC, since="draft-04", failures=negated, is_built=True, is_heavy=True),
)
