"""`scalar_node`: the scalar values of `enum` and `const` that satisfy all other keywords, as one sorted set of words.

Each value is tested by itself: strings by DFA simulation, numbers by exact decimal arithmetic. Lists and objects become schemas that only
they satisfy (`keywords/value.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import SchemaError
from fsm.limits import Limits
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.value import identity, pointer_to, values_at
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place, excluded_values, negated_values_of, values_of
from fsm.schema.places.shape import is_number, shorten
from fsm.schema.scalars.number import Demand, check_digits, demand_of, is_whole, number_texts
from fsm.schema.scalars.string import spelled, string_node
from fsm.terms import node as nodes
from fsm.terms import work_budget as work
from fsm.terms.node import Node

_STRINGS_PER_WORK = 10
_OTHERS_PER_WORK = 1  # numbers become decimals


def scalar_node(
    places: Conjunction, types: frozenset[str], *, limits: Limits, left_out: list[tuple[Place, str]]
) -> Node | None:
    """The scalars that `enum` and `const` of all places allow and the other keywords too, as one set of words.

    None where no place has either. Lists and objects among the values are left to `schema_of`. `left_out` takes the keywords that
    some of these scalars may fail.

    Raises:
        SchemaError: a value is no JSON value, or cannot be spelled.

    Cost: about 1 us per value.
    """
    listing = [(place, values) for place in places if (values := values_at(place)) is not None]
    if not listing:
        return None
    for _, values in listing:
        is_text = bool(values) and isinstance(values[0], str)
        work.add(len(values) // (_STRINGS_PER_WORK if is_text else _OTHERS_PER_WORK))
    work.check()
    strings, others = _common(listing, limits)
    for keyword in KEYWORDS.with_accepts:
        for is_wanted, found in ((True, values_of), (False, negated_values_of)):
            for _, said in found(places, keyword.name):
                strings = [value for value in strings if keyword.takes(said, value) == is_wanted]
                others = [value for value in others if keyword.takes(said, value) == is_wanted]
    make = partial(string_node, places, limits=limits, left_out=left_out)
    texts = _strings(strings, types, places, make)
    texts += [text for value, text in names(places, types) if any(value is other for other in others)]
    numbers = [value for value in others if is_number(value)]
    if numbers and not types.isdisjoint(("integer", "number")):
        demand = demand_of(places, integers=True, limits=limits)
        texts += _numbers(numbers, types, demand)
    return nodes.words(texts)


_NAMES = ((None, "null", b"null"), (True, "boolean", b"true"), (False, "boolean", b"false"))


def names(places: Conjunction, types: frozenset[str]) -> list[tuple[bool | None, bytes]]:
    """Which of null, true and false are of these types and are not excluded, each with its text."""
    excluded = excluded_values(places)
    return [
        (value, text) for value, name, text in _NAMES if name in types and not any(value is other for other in excluded)
    ]


def _common(listing: list[tuple[Place, list[Any]]], limits: Limits) -> tuple[list[str], list[Any]]:
    """The scalars that are in every list: strings, and others."""
    strings, others = _parted(*listing[0], limits)
    for place, values in listing[1:]:
        more_strings, more_others = map(set, _parted(place, values, limits))
        known = {identity(value) for value in more_others}
        strings = [value for value in strings if value in more_strings]
        others = [value for value in others if identity(value) in known]
    return strings, others


def _parted(place: Place, values: list[Any], limits: Limits) -> tuple[list[str], list[Any]]:
    """Strings, and other scalars."""
    strings, others = list[str](), list[Any]()
    for position, value in enumerate(values):
        if isinstance(value, str):
            strings.append(value)
        elif not isinstance(value, list | dict):
            if is_number(value):
                check_digits(value, pointer_to(place, position), limits)
            elif value is not None and not isinstance(value, bool):
                raise SchemaError(
                    f"expected a JSON value, received {shorten(value)}. Correct the schema", pointer_to(place, position)
                )
            others.append(value)
    return strings, others


def _is_about_strings(place: Place) -> bool:
    """True when a place says something of strings besides `type` and what it lists."""
    if isinstance(place.schema, NegatedKeyword):
        return place.schema.keyword in KEYWORDS.of_strings
    return place.has_any(KEYWORDS.of_strings)


def _strings(values: list[str], types: frozenset[str], places: Conjunction, make: Callable[[], Node]) -> list[bytes]:
    if "string" not in types:
        return []
    excluded = {other for other in excluded_values(places) if isinstance(other, str)}
    texts = [spelled(value) for value in values if value not in excluded]
    if texts and any(map(_is_about_strings, places)):
        automaton = Automaton(make())
        texts = automaton.accepted(texts)
    return texts


def _numbers(values: list[Any], types: frozenset[str], demand: Demand) -> list[bytes]:
    decimals = demand.decimals if "number" in types else None
    return [
        text
        for value, texts in number_texts(values, decimals).items()
        if demand.allows(value) and ("integer" if is_whole(value) else "number") in types
        for text in texts
    ]
